// The end of decode: the splits of the keys become one result.
#pragma once

#include "algorithm/online_softmax.h"
#include "cpu/decode/call.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

// Merges the statistics of a row's splits, in order: writes its LSE, leaves each split's weight in
// the place of its maximum, and returns what normalises the sum of the weighted outputs.
template <class Isa>
__attribute__((noinline)) float combine_row(const ForwardCall& call, const DecodeTask& task,
                                            const DecodeScratch& layout, int slot, int64_t head,
                                            int64_t query) {
  using Vec = typename Isa::Vec;
  using algorithm::ScoreUnits;
  const Problem& problem = *call.problem;
  const int64_t max_at = layout.state, sum_at = max_at + layout.state_stride;
  const auto partial = [&](int split) { return task.partials + split * call.partial_stride; };
  float max = -__builtin_inff();
  for (int split = 0; split < call.num_splits; ++split) {
    const float other = partial(split)[max_at + slot];
    max = other > max || other != other ? other : max;
  }
  // Nobody reads the maxima again for this row.
  float sum = 0;
  for (int split = 0; split < call.num_splits; ++split) {
    float* part_max = partial(split) + max_at + slot;
    alignas(64) float lanes[Isa::kLanes];
    const Vec part = Isa::set1(*part_max), all = Isa::set1(max);
    Isa::store(lanes, call.scale.units == ScoreUnits::natural
                          ? algorithm::combine_weight<Isa, ScoreUnits::natural>(part, all)
                          : algorithm::combine_weight<Isa, ScoreUnits::base2>(part, all));
    *part_max = lanes[0];
    sum += lanes[0] * partial(split)[sum_at + slot];
  }
  if (!problem.sinks.present && !problem.lse.present) return sum == 0.0F ? 0.0F : 1.0F / sum;
  const RowEnd end = finish_row(max, sum, call.scale.units, problem.sinks.present,
                                sink_of(problem, *call.tensors, head));
  if (problem.lse.present)
    *element<float>(call.tensors->lse, problem.lse, task.batch, head, query) = end.lse;
  return end.factor;
}

// Merges the splits of a group of KV heads, always in the same order, and writes its rows.
template <class Isa, class T>
void decode_combine(const ForwardCall& call, const DecodeTask& task) {
  using Vec = typename Isa::Vec;
  const Problem& problem = *call.problem;
  const DecodeScratch layout = decode_scratch(call, Isa::kLanes, Isa::kGroup);
  const int rows = decode_rows(problem), head_slots = decode_slots(problem);
  for (int index = 0; index < task.kv_heads * rows; ++index) {
    const int row = index % rows, slot = index / rows * head_slots + row;
    const int64_t head =
        (task.kv_head + index / rows) * problem.group_size() + row / problem.seqlen_q;
    const int64_t query = row % problem.seqlen_q;
    const float factor = combine_row<Isa>(call, task, layout, slot, head, query);
    T* out = element<T>(call.tensors->out, problem.out, task.batch, query, head);
    for (int64_t d = 0; d < problem.head_dim_v; d += Isa::kLanes) {
      Vec total = Isa::zero();
      for (int split = 0; split < call.num_splits; ++split) {
        const float* part = task.partials + split * call.partial_stride;
        total = Isa::fma(Isa::load(part + slot * layout.value_stride + d),
                         Isa::broadcast(part + layout.state + slot), total);
      }
      store_row_part<Isa>(out + d, Isa::mul(total, Isa::set1(factor)), problem.head_dim_v - d);
    }
  }
}

}  // namespace fulmen::cpu
