// What ends a row: the factor that normalises its output, its LSE, and the sink.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// The factor that normalises a row's output, 1 / sum, and its LSE; a sink is one more score without
// a value.
struct RowEnd {
  float factor;
  float lse;
};
FULMEN_INLINE RowEnd finish_row(float max, float sum, algorithm::ScoreUnits units, bool has_sink,
                                float sink) {
  constexpr float kMinusInfinity = -__builtin_inff();
  const bool natural = units == algorithm::ScoreUnits::natural;
  if (!natural) sink *= algorithm::kLog2E;
  if (has_sink && sink != kMinusInfinity) {
    const float to_log2 = natural ? algorithm::kLog2E : 1.0F;
    const float top = max > sink ? max : sink;
    const float weight = max == kMinusInfinity ? 0.0F : __builtin_exp2f((max - top) * to_log2);
    const float total = sum * weight + __builtin_exp2f((sink - top) * to_log2);
    const float log_total = __builtin_log2f(total);
    return {weight / total,
            natural ? top + log_total * algorithm::kLn2 : (top + log_total) * algorithm::kLn2};
  }
  if (sum == 0.0F) return {0.0F, kMinusInfinity};
  return {1.0F / sum, (natural ? max : max * algorithm::kLn2) + __builtin_logf(sum)};
}

FULMEN_INLINE float sink_of(const Problem& problem, const AttentionTensors& tensors, int64_t head) {
  return problem.sinks.present ? *element<const float>(tensors.sinks, problem.sinks, 0, 0, 0, head)
                               : -__builtin_inff();
}

// factor[rows] from the rows' maxima and sums; writes the LSE where the problem wants it.
template <class Isa>
__attribute__((noinline)) void finish_rows(const Problem& problem, const AttentionTensors& tensors,
                                           int64_t batch, int64_t head, int64_t row, int rows,
                                           const float* max, const float* sum,
                                           algorithm::ScoreUnits units, float* factor) {
  if (problem.sinks.present || problem.lse.present) {
    const float sink = sink_of(problem, tensors, head);
    float* lse =
        problem.lse.present ? element<float>(tensors.lse, problem.lse, batch, head, row) : nullptr;
    for (int i = 0; i < rows; ++i) {
      const RowEnd end = finish_row(max[i], sum[i], units, problem.sinks.present, sink);
      factor[i] = end.factor;
      if (lse != nullptr) lse[i * problem.lse.strides[2]] = end.lse;
    }
    return;
  }
  for (int i = 0; i < rows; i += Isa::kLanes) {
    const auto total = Isa::load(sum + i);
    const auto inverse = Isa::div(Isa::set1(1.0F), total);
    // total > 0, or NaN, which stays: only an empty row gives 0.
    Isa::store(factor + i,
               Isa::select_less(Isa::zero(), total, inverse,
                                Isa::select_less(total, Isa::set1(1.0F), Isa::zero(), inverse)));
  }
}

}  // namespace fulmen::cpu
