// What a row's probabilities are by, where rounding its LSE would show in them.
#pragma once

#include <cstdint>

#include "cpu/backward/call.h"
#include "cpu/backward/tile.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/row_scores.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

// Probabilities are e^(score - max) / sum: (LSE, 1) in ordinary rows.
struct RowBase {
  float max;
  float log2_sum;
};

// From here on half an ulp of the LSE, 6e-5, shows in a gradient: probabilities e^(score - lse)
// would not add up to 1.
constexpr float kRoundedLse = 1024;
// Here half an ulp is 7e10, more than any q.k that scores can tell apart (docs/contract.md): the
// row's scores are its biases.
constexpr float kLseBeyondProducts = 0x1p60F;
// More than roundings may part an LSE and the same computed again, relative to it. Where sequences
// are cut and the LSE is that of all parts, what these keys give is less: then the LSE is all there
// is.
constexpr float kLseRounding = 0x1p-21F;

// raw[i] = the row's q.k with key first + i, for keys before `end` and a vector of them at most.
using RowProducts = void (*)(const BackwardCall& call, int64_t batch, int64_t head, int64_t row,
                             int64_t first, int64_t end, float* raw);
template <class Isa, class T>
__attribute__((noinline)) void row_products(const BackwardCall& call, int64_t batch, int64_t head,
                                            int64_t row, int64_t first, int64_t end, float* raw) {
  const Problem& p = *call.problem;
  const T* q = element<const T>(call.tensors->q, p.q, batch, row, head);
  for (int64_t key = first; key < end && key < first + Isa::kLanes; ++key) {
    raw[key - first] = row_product<Isa>(
        q, element<const T>(call.tensors->k, p.k, batch, key, head / p.group_size()), p.head_dim);
  }
}

template <class Isa, class BiasT>
__attribute__((noinline)) RowBase row_base_of(const BackwardCall& call, int64_t batch, int64_t head,
                                              int64_t row, float lse, RowProducts row_products) {
  using Vec = typename Isa::Vec;
  const Problem& p = *call.problem;
  const AttentionTensors& tensors = *call.tensors;
  const RowScores<BiasT> rule(call, batch, head, row);
  const bool products = lse < kLseBeyondProducts && lse > -kLseBeyondProducts;
  const auto weight = [](Vec difference) {
    return Isa::template exp2<5>(Isa::mul(difference, Isa::set1(algorithm::kLog2E)));
  };
  Vec max = Isa::set1(-__builtin_inff()), sum = Isa::zero();
  for (int64_t key = rule.first; key < rule.end; key += Isa::kLanes) {
    alignas(64) float raw[Isa::kLanes] = {};
    if (products) row_products(call, batch, head, row, key, rule.end, raw);
    const Vec score = rule.template scores<Isa>(call, Isa::load(raw), key, rule.end);
    const Vec top = Isa::max(max, score), offset = Isa::replace_minus_infinity(top, Isa::zero());
    sum = Isa::add(Isa::mul(sum, weight(Isa::sub(max, offset))), weight(Isa::sub(score, offset)));
    max = top;
  }
  const float sink = sink_of(p, tensors, head), of_keys = Isa::reduce_max(max),
              top = of_keys > sink ? of_keys : sink;
  const float keys = Isa::reduce_add(Isa::mul(sum, weight(Isa::sub(max, Isa::set1(top)))));
  const float log2_sum = __builtin_log2f(keys + __builtin_exp2f((sink - top) * algorithm::kLog2E));
  if (!(top + log2_sum * algorithm::kLn2 >= lse - __builtin_fabsf(lse) * kLseRounding))
    return {lse, 0.0F};
  return {top, log2_sum};
}

template <class Isa>
FULMEN_INLINE RowBase row_base(const BackwardCall& call, int64_t batch, int64_t head, int64_t row,
                               float lse, RowProducts row_products) {
  const float size = __builtin_fabsf(lse);
  // Functions' scores are not computed a row at a time.
  const bool functions = call.problem->functions.any() || call.problem->has_block_mask();
  if (call.scale.units != algorithm::ScoreUnits::natural || functions || !(size > kRoundedLse) ||
      size == __builtin_inff())
    return {lse, 0.0F};
  // Natural units are those of a bias of fp32 or bf16.
  if (call.problem->bias.dtype == DType::bf16)
    return row_base_of<Isa, Bf16>(call, batch, head, row, lse, row_products);
  return row_base_of<Isa, float>(call, batch, head, row, lse, row_products);
}

}  // namespace fulmen::cpu
