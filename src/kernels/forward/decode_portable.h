// Forward for few queries without matrix instructions: any dtype (computed in fp32), any head_dim, any chip. Reading K and V is the
// work. A workgroup owns kBlockM rows - the query heads of a KV head are packed into them - and a split of the keys. Lanes lie
// along the dims; waves take kBlockN keys in turn, and merge at the end through LDS:
//
//   for each step of a wave:   S[kBlockM, kBlockN] = Q K^T     every lane's products of its dims, summed over the wave
//                              O[kBlockM, kHeadDimV] += P V    of its dims
//
// Registers of a lane: Q, O, and a step's K and V. With one split the result is final, else forward/decode_combine.h merges the
// splits.
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kLaneDims = kHeadDim / kWaveSize, kLaneDimsV = kHeadDimV / kWaveSize;
static_assert(kHeadDim % kWaveSize == 0 && kHeadDimV % kWaveSize == 0, "decode_portable: lanes have whole dims");

// LDS, in floats: each wave's maxima and sums, then its outputs.
constexpr int kMaximaAt = 0;                      // [kWaves][kBlockM]
constexpr int kSumsAt = kWaves * kBlockM;         // [kWaves][kBlockM]
constexpr int kOutputsAt = 2 * kWaves * kBlockM;  // [kWaves][kBlockM][kHeadDimV]
static_assert(kLdsBytes == 4 * (kOutputsAt + kWaves * kBlockM * kHeadDimV),
              "decode_portable: the host reserves the LDS that waves merge in");

// The sum over a wave's lanes, in all of them.
FULMEN_DEVICE float over_wave(float x) {
#pragma unroll
  for (int mask = 1; mask < kWaveSize; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

// Dim n of a lane's.
FULMEN_DEVICE int lane_dim(int n) { return n * kWaveSize + lane_id(); }

// A lane's dims of a row; zeros beyond the row's end.
template <int kDims, class T>
FULMEN_DEVICE void load_row(const T* row, int dims, float (&value)[kDims]) {
#pragma unroll
  for (int n = 0; n < kDims; ++n) value[n] = lane_dim(n) < dims ? to_float(global_load(row + lane_dim(n))) : 0.0F;
}

// What a workgroup has: rows of a KV head, query after query, and a split of its keys.
struct Place {
  int split, kv_head, batch, first_row;

  FULMEN_DEVICE static Place of(const ForwardArguments& a) {
    const Int64 id = workgroup_id(), tile = id / a.num_splits;
    return {static_cast<int>(id % a.num_splits), static_cast<int>(tile / a.row_tiles % a.num_kv_heads),
            static_cast<int>(tile / a.row_tiles / a.num_kv_heads), static_cast<int>(tile % a.row_tiles) * kBlockM};
  }
};

// Rows of a KV head: few (launch/decode_portable.cpp), so that an int has room for them.
FULMEN_DEVICE int rows_of(const ForwardArguments& a) { return static_cast<int>(a.seqlen_q) * a.group_size; }

// A row of a KV head. Rows beyond the last repeat it: what they give is not stored.
struct Row {
  int query, head;

  FULMEN_DEVICE static Row of(const ForwardArguments& a, int kv_head, int row) {
    row = row < rows_of(a) ? row : rows_of(a) - 1;
    return {row / a.group_size, kv_head * a.group_size + row % a.group_size};
  }
};

// What a wave keeps of its rows, relative to a maximum in base-2 units.
struct WaveRows {
  float max[kBlockM], sum[kBlockM], out[kBlockM][kLaneDimsV];
};

struct WaveTask {
  const ForwardArguments& a;
  Place place;
  float query[kBlockM][kLaneDims];

  // The score of row r and key j, of their q.k; -infinity where the row may not attend the key. What rows need for it is computed
  // again in each step: kept from step to step, the addresses of 8 rows would spill scalar registers.
  FULMEN_DEVICE float score(int r, Int64 step, Int64 j, Int64 end, float dot) const {
    const ForwardArguments& now = again(a, step);
    const Row row = Row::of(now, place.kv_head, recompute(place.first_row, step) + r);
    if (j >= end || !in_band(now, row.query, j)) return -kInfinity;
    const ScoreRow modifiers = ScoreRow::of(now, place.batch, row.head, row.query);
    float bias = 0;
    if constexpr (kBias) bias = kLog2E * to_float(global_load(modifiers.bias + j));
    if constexpr (kKeepMask) {
      if (global_load(modifiers.keep_mask + j) == 0) return -kInfinity;
    }
    return modifiers.finish(now, dot, bias, modifiers.distance(j));
  }

  // Keys [first_key, first_key + kBlockN); those from `end` on repeat the last one, with no weight.
  FULMEN_DEVICE void step(const KvElement* k, const KvElement* v, Int64 first_key, Int64 end, WaveRows& rows) const {
    float key[kBlockN][kLaneDims], value[kBlockN][kLaneDimsV], score_of[kBlockM][kBlockN];
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
      const Int64 j = first_key + c < end ? first_key + c : end - 1;
      load_row(key_row(a, a.k, k, j), a.head_dim, key[c]);
      load_row(key_row(a, a.v, v, j), a.head_dim_v, value[c]);
    }
    bool attended[kBlockN] = {};
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) {
#pragma unroll
      for (int c = 0; c < kBlockN; ++c) {
        float dot = 0;
#pragma unroll
        for (int n = 0; n < kLaneDims; ++n) dot += query[r][n] * key[c][n];
        score_of[r][c] = score(r, first_key, first_key + c, end, over_wave(dot));
        attended[c] = attended[c] || score_of[r][c] != -kInfinity;
      }
    }
    // What no row attends may be NaN.
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
#pragma unroll
      for (int n = 0; n < kLaneDimsV; ++n) value[c][n] = attended[c] ? value[c][n] : 0.0F;
    }
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) accumulate(score_of[r], value, rows.max[r], rows.sum[r], rows.out[r]);
  }

  FULMEN_DEVICE static void accumulate(const float (&score)[kBlockN], const float (&value)[kBlockN][kLaneDimsV], float& max,
                                       float& sum, float (&out)[kLaneDimsV]) {
    float new_max = max;
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) new_max = larger(new_max, score[c]);
    const float offset = new_max == -kInfinity ? 0.0F : new_max;
    const float rescale = exp2(max - offset);
    max = new_max;
    sum *= rescale;
#pragma unroll
    for (int n = 0; n < kLaneDimsV; ++n) out[n] *= rescale;
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
      const float p = exp2(score[c] - offset);
      sum += p;
#pragma unroll
      for (int n = 0; n < kLaneDimsV; ++n) out[n] += p * value[c][n];
    }
  }
};

FULMEN_DEVICE void leave_in_lds(const WaveRows& rows) {
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) {
    const int row = wave_id() * kBlockM + r;
    if (lane_id() == 0) {
      lds_store(4 * (kMaximaAt + row), rows.max[r]);
      lds_store(4 * (kSumsAt + row), rows.sum[r]);
    }
#pragma unroll
    for (int n = 0; n < kLaneDimsV; ++n) lds_store(4 * (kOutputsAt + row * kHeadDimV + lane_dim(n)), rows.out[r][n]);
  }
}

// Row r of all waves becomes one, and goes to memory: the result, or a split's part of it.
FULMEN_DEVICE void merge_row(const ForwardArguments& call, const ForwardArguments& a, const Place& place, int r) {
  const Row row = Row::of(a, place.kv_head, place.first_row + r);
  float max = -kInfinity, sum = 0, weight[kWaves];
#pragma unroll
  for (int w = 0; w < kWaves; ++w) max = larger(max, lds_load<float>(4 * (kMaximaAt + w * kBlockM + r)));
  const float offset = max == -kInfinity ? 0.0F : max;
#pragma unroll
  for (int w = 0; w < kWaves; ++w) {
    weight[w] = exp2(lds_load<float>(4 * (kMaximaAt + w * kBlockM + r)) - offset);
    sum += weight[w] * lds_load<float>(4 * (kSumsAt + w * kBlockM + r));
  }
  const Int64 rows = static_cast<Int64>(call.batch) * call.num_heads * call.seqlen_q;
  const Int64 part = place.split * rows + (static_cast<Int64>(place.batch) * call.num_heads + row.head) * call.seqlen_q + row.query;
  const RowEnd end = end_row(a, row.head, max, sum);
  auto* out = const_cast<Element*>(at<Element>(a.out, place.batch, row.query, row.head));
  for (int d = thread_id(); d < a.head_dim_v; d += kWorkgroup) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWaves; ++w) {
      value += weight[w] * lds_load<float>(4 * (kOutputsAt + (w * kBlockM + r) * kHeadDimV + d));
    }
    if constexpr (kSplits) {
      global_store(a.partial_out + part * a.head_dim_v + d, value);
    } else {
      global_store(out + d, from_float<Element>(value * end.output_factor));
    }
  }
  if (thread_id() != 0) return;
  if constexpr (kSplits) {
    global_store(a.partial_max + part, max);
    global_store(a.partial_sum + part, sum);
  } else if (a.lse != nullptr) {
    global_store(a.lse + place.batch * a.lse_batch + row.head * a.lse_head + row.query * a.lse_row, end.lse);
  }
}

FULMEN_DEVICE void merge(const ForwardArguments& arguments) {
  // All again: nothing of it has to stay in registers while keys stream.
  const ForwardArguments& call = reload(arguments, workgroup_id());
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  for (int r = 0; r < kBlockM && place.first_row + r < rows_of(a); ++r) merge_row(call, a, place, r);
}

FULMEN_DEVICE void decode_portable(const ForwardArguments& call) {
  grid_dependency_wait();  // decode_combine.h is launched early
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  if (kVariable && place.first_row >= rows_of(a)) return;
  const Int64 first_query = Row::of(a, place.kv_head, place.first_row).query;
  const Int64 query_end = Row::of(a, place.kv_head, place.first_row + kBlockM - 1).query + 1;
  const algorithm::KeyRange band = band_of(a).any(first_query, query_end);
  // Splits begin at fixed keys, whatever the band: those outside have nothing to do.
  const Int64 split_begin = place.split * a.split_keys, split_end = split_begin + a.split_keys;
  const Int64 begin = band.begin > split_begin ? band.begin : split_begin, end = band.end < split_end ? band.end : split_end;

  WaveTask task{a, place, {}};
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) {
    const Row row = Row::of(a, place.kv_head, place.first_row + r);
    load_row(at<Element>(a.q, place.batch, row.query, row.head), a.head_dim, task.query[r]);
  }
  WaveRows rows = {};
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) rows.max[r] = -kInfinity;
  const KvElement* k = head_rows(a.k, place.batch, place.kv_head);
  const KvElement* v = head_rows(a.v, place.batch, place.kv_head);
  for (Int64 key = begin + wave_id() * kBlockN; key < end; key += kWaves * kBlockN) task.step(k, v, key, end, rows);
  leave_in_lds(rows);
  barrier();
  merge(call);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::decode_portable)
