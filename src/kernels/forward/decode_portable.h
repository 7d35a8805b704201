// Forward for few queries without matrix instructions: any dtype (computed in fp32), any head_dim,
// any chip. Reading K and V is the work. A workgroup owns kBlockM rows - the query heads of a KV
// head are packed into them - and a split of the keys. Lanes lie along the dims; waves take kBlockN
// keys round robin, and merge at the end through LDS. A step of a wave:
//
//   S[kBlockM, kBlockN] = Q K^T        every lane's products of its dims; their sums over the wave
//                                      end in a lane a score
//   P = softmax step of S              that lane's, through the wave's part of the LDS to all lanes
//   O[kBlockM, kHeadDimV] += P V       every lane's dims
//
// Registers of a lane: Q, O, and a step's K and V. With one split the result is final, else
// forward/decode_combine.h merges the splits.
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kLaneDims = kHeadDim / kWaveSize, kLaneDimsV = kHeadDimV / kWaveSize;
constexpr int kScores = kBlockM * kBlockN;  // of a step
static_assert(kBlockN == 4, "decode_portable: a row's probabilities are one vector of LDS");
static_assert(kScores <= kWaveSize && (kScores & (kScores - 1)) == 0,
              "decode_portable: a lane a score");
static_assert(kHeadDim % kWaveSize == 0 && kHeadDimV % kWaveSize == 0,
              "decode_portable: lanes have whole dims");

// LDS, in floats: each wave's maxima and sums, then its outputs.
constexpr int kMaximaAt = 0;                      // [kWaves][kBlockM]
constexpr int kSumsAt = kWaves * kBlockM;         // [kWaves][kBlockM]
constexpr int kOutputsAt = 2 * kWaves * kBlockM;  // [kWaves][kBlockM][kHeadDimV]
static_assert(kLdsBytes == 4 * (kOutputsAt + kWaves * kBlockM * kHeadDimV),
              "decode_portable: the host reserves the LDS that waves merge in");
// While keys stream, a wave's outputs have the probabilities of two steps, and what each row's sums
// are multiplied by.
constexpr int kProbabilities = 0, kRescales = kScores,
              kStepFloats = (kScores + kBlockM + 3) / 4 * 4;
static_assert(2 * kStepFloats <= kBlockM * kHeadDimV && kBlockM * kHeadDimV % 4 == 0,
              "decode_portable: two steps fit");

// Sums each of kCount numbers over the wave and returns the lane's own, number lane_id() % kScores:
// in each step of the recursion a lane gives half of its numbers to the lane that keeps those.
template <int kCount>
FULMEN_DEVICE float own_sum(const float (&x)[kCount]) {
  if constexpr (kCount > 1) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane_id() & kHalf) != 0;
    float kept[kHalf];
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      // A choice of addresses would put the numbers into scratch memory.
      const float low = x[n], high = x[n + kHalf];
      kept[n] = (upper ? high : low) + shuffle_xor(upper ? low : high, kHalf);
    }
    return own_sum<kHalf>(kept);
  } else {
    float sum = x[0];
#pragma unroll
    for (int mask = kScores; mask < kWaveSize; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }
}

// Reductions over the lanes that have a row's keys.
FULMEN_DEVICE float row_max(float x) {
#pragma unroll
  for (int mask = 1; mask < kBlockN; mask *= 2) x = larger(x, shuffle_xor(x, mask));
  return x;
}
FULMEN_DEVICE float row_sum(float x) {
#pragma unroll
  for (int mask = 1; mask < kBlockN; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

// Dim n of a lane's.
FULMEN_DEVICE int lane_dim(int n) { return n * kWaveSize + lane_id(); }

// A lane's dims of a row; zeros beyond the row's end.
template <int kDims, class T>
FULMEN_DEVICE void load_row(const T* row, int dims, float (&value)[kDims]) {
#pragma unroll
  for (int n = 0; n < kDims; ++n)
    value[n] = lane_dim(n) < dims ? to_float(global_load(row + lane_dim(n))) : 0.0F;
}

// What a workgroup has: rows of a KV head, query after query, and a split of its keys.
struct Place {
  int split, kv_head, batch, first_row;

  FULMEN_DEVICE static Place of(const ForwardArguments& a) {
    const Int64 id = workgroup_id(), tile = id / a.num_splits;
    return {static_cast<int>(id % a.num_splits),
            static_cast<int>(tile / a.row_tiles % a.num_kv_heads),
            static_cast<int>(tile / a.row_tiles / a.num_kv_heads),
            static_cast<int>(tile % a.row_tiles) * kBlockM};
  }
};

// Rows of a KV head: few (launch/decode_portable.cpp), so that an int has room for them.
FULMEN_DEVICE int rows_of(const ForwardArguments& a) {
  return static_cast<int>(a.seqlen_q) * a.group_size;
}

// A row of a KV head. Rows beyond the last repeat it: what they give is not stored.
struct Row {
  int query, head;

  FULMEN_DEVICE static Row of(const ForwardArguments& a, int kv_head, int row) {
    row = row < rows_of(a) ? row : rows_of(a) - 1;
    return {row / a.group_size, kv_head * a.group_size + row % a.group_size};
  }
};

// What a lane keeps: of its own score's row a maximum and a sum, and its dims of all rows' outputs.
struct LaneState {
  float max, sum, out[kBlockM][kLaneDimsV];
};

// The score that a lane owns in each step: its row, and which of the step's keys.
struct OwnScore {
  Row row;
  int key;
  ScoreRow modifiers;

  FULMEN_DEVICE static OwnScore of(const ForwardArguments& a, const Place& place) {
    const int own = lane_id() % kScores;
    const Row row = Row::of(a, place.kv_head, place.first_row + own / kBlockN);
    return {row, own % kBlockN, ScoreRow::of(a, place.batch, row.head, row.query)};
  }

  // The score of key j from its q.k, `dot`; -infinity where the row may not attend it.
  FULMEN_DEVICE float finish(const ForwardArguments& a, Int64 j, Int64 end, float dot) const {
    bool attended = j < end && in_band(a, row.query, j);
    if constexpr (kKeepMask) attended = attended && global_load(modifiers.keep_mask + j) != 0;
    float bias = 0;
    if constexpr (kBias)
      bias = attended ? kUnitsOfScore * to_float(global_load(modifiers.bias + j)) : 0.0F;
    return attended ? modifiers.finish(a, dot, bias, modifiers.distance(j)) : -kInfinity;
  }
};

struct WaveTask {
  const ForwardArguments& a;
  OwnScore own;
  float query[kBlockM][kLaneDims];

  // Keys [first_key, first_key + kBlockN); those from `end` on repeat the last one, with no weight.
  // lds: of the step, in floats.
  FULMEN_DEVICE void step(const KvElement* k, const KvElement* v, Int64 first_key, Int64 end,
                          int lds, LaneState& state) const {
    float key[kBlockN][kLaneDims], value[kBlockN][kLaneDimsV], dot[kScores];
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
      const Int64 j = first_key + c < end ? first_key + c : end - 1;
      load_row(key_row(a, k, j), a.head_dim, key[c]);
      load_row(value_row(a, v, j), a.head_dim_v, value[c]);
    }
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) {
#pragma unroll
      for (int c = 0; c < kBlockN; ++c) {
        dot[r * kBlockN + c] = 0;
#pragma unroll
        for (int n = 0; n < kLaneDims; ++n) dot[r * kBlockN + c] += query[r][n] * key[c][n];
      }
    }
    const float score = own.finish(a, first_key + own.key, end, own_sum(dot));
    exponentiate(score, lds, state);
    // What no row attends may be NaN.
    const unsigned long long attended = ballot(score != -kInfinity);
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
      const bool any = (attended & (kLanesOfFirstKey << static_cast<unsigned>(c))) != 0;
#pragma unroll
      for (int n = 0; n < kLaneDimsV; ++n) value[c][n] = any ? value[c][n] : 0.0F;
    }
    wave_barrier();
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) add_values(r, lds, value, state.out[r]);
  }

 private:
  // Every kBlockN-th lane, of those that own a score.
  static constexpr unsigned long long kLanesOfFirstKey = 0x1111111111111111ULL >> (64U - kScores);

  // The lane's probability, and of each row what its sums are multiplied by, to LDS.
  FULMEN_DEVICE static void exponentiate(float score, int lds, LaneState& state) {
    const float new_max = larger(state.max, row_max(score));
    const float offset = new_max == -kInfinity ? 0.0F : new_max;
    const float rescale = exp2(kLog2OfUnit * (state.max - offset)),
                probability = exp2(kLog2OfUnit * (score - offset));
    state.max = new_max;
    state.sum = state.sum * rescale + probability;
    const int own = lane_id();
    if (own < kScores) lds_store(4 * (lds + kProbabilities + own), probability);
    if (own < kScores && own % kBlockN == 0)
      lds_store(4 * (lds + kRescales + own / kBlockN), rescale);
  }

  FULMEN_DEVICE static void add_values(int r, int lds, const float (&value)[kBlockN][kLaneDimsV],
                                       float (&out)[kLaneDimsV]) {
    const auto probability = lds_load<Words<kBlockN>>(4 * (lds + kProbabilities + r * kBlockN));
    const float rescale = lds_load<float>(4 * (lds + kRescales + r));
#pragma unroll
    for (int n = 0; n < kLaneDimsV; ++n) {
      out[n] *= rescale;
#pragma unroll
      for (int c = 0; c < kBlockN; ++c) out[n] += bits_float(probability.word[c]) * value[c][n];
    }
  }
};

FULMEN_DEVICE void leave_in_lds(const LaneState& state) {
  const int own = lane_id(), first_row = wave_id() * kBlockM;
  const float sum = row_sum(state.sum);
  if (own < kScores && own % kBlockN == 0) {
    lds_store(4 * (kMaximaAt + first_row + own / kBlockN), state.max);
    lds_store(4 * (kSumsAt + first_row + own / kBlockN), sum);
  }
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) {
#pragma unroll
    for (int n = 0; n < kLaneDimsV; ++n) {
      lds_store(4 * (kOutputsAt + (first_row + r) * kHeadDimV + lane_dim(n)), state.out[r][n]);
    }
  }
}

// Row r of all waves becomes one, and goes to memory: the result, or a split's part of it.
FULMEN_DEVICE void merge_row(const ForwardArguments& call, const ForwardArguments& a,
                             const Place& place, int r) {
  const Row row = Row::of(a, place.kv_head, place.first_row + r);
  float max = -kInfinity, sum = 0, weight[kWaves];
#pragma unroll
  for (int w = 0; w < kWaves; ++w)
    max = larger(max, lds_load<float>(4 * (kMaximaAt + w * kBlockM + r)));
  const float offset = max == -kInfinity ? 0.0F : max;
#pragma unroll
  for (int w = 0; w < kWaves; ++w) {
    weight[w] = exp2(kLog2OfUnit * (lds_load<float>(4 * (kMaximaAt + w * kBlockM + r)) - offset));
    sum += weight[w] * lds_load<float>(4 * (kSumsAt + w * kBlockM + r));
  }
  const Int64 rows = static_cast<Int64>(call.batch) * call.num_heads * call.seqlen_q;
  const Int64 part = place.split * rows +
                     (static_cast<Int64>(place.batch) * call.num_heads + row.head) * call.seqlen_q +
                     row.query;
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
    global_store(a.lse + place.batch * a.lse_batch + row.head * a.lse_head + row.query * a.lse_row,
                 end.lse);
  }
}

FULMEN_DEVICE void merge(const ForwardArguments& arguments) {
  // All again: nothing of it has to stay in registers while keys stream.
  const ForwardArguments& call = reload(arguments, workgroup_id());
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  for (int r = 0; r < kBlockM && place.first_row + r < rows_of(a); ++r)
    merge_row(call, a, place, r);
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
  const Int64 begin = band.begin > split_begin ? band.begin : split_begin,
              end = band.end < split_end ? band.end : split_end;

  WaveTask task{a, OwnScore::of(a, place), {}};
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) {
    const Row row = Row::of(a, place.kv_head, place.first_row + r);
    load_row(at<Element>(a.q, place.batch, row.query, row.head), a.head_dim, task.query[r]);
  }
  LaneState state = {};
  state.max = -kInfinity;
  const KvElement* k = head_rows(a.k, place.batch, place.kv_head);
  const KvElement* v = head_rows(a.v, place.batch, place.kv_head);
  // Double-buffered: a step does not overwrite what a lane still reads of the step before.
  const int lds = kOutputsAt + wave_id() * kBlockM * kHeadDimV;
  int other = 0;
  for (Int64 key = begin + wave_id() * kBlockN; key < end; key += kWaves * kBlockN) {
    task.step(k, v, key, end, lds + other, state);
    other = kStepFloats - other;
  }
  wave_barrier();
  leave_in_lds(state);
  barrier();
  merge(call);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::decode_portable)
