// Online softmax in base 2 (Milakov and Gimelshein 2018, arXiv:1805.02867), over any vocabulary of
// vectors: a CPU's SIMD register, a GPU's float, or a plain float. Freestanding: host and device
// share it.
//
// A row's state is (max, sum): max of the scores seen so far, in ScoreUnits, and the sum of
// e^(score - max). An empty row has max = -inf, sum = 0.
#pragma once

namespace fulmen::algorithm {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// What a row's maximum is in. A call with a bias of fp32's range takes natural units and subtracts
// the maximum before it multiplies by log2(e): any finite bias is legal, and log2(e) times a huge
// one overflows, or is rounded by more than the exponential's range.
enum class ScoreUnits {
  base2,  // natural units times log2(e): the factor joins the scale
  natural,
};

// The exponent of 2 of a difference of scores.
template <class Ops, ScoreUnits kUnits>
inline typename Ops::Vec log2_of(typename Ops::Vec difference) {
  if constexpr (kUnits == ScoreUnits::natural) return Ops::mul(difference, Ops::set1(kLog2E));
  return difference;
}

// A row's maximum from that of stored scores, which `factor` turns into exponents of 2.
template <class Ops, ScoreUnits kUnits>
inline typename Ops::Vec maximum_of(typename Ops::Vec stored, typename Ops::Vec factor) {
  if constexpr (kUnits == ScoreUnits::natural) return stored;
  return Ops::mul(stored, factor);
}

// The exponent of 2 of a probability: of a stored score, by the row's offset.
template <class Ops, ScoreUnits kUnits>
inline typename Ops::Vec exponent_of(typename Ops::Vec stored, typename Ops::Vec factor,
                                     typename Ops::Vec minus_offset) {
  if constexpr (kUnits == ScoreUnits::natural)
    return Ops::mul(Ops::add(stored, minus_offset), factor);
  return Ops::fused(stored, factor, minus_offset);
}

// What a new tile does to the state. Ops supplies Vec, set1, mul, max, sub, exp2,
// replace_minus_infinity(x, by).
template <class Ops>
struct SoftmaxStep {
  using Vec = typename Ops::Vec;
  Vec max;      // the new running maximum
  Vec offset;   // what to subtract from the scores: max, but 0 for a row with no keys yet, so that
                // -inf - offset stays -inf
  Vec rescale;  // e^(old max - new max): factor for the old sum and the old output; 0 for a row
                // that had no keys
};

template <class Ops, ScoreUnits kUnits>
inline SoftmaxStep<Ops> softmax_step(typename Ops::Vec old_max, typename Ops::Vec tile_max) {
  SoftmaxStep<Ops> step;
  step.max = Ops::max(old_max, tile_max);
  step.offset = Ops::replace_minus_infinity(step.max, Ops::set1(0.0F));
  step.rescale = Ops::template exp2<5>(log2_of<Ops, kUnits>(Ops::sub(old_max, step.offset)));
  return step;
}

// Merging parts of a row computed apart (split KV): each part gives its maximum and sum;
// weight(part) = e^(part max - max). The combined output is sum(weight * part output,
// unnormalised) / sum(weight * part sum).
template <class Ops, ScoreUnits kUnits>
inline typename Ops::Vec combine_weight(typename Ops::Vec part_max, typename Ops::Vec max) {
  const auto offset = Ops::replace_minus_infinity(max, Ops::set1(0.0F));
  return Ops::template exp2<5>(log2_of<Ops, kUnits>(Ops::sub(part_max, offset)));
}

}  // namespace fulmen::algorithm
