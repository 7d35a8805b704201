// Merges what forward/decode.h, decode_tma.h or decode_portable.h left of each split: a workgroup a query row. Waves take splits in
// turn, some at a time whose memory is in flight at once, then merge through LDS: the order is always the same, so are the bits.
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kLaneDims = (kHeadDimV + kWaveSize - 1) / kWaveSize;
// Splits of a wave whose loads are in flight at once.
constexpr int kAtOnce = kLaneDims <= 4 ? 8 : 4;

// LDS, in floats: each wave's maximum and sum, then its outputs.
constexpr int kSumsAt = kWaves;
constexpr int kOutputsAt = 2 * kWaves;  // [kWaves][kHeadDimV]
static_assert(kLdsBytes == 4 * (kOutputsAt + kWaves * kHeadDimV), "combine: the host reserves the LDS that waves merge in");

// Sums relative to a maximum, of which a lane has every kWaveSize-th dim.
struct Part {
  float max = -kInfinity, sum = 0, out[kLaneDims] = {};

  FULMEN_DEVICE static float offset(float max) { return max == -kInfinity ? 0.0F : max; }
  // From now on relative to `most`, which is no smaller.
  FULMEN_DEVICE void move_to(float most) {
    const float factor = exp2(max - offset(most));
    sum *= factor;
#pragma unroll
    for (int n = 0; n < kLaneDims; ++n) out[n] *= factor;
    max = most;
  }
  FULMEN_DEVICE void add(const Part& other) {
    const float weight = exp2(other.max - offset(max));
    sum += weight * other.sum;
#pragma unroll
    for (int n = 0; n < kLaneDims; ++n) out[n] += weight * other.out[n];
  }
};

struct SplitParts {
  const ForwardArguments& a;
  Int64 rows, row;

  // Nothing, where there is no such split.
  FULMEN_DEVICE Part load(int split) const {
    const bool there = split < a.num_splits;
    const Int64 at = (there ? split : a.num_splits - 1) * rows + row;
    Part part;
    const float max = global_load(a.partial_max + at), sum = global_load(a.partial_sum + at);
    part.max = there ? max : -kInfinity;
    part.sum = there ? sum : 0.0F;
#pragma unroll
    for (int n = 0; n < kLaneDims; ++n) {
      const int dim = n * kWaveSize + lane_id();
      const float out = global_load(a.partial_out + at * a.head_dim_v + (dim < a.head_dim_v ? dim : 0));
      part.out[n] = there ? out : 0.0F;
    }
    return part;
  }
};

FULMEN_DEVICE void leave_in_lds(const Part& part) {
  const int wave = wave_id();
  if (lane_id() == 0) {
    lds_store(4 * wave, part.max);
    lds_store(4 * (kSumsAt + wave), part.sum);
  }
#pragma unroll
  for (int n = 0; n < kLaneDims; ++n) {
    const int dim = n * kWaveSize + lane_id();
    if (kHeadDimV % kWaveSize == 0 || dim < kHeadDimV) lds_store(4 * (kOutputsAt + wave * kHeadDimV + dim), part.out[n]);
  }
}

FULMEN_DEVICE void combine(const ForwardArguments& call) {
  grid_dependency_wait();
  const Int64 row_id = workgroup_id();
  const Int64 i = row_id % call.seqlen_q, head = row_id / call.seqlen_q % call.num_heads;
  const Int64 batch = row_id / call.seqlen_q / call.num_heads;
  const ForwardArguments& a = sequence_of(call, batch);
  if (kVariable && i >= a.seqlen_q) return;
  const SplitParts splits{a, static_cast<Int64>(call.batch) * call.num_heads * call.seqlen_q, row_id};
  Part mine;
  for (int first = wave_id(); first < a.num_splits; first += kWaves * kAtOnce) {
    Part parts[kAtOnce];
    float most = mine.max;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) parts[n] = splits.load(first + n * kWaves);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) most = larger(most, parts[n].max);
    mine.move_to(most);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) mine.add(parts[n]);
  }
  leave_in_lds(mine);
  barrier();
  float max = -kInfinity, sum = 0, weight[kWaves];
#pragma unroll
  for (int w = 0; w < kWaves; ++w) max = larger(max, lds_load<float>(4 * w));
#pragma unroll
  for (int w = 0; w < kWaves; ++w) {
    weight[w] = exp2(lds_load<float>(4 * w) - Part::offset(max));
    sum += weight[w] * lds_load<float>(4 * (kSumsAt + w));
  }
  const RowEnd end = end_row(a, head, max, sum);
  auto* out = const_cast<Element*>(at<Element>(a.out, batch, i, head));
  for (int d = thread_id(); d < a.head_dim_v; d += kWorkgroup) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWaves; ++w) value += weight[w] * lds_load<float>(4 * (kOutputsAt + w * kHeadDimV + d));
    global_store(out + d, from_float<Element>(value * end.output_factor));
  }
  if (a.lse != nullptr && thread_id() == 0) {
    global_store(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row, end.lse);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::combine)
