// The steps of the backward pass, as the kernel's runner asks for them.
#pragma once

#include "algorithm/online_softmax.h"
#include "cpu/backward/bias.h"
#include "cpu/backward/call.h"
#include "cpu/backward/row_base.h"
#include "cpu/backward/vector.h"

namespace fulmen::cpu {

// One task of step attend: a part of a set's units, or a run of sets that are one unit each, one
// after the other; and one split of their keys.
template <class Isa, class T, class Task>
void attend_units(const BackwardCall& call, int64_t task, int worker, float* scratch) {
  const BackwardCut& cut = call.cut;
  const bool run = cut.run_units > 1;
  const int64_t split = run ? 0 : task % cut.num_splits;
  const int64_t part = run ? 0 : task / cut.num_splits % cut.bias_parts;
  const int64_t set = run ? task * cut.run_units : task / (cut.num_splits * cut.bias_parts);
  const int64_t begin = run ? 0 : cut.set_units * part / cut.bias_parts;
  const int64_t run_end = cut.sets - set < cut.run_units ? cut.sets - set : cut.run_units;
  const int64_t end = run ? run_end : cut.set_units * (part + 1) / cut.bias_parts;
  const auto unit_at = [&](int64_t index) __attribute__((always_inline)) {
    BackwardUnit unit = run ? unit_of(call, set + index, 0) : unit_of(call, set, index);
    unit.part = part;
    unit.split = split;
    return unit;
  };
  for (int64_t index = begin; index < end; ++index) {
    const BackwardUnit unit = unit_at(index);
    const BackwardUnit next = unit_at(index + 1 < end ? index + 1 : index);
    const int64_t number =
        (unit.batch * call.problem->num_kv_heads + unit.kv_head) * cut.num_splits + split;
    float* sums = call.sums == nullptr
                      ? nullptr
                      : call.sums + (call.unit_slots > 0 ? number : worker) * call.slot_floats;
    Task(call, unit, sums, scratch).run(run || index == begin, index + 1 < end ? &next : nullptr);
  }
  if (call.stream_output) end_streams<Isa>();  // not after each gradient: it waits for all of them
}

// A query tile of dQ from the sums of the splits, in order. Tiles are counted within a sequence,
// then its heads, then sequences.
template <class Isa, class T>
void reduce_dq(const BackwardCall& call, int64_t task) {
  const Problem& p = *call.problem;
  const BackwardCut& cut = call.cut;
  const QuerySums layout = query_sums(p, Isa::kLanes);
  const int64_t tiles = layout.rows / kBlockM;
  const int64_t first = task % tiles * kBlockM, head = task / tiles % p.num_heads,
                batch = task / tiles / p.num_heads;
  const int64_t last = p.seqlen_q - first < kBlockM ? p.seqlen_q : first + kBlockM;
  const int64_t unit = batch * p.num_kv_heads + head / p.group_size();
  const float* sums = call.sums + unit * cut.num_splits * call.slot_floats + layout.dq +
                      (head % p.group_size() * layout.rows + first) * layout.stride;
  const algorithm::KeyRange keys = call.band.any(first, last);
  // Only these splits have written the tile.
  const int64_t from = keys.begin / cut.split_keys;
  const int64_t to = keys.begin < keys.end ? (keys.end - 1) / cut.split_keys + 1 : from;
  const auto scale = Isa::set1(p.softmax_scale);
  for (int64_t row = first; row < last; ++row) {
    T* out = element<T>(call.tensors->dq, p.dq, batch, row, head);
    for (int64_t d = 0; d < p.head_dim; d += Isa::kLanes) {
      auto sum = Isa::zero();
      for (int64_t split = from; split < to; ++split) {
        sum = Isa::add(
            sum, Isa::load(sums + split * call.slot_floats + (row - first) * layout.stride + d));
      }
      store_row_part<Isa>(out + d, Isa::mul(sum, scale), p.head_dim - d);
    }
  }
}

// dsink = - sum over sequences and queries of e^(sink - lse) delta.
template <class Isa, class T>
void sum_sinks(const BackwardCall& call, int64_t head) {
  const Problem& p = *call.problem;
  const AttentionTensors& tensors = *call.tensors;
  const float sink = *element<const float>(tensors.sinks, p.sinks, 0, 0, 0, head);
  constexpr float kMinusInfinity = -__builtin_inff();
  double sum = 0;  // of many rows of either sign
  const int64_t first = call.sink_batch < 0 ? 0 : call.sink_batch,
                end = call.sink_batch < 0 ? p.batch : first + 1;
  for (int64_t batch = first; batch < end && sink != kMinusInfinity; ++batch) {
    for (int64_t row = 0; row < p.seqlen_q; ++row) {
      const float lse = *element<const float>(tensors.lse, p.lse, batch, head, row);
      if (lse == kMinusInfinity) continue;
      const RowBase base = row_base<Isa>(call, batch, head, row, lse, row_products<Isa, T>);
      const float weight = __builtin_exp2f((sink - base.max) * algorithm::kLog2E - base.log2_sum);
      sum -= static_cast<double>(weight) *
             static_cast<double>(row_delta<Isa, T>(p, tensors, batch, head, row));
    }
  }
  float* dsink = element<float>(tensors.dsinks, p.dsinks, 0, 0, 0, head);
  *dsink = static_cast<float>(call.sink_batch > 0 ? static_cast<double>(*dsink) + sum : sum);
}

template <class Isa, class T, class Task = BackwardTask<Isa, T>>
void backward_step(const BackwardCall& call, BackwardStep step, int64_t task, int worker,
                   float* scratch) {
  const Problem& p = *call.problem;
  switch (step) {
    case BackwardStep::attend:
      return attend_units<Isa, T, Task>(call, task, worker, scratch);
    case BackwardStep::reduce_dq:
      return reduce_dq<Isa, T>(call, task);
    case BackwardStep::reduce_bias: {
      const int64_t rows = call.cut.sums_queries ? 1 : p.seqlen_q,
                    heads = call.cut.sums_heads ? 1 : p.num_heads;
      return reduce_bias_row<Isa>(call, task / rows / heads, task / rows % heads, task % rows);
    }
    case BackwardStep::sinks:
      return sum_sinks<Isa, T>(call, task);
  }
}

}  // namespace fulmen::cpu
