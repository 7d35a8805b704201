// Forward of fp32 for many queries by matrix instructions of narrower numbers, as exact as fp32:
// each operand is a sum of parts, and products of parts are summed in fp32 (tile/fp32: 2 parts of
// tf32 and 3 products on NVIDIA, 3 parts of bf16 and 6 products on AMD).
//
// A workgroup owns kBlockM query rows of one head, a wave kRowTiles x 16 of them:
//   for each tile of kBlockN keys:
//     S[16 kRowTiles, kBlockN] = Q[.., d] K[kBlockN, d]^T       parts of Q and K
//     P = 2^(S - reference)                                     online softmax, in fp32
//     O[16 kRowTiles, d_v] += P[.., kBlockN] V[kBlockN, d_v]    parts of P, in registers, and of V
// K and V tiles go through LDS, the next one in flight while one is computed.
#include "forward/parts/prefill_rows.h"
#include "tile/drop.h"
#include "tile/fp32/products.h"
#include "tile/modified_scores.h"

namespace fulmen::kernels {

// All tiles of an order, as KeptWalk.
class WholeWalk {
 public:
  FULMEN_DEVICE WholeWalk(const MaskedRows& /*rows*/, const TileOrder& order) : order_(order) {}
  FULMEN_DEVICE bool there() const { return n_ < order_.count; }
  FULMEN_DEVICE void advance() { ++n_; }
  FULMEN_DEVICE Int64 first_key() const { return order_.first_key(n_); }
  FULMEN_DEVICE bool is_whole() const { return n_ >= order_.masked; }
  FULMEN_DEVICE bool has_all_keys() const { return is_whole(); }

 private:
  const TileOrder& order_;
  int n_ = 0;
};
using TileWalk = Either<kKnowsTiles, KeptWalk<TileOrder>, WholeWalk>;

struct FloatTask {
  const ForwardArguments& call;
  const RowMap& map;  // of the sequence
  Int64 wave_row;     // the first of the wave's rows
  int first_row;      // the same, of the workgroup's

  template <bool kMasked, bool kGuarded>
  FULMEN_DEVICE void step(FloatRows& rows, Int64 first_key, int buffer) const {
    ScoreFragment score;
    multiply_keys<kGuarded>(rows, first_row, buffer, score);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const Int64 row = wave_row + kScoreTile * t;
      modify_scores<kMasked>(map, row, first_key, score[t]);
      exponentiate(rows.state[t], softmax_scale(map.arguments), score[t],
                   [&](const float(&factor)[kRowsPerLane]) { rows.rescale(t, factor); });
      if constexpr (kDropout) drop(map, row, first_key, score[t]);
    }
    multiply_values<kGuarded>(rows, buffer, score);
  }
};

FULMEN_DEVICE void fetch(FloatStage& stage, TileWalk& tile, int buffer) {
  if (tile.has_all_keys()) {
    stage.template fetch<false>(tile.first_key(), buffer);
  } else {
    stage.template fetch<true>(tile.first_key(), buffer);
  }
}

// The main loop. kGuarded: infinities among q, k and v are looked for.
template <bool kGuarded>
FULMEN_DEVICE void over_tiles(const FloatTask& task, const StageSource& source,
                              const QuerySource& queries, const TileOrder& order, FloatRows& rows) {
  rows = {};
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) rows.state[t].clear();
  MaskedRows masked{};
  if constexpr (kKnowsTiles) masked = source.masked_rows();
  TileWalk tile(masked, order);
  if (!tile.there()) return;
  FloatStage stage(source);
  FloatStage::fetch_queries(queries, rows);
  if constexpr (kFetchesEarly) fetch(stage, tile, 0);
  int buffer = 0;
#pragma unroll 1
  while (tile.there()) {
    if constexpr (!kFetchesEarly) {
      if constexpr (kCopiesToLds) barrier();  // the last tile is read by now
      fetch(stage, tile, buffer);
    }
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    const Int64 first_key = tile.first_key();
    const bool whole = tile.is_whole();
    tile.advance();
    if (kFetchesEarly && tile.there()) fetch(stage, tile, next);
    if (whole) {
      task.template step<false, kGuarded>(rows, first_key, buffer);
    } else {
      task.template step<true, kGuarded>(rows, first_key, buffer);
    }
    buffer = next;
  }
}

// Returns true if any wave found a NaN among its rows' results. All waves come here, when they have
// read LDS.
FULMEN_DEVICE bool any_wave_lost(const FloatRows& rows) {
  barrier();
  const bool lost = any_lane(rows.has_nan());
  const int word = 4 * wave_id();
  if (lane_id() == 0) lds_store(word, lost ? 1U : 0U);
  barrier();
  unsigned found = 0;
#pragma unroll
  for (int w = 0; w < kWaves; ++w) found |= lds_load<unsigned>(4 * w);
  barrier();
  return found != 0;
}

FULMEN_DEVICE void prefill_fp32(const ForwardArguments& call) {
  const QueryBlock block = QueryBlock::of(call);
  const ForwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= a.seqlen_q) return;
  const PrefillRows mine = PrefillRows::of(a, block);
  const RowMap map{a, block.batch, block.head, a.seqlen_q};
  const StageSource source = mine.source(a);
  const QuerySource queries = mine.queries(a);
  const int first_row = first_row_of_wave();
  const FloatTask task{call, map, block.row_begin + first_row, first_row};

  FloatRows rows;
  over_tiles<kGuardsAlways>(task, source, queries, mine.order, rows);
  if constexpr (!kGuardsAlways) {
    if (any_wave_lost(rows)) over_tiles<true>(task, source, queries, mine.order, rows);
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const RowState& state = rows.state[t];
      const Int64 i = task.wave_row + kScoreTile * t + tile_row(slot);
      const RowEnd end = end_row(a, block.head, row_maximum(state, softmax_scale(a), slot),
                                 total(state.sum[slot]));
      if (i >= a.seqlen_q) continue;
      rows.store(out_row(a, block.batch, block.head, i), a.head_dim_v, t, slot, end.output_factor);
      // One of the lanes that share the row.
      if (tile_column(0) == 0) store_lse(a, block.batch, block.head, i, end.lse);
    }
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::prefill_fp32)
