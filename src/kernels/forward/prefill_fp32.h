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
#include "tile/softmax.h"

namespace fulmen::kernels {

constexpr PrefillFp32Layout kLayout = PrefillFp32Layout::of(
    {kTransposedDepth, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kQueriesInLds});
static_assert(kLayout.total == kLdsBytes, "fp32: the host reserves the LDS that the tiles need");
FULMEN_DEVICE int keys_at(int buffer) { return buffer * kLayout.keys.bytes; }
FULMEN_DEVICE int values_at(int buffer) {
  return kBuffers * kLayout.keys.bytes + buffer * kLayout.values.bytes;
}

// The next tile is in flight while one is computed: not with a single buffer, which asynchronous
// copies write to, and not where registers are too few (AMD).
constexpr bool kFetchesEarly = kCopiesToLds ? kBuffers == 2 : kEarlyLoads;

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

// Tiles of keys and values in flight to LDS.
class FloatStage {
 public:
  FULMEN_DEVICE explicit FloatStage(const StageSource& source) : source_(source) {}
  FULMEN_DEVICE void fetch(TileWalk& tile, int buffer) {
    if (tile.has_all_keys()) {
      fetch<false>(tile.first_key(), buffer);
    } else {
      fetch<true>(tile.first_key(), buffer);
    }
  }
  FULMEN_DEVICE void publish(int buffer) {
    if constexpr (!kCopiesToLds && kBuffers == 1) barrier();  // the last tile is read by now
    keys_.publish(keys_at(buffer));
    values_.publish(values_at(buffer));
    floats_arrived();
  }

 private:
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int buffer) {
    const ForwardArguments& a = source_.arguments;
    const auto alive = [&](int n) { return source_.alive(a, first_key + n); };
    keys_.template fetch<false>(TileRows<false>::of(a, source_, first_key), a.head_dim,
                                keys_at(buffer), alive);
    values_.template fetch<kMayHide<kClamped>>(TileRows<true>::of(a, source_, first_key),
                                               a.head_dim_v, values_at(buffer), alive);
    commit_floats();
  }

  const StageSource& source_;
  FloatTile<kHeadDim, true, false> keys_;
  FloatTile<kHeadDimV, false, true> values_;
};

struct FloatRows {
  RowState state[kFloatRowTiles];
  FloatSums<kHeadDimV> out;
};

struct FloatTask {
  const ForwardArguments& call;
  const RowMap& map;  // of the sequence
  Int64 wave_row;     // the first of the wave's rows
  int first_row;      // the same, of the workgroup's

  template <bool kMasked, bool kGuarded>
  FULMEN_DEVICE void step(const HeldRows<kHeadDim>& queries, FloatRows& rows, Int64 first_key,
                          int buffer) const {
    FloatScores score;
    multiply_columns<kGuarded>(queries, keys_at(buffer), score);
#pragma unroll
    for (int t = 0; t < kFloatRowTiles; ++t) {
      const Int64 row = wave_row + kScoreTile * t;
      modify_scores<kMasked>(map, row, first_key, score[t]);
      exponentiate(rows.state[t], softmax_scale(map.arguments), score[t],
                   [&](const float(&factor)[kRowsPerLane]) {
                     rows.out.for_each(t, [&](float& x, int slot) { x *= factor[slot]; });
                   });
      if constexpr (kDropout) drop(map, row, first_key, score[t]);
    }
    multiply_values<kGuarded>(rows.out, values_at(buffer), score);
  }
};

// The main loop. kGuarded: infinities among q, k and v are looked for.
template <bool kGuarded>
FULMEN_DEVICE void over_tiles(const FloatTask& task, const StageSource& source,
                              const QuerySource& queries, const TileOrder& order, FloatRows& rows) {
  rows = {};
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t) rows.state[t].clear();
  MaskedRows masked{};
  if constexpr (kKnowsTiles) masked = source.masked_rows();
  TileWalk tile(masked, order);
  if (!tile.there()) return;
  FloatStage stage(source);
  const HeldRows<kHeadDim> held = hold_rows<kHeadDim>(
      kLayout.queries_at, task.first_row, queries.dims, [&](int n) { return queries.row(n); });
  if constexpr (kFetchesEarly) stage.fetch(tile, 0);
  int buffer = 0;
#pragma unroll 1
  while (tile.there()) {
    if constexpr (!kFetchesEarly) {
      if constexpr (kCopiesToLds) barrier();  // the last tile is read by now
      stage.fetch(tile, buffer);
    }
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    const Int64 first_key = tile.first_key();
    const bool whole = tile.is_whole();
    tile.advance();
    if (kFetchesEarly && tile.there()) stage.fetch(tile, next);
    if (whole && !kRunsAgain<kGuarded>) {
      task.template step<kRunsAgain<kGuarded>, kGuarded>(held, rows, first_key, buffer);
    } else {
      task.template step<true, kGuarded>(held, rows, first_key, buffer);
    }
    buffer = next;
  }
}

FULMEN_DEVICE bool became_nan(FloatRows& rows) {
  bool found = has_nan(rows.out);
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot)
      found = found || rows.state[t].sum[slot] != rows.state[t].sum[slot];
  }
  return found;
}

FULMEN_DEVICE void prefill_fp32(const ForwardArguments& call) {
  const QueryBlock block = QueryBlock::of(call);
  const ForwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= a.seqlen_q) return;
  const PrefillRows mine = PrefillRows::of(a, block);
  const RowMap map{a, block.batch, block.head, a.seqlen_q};
  const StageSource source = mine.source(a);
  const QuerySource queries = mine.queries(a);
  const int first_row = wave_id() * kFloatRowTiles * kScoreTile;
  const FloatTask task{call, map, block.row_begin + first_row, first_row};

  FloatRows rows;
  over_tiles<kGuardsAlways>(task, source, queries, mine.order, rows);
  if constexpr (!kGuardsAlways) {
    if (any_wave(became_nan(rows))) over_tiles<true>(task, source, queries, mine.order, rows);
  }
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const RowState& state = rows.state[t];
      const Int64 i = task.wave_row + kScoreTile * t + tile_row(slot);
      const RowEnd end = end_row(a, block.head, row_maximum(state, softmax_scale(a), slot),
                                 total(state.sum[slot]));
      if (i >= a.seqlen_q) continue;
      rows.out.store(out_row(a, block.batch, block.head, i), a.head_dim_v, t, slot,
                     end.output_factor);
      // One of the lanes that share the row.
      if (tile_column(0) == 0) store_lse(a, block.batch, block.head, i, end.lse);
    }
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::prefill_fp32)
