// Merges what a kernel with splits (forward/decode*.h, prefill_tma.h) left of each split. Where
// there are many splits, a workgroup has one query row: waves take splits round robin, some at a
// time that are in flight at once, then merge through LDS. Where there are few, it has kBlockM
// rows, some lanes each. The order is always the same, so are the bits.
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr bool kManyRows = kBlockM > 1;
constexpr int kLanesOfRow = kManyRows ? kWorkgroup / kBlockM : kWaveSize;
static_assert(kWaveSize % kLanesOfRow == 0 && (!kManyRows || kWorkgroup == kBlockM * kLanesOfRow),
              "combine: a row is in one wave");
// A lane has pieces of so many dims, every kLanesOfRow-th.
constexpr int kPiece = kManyRows && kWholeRows && sizeof(Element) == 2 ? 4 : 1;
constexpr int kPieces = (kHeadDimV + kPiece * kLanesOfRow - 1) / (kPiece * kLanesOfRow),
              kLaneDims = kPieces * kPiece;
// Splits of a wave whose loads are in flight at once.
constexpr int kAtOnce = kLaneDims <= 4 && !kManyRows ? 8 : 4;

FULMEN_DEVICE int first_dim(int piece) {
  return (piece * kLanesOfRow + lane_id() % kLanesOfRow) * kPiece;
}

// LDS, in floats: each wave's maximum and sum, then its outputs.
constexpr int kSumsAt = kWaves;
constexpr int kOutputsAt = 2 * kWaves;  // [kWaves][kHeadDimV]
static_assert(kManyRows || kLdsBytes == 4 * (kOutputsAt + kWaves * kHeadDimV),
              "combine: the host reserves the LDS that waves merge in");

// Sums relative to a maximum.
struct Part {
  float max = -kInfinity, sum = 0, out[kLaneDims] = {};

  FULMEN_DEVICE static float offset(float max) { return max == -kInfinity ? 0.0F : max; }
  // From now on relative to `most`, which is no smaller.
  FULMEN_DEVICE void move_to(float most) {
    const float factor = exp2(kLog2OfUnit * (max - offset(most)));
    sum *= factor;
#pragma unroll
    for (int n = 0; n < kLaneDims; ++n) out[n] *= factor;
    max = most;
  }
  FULMEN_DEVICE void add(const Part& other) {
    const float weight = exp2(kLog2OfUnit * (other.max - offset(max)));
    sum += weight * other.sum;
#pragma unroll
    for (int n = 0; n < kLaneDims; ++n) out[n] += weight * other.out[n];
  }
};

// What each split left of a row.
struct SplitParts {
  const ForwardArguments& a;
  Int64 rows, row;  // of those that are split

  // Nothing, where there is no such split.
  FULMEN_DEVICE Part load(int split) const {
    const bool there = split < a.num_splits;
    const Int64 at = (there ? split : a.num_splits - 1) * rows + row;
    Part part;
    const float max = global_load(a.partial_max + at), sum = global_load(a.partial_sum + at);
    part.max = there ? max : -kInfinity;
    part.sum = there ? sum : 0.0F;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int dim = first_dim(piece);
      const float* const from = a.partial_out + at * a.head_dim_v + (dim < a.head_dim_v ? dim : 0);
      const auto words = global_load(reinterpret_cast<const Words<kPiece>*>(from));
#pragma unroll
      for (int n = 0; n < kPiece; ++n)
        part.out[piece * kPiece + n] = there ? bits_float(words.word[n]) : 0.0F;
    }
    return part;
  }
  // Every `step`th split from the first one on.
  FULMEN_DEVICE Part merge(int first, int step) const {
    Part mine;
    for (; first < a.num_splits; first += step * kAtOnce) {
      Part parts[kAtOnce];
      float most = mine.max;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) parts[n] = load(first + n * step);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) most = larger(most, parts[n].max);
      mine.move_to(most);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) mine.add(parts[n]);
    }
    return mine;
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
    if (kHeadDimV % kWaveSize == 0 || dim < kHeadDimV)
      lds_store(4 * (kOutputsAt + wave * kHeadDimV + dim), part.out[n]);
  }
}

// A row of the result.
struct ResultRow {
  const ForwardArguments& a;
  Int64 batch, head, i;

  FULMEN_DEVICE Element* out() const {
    return const_cast<Element*>(at<Element>(a.out, batch, i, head));
  }
  FULMEN_DEVICE void store_lse(float lse) const {
    if (a.lse != nullptr)
      global_store(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row, lse);
  }
};

template <class T>
FULMEN_DEVICE void store_piece(T* to, const float* out, float factor) {
  if constexpr (kPiece == 1) {
    global_store(to, from_float<T>(out[0] * factor));
  } else {
    global_store(reinterpret_cast<Words<2>*>(to),
                 Words<2>{{pack<T>(out[0] * factor, out[1] * factor),
                           pack<T>(out[2] * factor, out[3] * factor)}});
  }
}

// By the lanes of a row, each of which has its maximum and sum.
FULMEN_DEVICE void merge_by_lanes(const ResultRow& row, const SplitParts& splits) {
  const Part all = splits.merge(0, 1);
  const RowEnd end = end_row(row.a, row.head, all.max, all.sum);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int dim = first_dim(piece);
    if (dim < row.a.head_dim_v)
      store_piece(row.out() + dim, all.out + piece * kPiece, end.output_factor);
  }
  if (lane_id() % kLanesOfRow == 0) row.store_lse(end.lse);
}

FULMEN_DEVICE void merge_by_workgroup(const ResultRow& row, const SplitParts& splits) {
  const ForwardArguments& a = row.a;
  leave_in_lds(splits.merge(wave_id(), kWaves));
  barrier();
  float max = -kInfinity, sum = 0, weight[kWaves];
#pragma unroll
  for (int w = 0; w < kWaves; ++w) max = larger(max, lds_load<float>(4 * w));
#pragma unroll
  for (int w = 0; w < kWaves; ++w) {
    weight[w] = exp2(kLog2OfUnit * (lds_load<float>(4 * w) - Part::offset(max)));
    sum += weight[w] * lds_load<float>(4 * (kSumsAt + w));
  }
  const RowEnd end = end_row(a, row.head, max, sum);
  Element* const out = row.out();
  for (int d = thread_id(); d < a.head_dim_v; d += kWorkgroup) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWaves; ++w)
      value += weight[w] * lds_load<float>(4 * (kOutputsAt + w * kHeadDimV + d));
    global_store(out + d, from_float<Element>(value * end.output_factor));
  }
  if (thread_id() == 0) row.store_lse(end.lse);
}

FULMEN_DEVICE void combine(const ForwardArguments& call) {
  grid_dependency_wait();
  // A launch has fewer than 2^31 workgroups, and no more rows.
  const auto queries = static_cast<unsigned>(call.seqlen_q),
             heads = static_cast<unsigned>(call.num_heads);
  const unsigned first = static_cast<unsigned>(call.first_split_row),
                 rows = static_cast<unsigned>(call.batch) * heads * queries - first;
  const unsigned n = static_cast<unsigned>(workgroup_id()) * kBlockM +
                     (kManyRows ? thread_id() / kLanesOfRow : 0),
                 id = first + n;
  if (kManyRows && n >= rows) return;
  const Int64 i = id % queries, head = id / queries % heads, batch = id / queries / heads;
  const ForwardArguments& a = sequence_of(call, batch);
  if (kVariable && i >= a.seqlen_q) return;
  const ResultRow row{a, batch, head, i};
  if constexpr (kManyRows) {
    merge_by_lanes(row, {a, rows, n});
  } else {
    merge_by_workgroup(row, {a, rows, n});
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::combine)
