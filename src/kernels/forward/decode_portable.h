// Forward for few queries without matrix instructions: any dtype, any head_dim, any chip. Reading K
// and V is the work. A workgroup owns kBlockM rows - the query heads of a KV head are packed into
// them - and a split of the keys. A wave is cut into groups of lanes, which have a key each: a lane
// has 8 dims of it, or several times 8. Waves take steps round robin, kBlockN keys
// a group, and merge at the end through LDS. A step of a group:
//
//   S[kBlockM, kBlockN] = Q K^T        every lane's products of its dims; a score's sum over the
//                                      group ends in one of its lanes
//   P = softmax step of S              that lane's, through the wave's part of the LDS to the group
//   O[kBlockM, kHeadDimV] += P V       every lane's dims
//
// Registers of a lane: Q, O, and a step's K and V. With one split the result is final, else
// forward/decode_combine.h merges the splits.
#include "core/scores.h"
#include "tile/kept_steps.h"
#include "tile/kv_rows.h"
#include "tile/neighbours.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kWidest = kHeadDim > kHeadDimV ? kHeadDim : kHeadDimV;
constexpr int kGroup = kWidest / kPieceDims < kWaveSize ? kWidest / kPieceDims : kWaveSize;
constexpr int kGroups = kWaveSize / kGroup;
constexpr int kGroupDims = kGroup * kPieceDims;  // of a group's pieces side by side
constexpr int kKeyPieces = kHeadDim / kGroupDims, kValuePieces = kHeadDimV / kGroupDims;
constexpr int kStepKeys = kGroups * kBlockN;  // of a wave
constexpr int kScores = kBlockM * kBlockN;    // of a group's step
// Scores of a lane: neighbouring keys of one row. kOwners lanes have them all.
constexpr int kOwn = kScores > kGroup ? kScores / kGroup : 1, kOwners = kScores / kOwn;
constexpr int kSharers = kBlockN / kOwn;  // lanes that have a row's keys
static_assert(kBlockN == 4, "decode_portable: a row's probabilities are one vector of LDS");
static_assert(kHeadDim % kGroupDims == 0 && kHeadDimV % kGroupDims == 0,
              "decode_portable: lanes have whole pieces of K and of V");
static_assert(kGroups >= 1 && kGroups * kGroup == kWaveSize && kOwn <= kBlockN,
              "decode_portable: groups fill a wave, and a lane's scores are of one row");

// A step's values are loaded once its keys need no registers any more.
constexpr bool kValuesWait = (kBlockM > 4 || kKeyPieces > 1) && !kPairs;

// LDS, in floats: each wave's maxima and sums, then its outputs.
constexpr int kMaximaAt = 0;                      // [kWaves][kBlockM]
constexpr int kSumsAt = kWaves * kBlockM;         // [kWaves][kBlockM]
constexpr int kOutputsAt = 2 * kWaves * kBlockM;  // [kWaves][kWaveFloats]
// While keys stream, a wave's outputs have the probabilities of two steps of each group, and what
// each row's sums are multiplied by. A row's probabilities are read as one vector, which lies at a
// multiple of its size.
constexpr int kProbabilities = 0, kRescales = kGroups * kScores,
              kStepFloats = (kGroups * (kScores + kBlockM) + kBlockN - 1) / kBlockN * kBlockN;
constexpr int kWaveFloats =
    kBlockM * kHeadDimV > 2 * kStepFloats ? kBlockM* kHeadDimV : 2 * kStepFloats;
static_assert(kOutputsAt % kBlockN == 0 && kWaveFloats % kBlockN == 0,
              "decode_portable: vectors of LDS lie at multiples of their size");
static_assert(kLdsBytes == 4 * (kOutputsAt + kWaves * kWaveFloats),
              "decode_portable: the host reserves the LDS that waves merge in");

FULMEN_DEVICE int group_lane() { return lane_id() % kGroup; }
FULMEN_DEVICE int group_id() { return lane_id() / kGroup; }
// The first dim of a lane's piece.
FULMEN_DEVICE int dim_of(int piece) { return kPieceDims * group_lane() + kGroupDims * piece; }
// The first of a lane's scores, of [kBlockM][kBlockN].
FULMEN_DEVICE int own_score() { return group_lane() * kOwn % kScores; }
FULMEN_DEVICE bool owns_scores() { return group_lane() < kOwners; }

// Sums each of kCount numbers over the group. The lane's own ones remain: in each step of the
// recursion a lane gives half of its numbers to the lane that keeps those.
template <int kCount>
FULMEN_DEVICE void own_sums(const float (&x)[kCount], float (&own)[kOwn]) {
  if constexpr (kCount > kOwn) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane_id() & (kHalf / kOwn)) != 0;
    float kept[kHalf];
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      // A choice of addresses would put the numbers into scratch memory.
      const float low = x[n], high = x[n + kHalf];
      kept[n] = (upper ? high : low) + shuffle_xor(upper ? low : high, kHalf / kOwn);
    }
    own_sums<kHalf>(kept, own);
  } else {
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
      own[m] = x[m];
#pragma unroll
      for (int mask = kOwners; mask < kGroup; mask *= 2) own[m] += shuffle_xor(own[m], mask);
    }
  }
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

// What a lane keeps: of its own scores' row a reference (as tile/square_softmax.h) and a sum, of
// the group's keys; its dims of all rows' outputs.
struct LaneState {
  float reference, sum, out[kValuePieces][kBlockM][kPieceDims];
};

// The scores that a lane owns in each step: their row, and the first one's key.
struct OwnScores {
  Row row;
  int key;
  ScoreRow modifiers;

  FULMEN_DEVICE static OwnScores of(const ForwardArguments& a, const Place& place) {
    const int own = own_score();
    const Row row = Row::of(a, place.kv_head, place.first_row + own / kBlockN);
    return {row, own % kBlockN, ScoreRow::of(a, place.batch, row.head, row.query)};
  }

  // The score of key j from its q.k, `dot`; -infinity where the row may not attend it.
  FULMEN_DEVICE float finish(const ForwardArguments& a, Int64 j, Int64 end, float dot) const {
    bool attended = j < end && in_band(a, row.query, j);
    if constexpr (kKeepMask) attended = attended && modifiers.keeps(j);
    float bias = 0;
    if constexpr (kBias)
      bias = attended ? kUnitsOfScore * to_float(global_load(modifiers.bias + j)) : 0.0F;
    return attended ? modifiers.finish(a, dot, bias, modifiers.distance(j), j) : -kInfinity;
  }
};

struct WaveTask {
  const ForwardArguments& a;
  OwnScores own;
  KvHead<false> k;
  KvHead<true> v;
  PieceOfWords query[kBlockM][kKeyPieces];

  // Keys [first_key, first_key + kStepKeys); those from `end` on repeat the last one, with no
  // weight. lds: of the step, in floats.
  FULMEN_DEVICE void step(Int64 first_key, Int64 end, int lds, LaneState& state) const {
    const int last = at_most(end - first_key, kStepKeys) - 1;
    const auto keys = kv_rows<false>(a, k, first_key, last);
    const auto values = kv_rows<true>(a, v, first_key, last);
    PieceOfWords key[kBlockN][kKeyPieces], value[kValuePieces][kBlockN];
    const auto load_values = [&] {
#pragma unroll
      for (int c = 0; c < kBlockN; ++c) {
        const auto row = values.template row<true>(key_of(c));
#pragma unroll
        for (int n = 0; n < kValuePieces; ++n)
          load_words(row, dim_of(n), a.head_dim_v, value[n][c]);
      }
    };
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
      const auto row = keys.template row<true>(key_of(c));
#pragma unroll
      for (int n = 0; n < kKeyPieces; ++n) load_words(row, dim_of(n), a.head_dim, key[c][n]);
    }
    if constexpr (!kValuesWait) load_values();
    float dot[kScores], score[kOwn];
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) {
#pragma unroll
      for (int c = 0; c < kBlockN; ++c) {
        float& sum = dot[r * kBlockN + c];
        sum = 0;
#pragma unroll
        for (int n = 0; n < kKeyPieces; ++n) {
#pragma unroll
          for (int w = 0; w < kPieceWords; ++w)
            sum = multiply_add(query[r][n][w], key[c][n][w], sum);
        }
      }
    }
    own_sums(dot, score);
    if constexpr (kValuesWait) {
      schedule_fence();
      load_values();
    }
#pragma unroll
    for (int m = 0; m < kOwn; ++m)
      score[m] = own.finish(a, first_key + key_of(own.key + m), end, score[m]);
    if constexpr (kKeepMask) forget_masked(score, value);
    exponentiate(score, lds, state);
    wave_barrier();
#pragma unroll
    for (int n = 0; n < kValuePieces; ++n) add_values(lds, value[n], state.out[n]);
  }

 private:
  // Which of the step's keys is key c of the lane's group.
  FULMEN_DEVICE static int key_of(int c) { return group_id() + kGroups * c; }

  // Values that no row attends may be NaN.
  FULMEN_DEVICE static void forget_masked(const float (&score)[kOwn],
                                          PieceOfWords (&value)[kValuePieces][kBlockN]) {
    // Every kSharers-th lane of the group's owners.
    constexpr unsigned long long kOfFirst = [] {
      unsigned long long lanes = 0;
      for (int l = 0; l < kOwners; l += kSharers) lanes |= 1ULL << static_cast<unsigned>(l);
      return lanes;
    }();
    unsigned long long attended[kOwn];
#pragma unroll
    for (int m = 0; m < kOwn; ++m)
      attended[m] = ballot(score[m] != -kInfinity) >> static_cast<unsigned>(kGroup * group_id());
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) {
      const bool any = (attended[c % kOwn] & (kOfFirst << static_cast<unsigned>(c / kOwn))) != 0;
#pragma unroll
      for (int n = 0; n < kValuePieces; ++n) {
#pragma unroll
        for (unsigned& word : value[n][c]) word = any ? word : 0U;
      }
    }
  }

  // The lane's probabilities to LDS.
  FULMEN_DEVICE static void exponentiate(float (&score)[kOwn], int lds, LaneState& state) {
    constexpr float kMost = kNaturalUnits ? 4.0F : 8.0F;  // as tile/square_softmax.h
    float max = score[0];
#pragma unroll
    for (int m = 1; m < kOwn; ++m) max = larger(max, score[m]);
    if (any_lane(max > state.reference + kMost)) {
      rescale(larger(state.reference, max_of_neighbours<kSharers>(max)), lds + kRescales, state);
      wave_barrier();
    }
    const float offset = state.reference == -kInfinity ? 0.0F : state.reference;
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
      score[m] = exp2(kLog2OfUnit * (score[m] - offset) + kShift);
      state.sum += score[m];
    }
    if (!owns_scores()) return;
    const int at = lds + kProbabilities + group_id() * kScores + own_score();
#pragma unroll
    for (int m = 0; m < kOwn; ++m) lds_store(4 * (at + m), score[m]);
  }

  template <int kWords>
  FULMEN_DEVICE static void add_values(int lds, const unsigned (&value)[kBlockN][kWords],
                                       float (&out)[kBlockM][kPieceDims]) {
    lds += kProbabilities + group_id() * kScores;
    if constexpr (kWords < kPieceDims) {  // pairs of dims become pairs of keys
      unsigned pair[kBlockN / 2][kPieceDims];
#pragma unroll
      for (int c = 0; c < kBlockN / 2; ++c) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          pair[c][2 * w] = halves(value[2 * c][w], value[2 * c + 1][w], false);
          pair[c][2 * w + 1] = halves(value[2 * c][w], value[2 * c + 1][w], true);
        }
      }
#pragma unroll
      for (int r = 0; r < kBlockM; ++r) {
        const auto p = lds_load<Words<kBlockN> >(4 * (lds + r * kBlockN));
        unsigned weight[kBlockN / 2];
#pragma unroll
        for (int c = 0; c < kBlockN / 2; ++c)
          weight[c] =
              ProbabilityPair::pack(bits_float(p.word[2 * c]), bits_float(p.word[2 * c + 1]));
        add_row(weight, pair, out[r]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kBlockM; ++r)
        add_row(lds_load<Words<kBlockN> >(4 * (lds + r * kBlockN)).word, value, out[r]);
    }
  }
  template <int kCount>
  FULMEN_DEVICE static void add_row(const unsigned (&weight)[kCount],
                                    const unsigned (&value)[kCount][kPieceDims],
                                    float (&out)[kPieceDims]) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
#pragma unroll
      for (int e = 0; e < kPieceDims; ++e) out[e] = multiply_add(weight[c], value[c][e], out[e]);
    }
  }

 public:
  // The row's reference becomes `moved`, and all sums follow; lds: [kGroups][kBlockM].
  FULMEN_DEVICE static void rescale(float moved, int lds, LaneState& state) {
    const float factor =
        exp2(kLog2OfUnit * (state.reference - (moved == -kInfinity ? 0.0F : moved)));
    state.reference = moved;
    state.sum *= factor;
    lds += group_id() * kBlockM;
    if (owns_scores() && own_score() % kBlockN == 0)
      lds_store(4 * (lds + own_score() / kBlockN), factor);
    wave_barrier();
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) {
      const float x = lds_load<float>(4 * (lds + r));
#pragma unroll
      for (int n = 0; n < kValuePieces; ++n) {
#pragma unroll
        for (float& out : state.out[n][r]) out *= x;
      }
    }
  }
};

// The groups' states become one, which the first group leaves in LDS; lds: the wave's outputs.
FULMEN_DEVICE void leave_in_lds(LaneState& state, int lds) {
  float max = state.reference;
#pragma unroll
  for (int mask = kGroup; mask < kWaveSize; mask *= 2) max = larger(max, shuffle_xor(max, mask));
  WaveTask::rescale(max, lds + kRescales, state);
  float sum = sum_of_neighbours<kSharers>(state.sum);
#pragma unroll
  for (int mask = kGroup; mask < kWaveSize; mask *= 2) {
    sum += shuffle_xor(sum, mask);
#pragma unroll
    for (int r = 0; r < kBlockM; ++r) {
#pragma unroll
      for (int n = 0; n < kValuePieces; ++n) {
#pragma unroll
        for (float& out : state.out[n][r]) out += shuffle_xor(out, mask);
      }
    }
  }
  wave_barrier();
  if (group_id() != 0) return;
  const int own = own_score(), first_row = thread_id() / kWaveSize * kBlockM;
  if (owns_scores() && own % kBlockN == 0) {
    lds_store(4 * (kMaximaAt + first_row + own / kBlockN), max);
    lds_store(4 * (kSumsAt + first_row + own / kBlockN), sum * kUnshift);
  }
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) {
#pragma unroll
    for (int n = 0; n < kValuePieces; ++n) {
      const float(&out)[kPieceDims] = state.out[n][r];
      const int at = 4 * (lds + r * kHeadDimV + dim_of(n));
#pragma unroll
      for (int e = 0; e < kPieceDims; e += 4) {
        lds_store(at + 4 * e, Words<4>{{float_bits(out[e]), float_bits(out[e + 1]),
                                        float_bits(out[e + 2]), float_bits(out[e + 3])}});
      }
    }
  }
}

// Row r of all waves becomes one, by one wave, and goes to memory: the result, or a split's part of
// it.
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
  for (int d = lane_id(); d < a.head_dim_v; d += kWaveSize) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWaves; ++w) {
      value += weight[w] * lds_load<float>(4 * (kOutputsAt + w * kWaveFloats + r * kHeadDimV + d));
    }
    if constexpr (kSplits) {
      global_store(a.partial_out + part * a.head_dim_v + d, value);
    } else {
      global_store(out + d, from_float<Element>(value * end.output_factor));
    }
  }
  if (lane_id() != 0) return;
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
  for (int r = wave_id(); r < kBlockM && place.first_row + r < rows_of(a); r += kWaves)
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

  WaveTask task{a,
                OwnScores::of(a, place),
                kv_head_of<false>(a, place.batch, place.kv_head),
                kv_head_of<true>(a, place.batch, place.kv_head),
                {}};
#pragma unroll
  for (int r = 0; r < kBlockM; ++r) {
    const Row row = Row::of(a, place.kv_head, place.first_row + r);
#pragma unroll
    for (int n = 0; n < kKeyPieces; ++n) {
      load_words(at<Element>(a.q, place.batch, row.query, row.head), dim_of(n), a.head_dim,
                 task.query[r][n]);
    }
  }
  LaneState state = {};
  state.reference = -kInfinity;
  // Double-buffered: a step does not overwrite what a lane still reads of the step before.
  const int lds = kOutputsAt + wave_id() * kWaveFloats;
  int other = 0;
  const Int64 first_key = begin + wave_id() * kStepKeys;
  constexpr int kStride = kWaves * kStepKeys;
  const auto step = [&](Int64 key) {
    task.step(key, end, lds + other, state);
    other = kStepFloats - other;
  };
  if constexpr (kPassesOverSteps) {
    KeptSteps<kStepKeys> steps(a, place.batch, place.kv_head, first_query, query_end, first_key,
                               end, kStride);
    for (int n = steps.next(0); n < steps.count(); n = steps.next(n + 1)) step(steps.key(n));
  } else {
    for (Int64 key = first_key; key < end; key += kStride) step(key);
  }
  wave_barrier();
  leave_in_lds(state, lds);
  barrier();
  merge(call);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::decode_portable)
