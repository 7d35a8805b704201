// Online softmax in base 2 (Milakov and Gimelshein 2018, arXiv:1805.02867), over any vocabulary of vectors: a CPU's SIMD register,
// a GPU's float, or a plain float. Freestanding: host and device share it.
//
// A row's state is (max, sum): max of the scores seen so far, in units of the raw score times `factor` = log2, and the sum of
// 2^(score - max). An empty row has max = -inf, sum = 0.
#pragma once

namespace fulmen::algorithm {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// What a new tile does to the state. Ops supplies Vec, set1, mul, max, sub, exp2, replace_minus_infinity(x, by).
template <class Ops>
struct SoftmaxStep {
  using Vec = typename Ops::Vec;
  Vec max;      // the new running maximum, base-2 units
  Vec offset;   // what to subtract from the scores: max, but 0 for a row with no keys yet, so that -inf - offset stays -inf
  Vec rescale;  // 2^(old max - new max): factor for the old sum and the old output; 0 for a row that had no keys
};

template <class Ops>
inline SoftmaxStep<Ops> softmax_step(typename Ops::Vec old_max, typename Ops::Vec tile_max) {
  SoftmaxStep<Ops> step;
  step.max = Ops::max(old_max, tile_max);
  step.offset = Ops::replace_minus_infinity(step.max, Ops::set1(0.0F));
  step.rescale = Ops::template exp2<5>(Ops::sub(old_max, step.offset));
  return step;
}

// Merging parts of a row computed apart (split KV): each part gives its maximum and sum; weight(part) = 2^(part max - max).
// The combined output is sum(weight * part output, unnormalised) / sum(weight * part sum).
template <class Ops>
inline typename Ops::Vec combine_weight(typename Ops::Vec part_max, typename Ops::Vec max) {
  return Ops::template exp2<5>(Ops::sub(part_max, Ops::replace_minus_infinity(max, Ops::set1(0.0F))));
}

}  // namespace fulmen::algorithm
