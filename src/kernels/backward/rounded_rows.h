// The launch behind parts/row_statistics.h where scores are in natural units: offsets and shares of
// the queries whose log-sum-exp is rounded (core/row_statistics.h), from another pass over their
// keys.
//
//   S[16, kBlockN] = Q[16, d] K[kBlockN, d]^T     the online softmax's maximum and sum, without V
//
// A wave has kRowTiles x 16 queries, and ends at once where none of them is rounded. Keys go
// straight from memory into operands.
#include "core/row_statistics.h"
#include "tile/direct.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kRowTiles = kBlockM / (kScoreTile * kWaves), kKeyTiles = kBlockN / kScoreTile;
constexpr int kMmaSteps = kHeadDim / kMmaK;
static_assert(kBlockM == kRowTiles * kScoreTile * kWaves && kHeadDim % kMmaK == 0,
              "rounded_rows: whole tiles of 16 rows, whole operands");

FULMEN_DEVICE float lse_of(const BackwardArguments& a, Int64 batch, Int64 head, Int64 i) {
  return global_load(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row);
}
// Whether one of the rows is.
FULMEN_DEVICE bool some_is_rounded(const BackwardArguments& a, Int64 batch, Int64 head,
                                   Int64 first_row) {
  bool rounded = false;
  for (int n = lane_id(); n < kScoreTile * kRowTiles; n += kWaveSize) {
    const Int64 i = first_row + n;
    rounded = rounded || (i < a.seqlen_q && is_rounded(lse_of(a, batch, head, i)));
  }
  return any_lane(rounded);
}

FULMEN_DEVICE void store_rounded(const BackwardArguments& a, int batch, int head, Int64 first_row,
                                 const RowState& state) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 i = first_row + tile_row(slot);
    // The maximum itself, not less kLift, which the rounding of a huge one would swallow; and no
    // less: probabilities before their share are at most 1, so that their gradients fit in fp16.
    constexpr float kUnlift = kLift == 0 ? 1.0F : 1.0F / 8192;
    static_assert(kNaturalUnits && kNaturalSlack == 0 && (kLift == 0 || kLift == 13),
                  "rounded_rows: references are maxima, sums are 2^13 too large or not at all");
    const float max = state.reference[slot], sum = total(state.sum[slot]) * kUnlift;
    if (i >= a.seqlen_q || tile_column(0) != 0) continue;
    const float lse = lse_of(a, batch, head, i);
    if (!is_rounded(lse)) continue;
    RowBase base = RowBase::of(a, head, lse, max, sum);
    // What remains of a sequence that was cut is NaN, for kernels that do not see its scale.
    if constexpr (kVariable) base.offset += 0.0F * a.scale;
    global_store(reinterpret_cast<float*>(RowStatistics::first_of(a, batch, head) + i),
                 base.offset);
    global_store(RowShares::first_of(a, batch, head) + i, base.share);
  }
}

FULMEN_DEVICE void rounded_rows(const BackwardArguments& call) {
  const auto id = static_cast<unsigned>(workgroup_id()),
             tiles = static_cast<unsigned>(tiles_of(call.seqlen_q, kBlockM)),
             heads = static_cast<unsigned>(call.num_heads);
  const int head = static_cast<int>(id / tiles % heads),
            batch = static_cast<int>(id / tiles / heads);
  const BackwardArguments& a = sequence_of(call, batch);
  const Int64 first_row = Int64{id % tiles} * kBlockM + kRowTiles * kScoreTile * wave_id();
  if (first_row >= a.seqlen_q || !some_is_rounded(a, batch, head, first_row)) return;

  RowOperand queries[kRowTiles][kMmaSteps];
  RowState state[kRowTiles];
  const auto* q = at<Element>(a.q, batch, 0, head);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    state[t].clear();
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d)
      queries[t][d] = load_row_operand(q, a.q.row, first_row + kScoreTile * t, a.seqlen_q,
                                       kMmaK * d, a.head_dim);
  }
  const Int64 end = first_row + kRowTiles * kScoreTile;
  const algorithm::KeyRange attended =
      band_of(a).any(first_row, end < a.seqlen_q ? end : a.seqlen_q);
  const KeySource source{
      a, a.k, head_rows(a.k, batch, head / a.group_size), attended.begin, attended.end, a.head_dim};
  const RowMap map{a, batch, head, a.seqlen_q};
#pragma unroll 1
  for (Int64 first_key = tile_range(attended).begin; first_key < attended.end;
       first_key += kBlockN) {
    const NearKeys keys(source, TilePlace::of(a, first_key));
    TileRow<kKeyTiles> score[kRowTiles] = {};
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) {
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
        const RowOperand operand = key_operand(load_keys(keys, f, kMmaK * d));
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
          multiply_scores<Element>(score[t][f], operand, queries[t][d]);
      }
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      modify_scores<true>(map, first_row + kScoreTile * t, first_key, score[t]);
      exponentiate(state[t], softmax_scale(a), score[t], [](const float(&)[kRowsPerLane]) {});
    }
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t)
    store_rounded(a, batch, head, first_row + kScoreTile * t, state[t]);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::rounded_rows)
