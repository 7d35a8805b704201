// Forward for up to 128 keys, chess boards above all: a wave owns 16 query rows of one head and has
// their whole score rows in registers, so nothing is rescaled. K and V go straight from memory into
// operands: no LDS, no barrier, so a wave starts and ends on its own and many are in flight.
#include "tile/direct.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kKeyTiles = kBlockN / kScoreTile;
constexpr int kValueSteps = kKeyTiles / kStepTiles;
constexpr int kMmaSteps = kHeadDim / kMmaK;
// Where the operands of all dims would not fit beside outputs and scores, they are loaded as they
// are used.
constexpr bool kTightRegisters = kMmaSteps * kPieces * 4 * (1 + kKeyTiles) > 160;
// V is in flight while scores are computed, where the host measured a gain.
constexpr bool kEarlyValues = kEarlyLoads && !kTightRegisters;
// Distances to keys that are the same in all lanes are scalars: not those of all tiles at once.
constexpr bool kFencedValues = kTightRegisters || (kSameKeys && !kEarlyValues);
static_assert(kBlockM == kScoreTile * kWaves, "short_sequence: a wave has 16 rows");
static_assert(kHeadDim % kMmaK == 0 && kBlockN % kValueDepth == 0,
              "short_sequence: tiles are whole operands");

FULMEN_DEVICE void store_rows(const ForwardArguments& a, int batch, int head, Int64 first_row,
                              Int64 row_end, const RowState& rows, const DirectOutput& out) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 i = first_row + tile_row(slot);
    const RowEnd end =
        end_row(a, head, row_maximum(rows, softmax_scale(a), slot), total(rows.sum[slot]));
    if (i >= row_end) continue;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < kDirectElements; ++e) {
        if (row_slot(e) != slot) continue;
        float run[kWidth];
#pragma unroll
        for (int t = 0; t < kWidth; ++t) run[t] = out.value[g][t][e] * end.output_factor;
        store_run(out_row(a, batch, head, i), direct_dim(g, e), a.head_dim_v, run);
      }
    }
    if (tile_column(0) == 0) store_lse(a, batch, head, i, end.lse);
  }
}

FULMEN_DEVICE void short_sequence(const ForwardArguments& call) {
  const Int64 id = workgroup_id();
  const Int64 tile = id % call.row_tiles;
  const int head = static_cast<int>(id / call.row_tiles % call.num_heads);
  const int batch = static_cast<int>(id / call.row_tiles / call.num_heads);
  const ForwardArguments& a = sequence_of(call, batch);
  const Int64 first_row = tile * kBlockM + kScoreTile * wave_id();
  if (first_row >= a.seqlen_q) return;
  const RowMap map{a, batch, head, a.seqlen_q};
  const Int64 row_end = first_row + kScoreTile < a.seqlen_q ? first_row + kScoreTile : a.seqlen_q;
  const int kv_head = head / a.group_size;

  RowState rows;
  rows.clear();
  DirectOutput out = {};
  const algorithm::KeyRange attended = band_of(a).any(first_row, row_end);
  if (attended.begin < attended.end) {
    const KeySource keys{
        a, a.k, head_rows(a.k, batch, kv_head), attended.begin, attended.end, a.head_dim};
    const KeySource values{
        a, a.v, head_rows(a.v, batch, kv_head), attended.begin, attended.end, a.head_dim_v};
    const auto* q = at<Element>(a.q, batch, 0, head);
    const TilePlace first = TilePlace::of(a, 0);
    const NearKeys near_keys(keys, first);
    const NearValues near_values(values, first);
    const KeptKeys<kBlockN> kept = kept_keys(map, first_row, row_end, values, 0);
    TileRow<kKeyTiles> score = {};
    DirectValues value[kEarlyValues ? kValueSteps : 1][kEarlyValues ? kGroups : 1];
    if constexpr (kEarlyValues) {
#pragma unroll
      for (int step = 0; step < kValueSteps; ++step) {
        if constexpr (kSameKeys) schedule_fence();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) value[step][g] = load_direct(near_values, kept, step, g);
      }
    }
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) {
      const RowOperand queries =
          load_row_operand(q, a.q.row, first_row, a.seqlen_q, kMmaK * d, a.head_dim);
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f)
        multiply_scores<Element>(score[f], key_operand(load_keys(near_keys, f, kMmaK * d)),
                                 queries);
      if constexpr (kTightRegisters) schedule_fence();
    }
    if (!kBand && a.seqlen_k == kBlockN) {
      modify_scores<false>(map, first_row, 0, score);
    } else {
      modify_scores<true>(map, first_row, 0, score);
    }
    if constexpr (kTightRegisters) schedule_fence();
    exponentiate<true>(rows, softmax_scale(a), score, [](const float(&)[kRowsPerLane]) {});
#pragma unroll
    for (int step = 0; step < kValueSteps; ++step) {
      const ProbabilityOperand p = step_operand<Element, true>(score, step);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if constexpr (kEarlyValues) {
          multiply_values(out, g, p, value[step][g]);
        } else {
          if constexpr (kFencedValues) schedule_fence();
          multiply_values(out, g, p, load_direct(near_values, kept, step, g));
        }
      }
    }
  }

  store_rows(again(a, id), batch, head, first_row, row_end, rows, out);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::short_sequence)
