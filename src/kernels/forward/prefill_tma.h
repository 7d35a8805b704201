// Forward for many queries by Hopper's warpgroup products, whose operands the tensor memory
// accelerator (TMA) brings.
//
//   S[64, kBlockN] = Q[64, d] K[kBlockN, d]^T,  P = 2^(S - max),  O[64, d_v] += P V[kBlockN, d_v]
//                                               a warpgroup's step
//
// A workgroup has kBlockM query rows of one head, a warpgroup 64 of them, a wave 16. One more
// warpgroup has two waves that work, or three: the key loader asks the TMA for tiles of keys and
// values, in a ring of kBuffers each, the query loader for each warpgroup's Q. An mbarrier a buffer
// says that a tile has arrived (full), another that no warpgroup reads it any more (empty). A
// persistent kernel's workgroups take further tiles of queries: the loaders are then ahead of the
// warpgroups, which store outputs meanwhile.
//
// A step begins S = Q K^T of tile n and O += P V of tile n - 1, and computes exponentials of n
// while the second one is in flight. Ping-pong: warpgroups issue products one after the other, so
// that one's exponentials overlap another's products.
//
// kSplits: the last tiles of queries would leave multiprocessors without work. Their keys are
// split, and forward/decode_combine.h merges what the splits give.
//
// The loaders, the epilogue and what masks and splits add are in forward/parts/tma_*.h.
//
// LDS: up to 128 dims 2 x Q, kBuffers x K, kBuffers x V and the outputs, which the TMA stores;
// wider heads have one Q, and their outputs go from registers to memory. Then mbarriers, and scales
// of tokens. Registers of a lane: S kBlockN / 2, O d_v / 2, P kBlockN / 4.
#include "forward/parts/next_tile.h"
#include "forward/parts/tma_epilogue.h"
#include "forward/parts/tma_loaders.h"
#include "forward/parts/tma_shared_rows.h"
#include "forward/parts/tma_splits.h"
#include "tile/nvidia/bias_ahead.h"

namespace fulmen::kernels {

constexpr bool kTurns = kWarpgroups > 1 && kPingPong;

// Tiles as operands. Where registers allow, the next one's place is known before a warpgroup's
// turn, not computed in it.
constexpr bool kKeepsPlaces =
    !kBias && !kAlibi && !kDropout && (!kBand || (kWarpgroups <= 2 && kHeadDim <= 128));
template <int kRows>
struct MatrixRing : TileRing {
  int first_at, step;  // in bytes
  LdsMatrix kept;

  FULMEN_DEVICE MatrixRing(int at, int bytes)
      : first_at(at), step(bytes), kept(LdsMatrix::of(at, kRows)) {}
  FULMEN_DEVICE LdsMatrix now() const {
    return kKeepsPlaces ? kept : LdsMatrix::of(first_at + buffer * step, kRows);
  }
  FULMEN_DEVICE void advance() {
    TileRing::advance();
    if constexpr (kKeepsPlaces)
      kept = buffer == 0 ? LdsMatrix::of(first_at, kRows) : kept.further(step);
  }
};

// The main loop: what a wave of the other warpgroups does.
struct Consumer {
  const TmaForwardArguments& arguments;
  int group, next_group;
  QueryRing query_ring;
  MatrixRing<kBlockN> key_ring{kLdsLayout.keys_at, kLdsLayout.key_bytes};
  MatrixRing<kValueRows> value_ring{kLdsLayout.values_at, kLdsLayout.value_bytes};
  LdsMatrix queries;

  FULMEN_DEVICE explicit Consumer(const TmaForwardArguments& a)
      : arguments(a), group(wave_id() / 4), next_group(group + 1 < kWarpgroups ? group + 1 : 0) {
    if (kWarpgroups > 1 && next_group == 0) pass_turn();
  }

  FULMEN_DEVICE void tile(const QueryTile& t) {
    const Int64 group_row = row_of_group(arguments, t, group, query_ring);
    const ForwardArguments& a = arguments_of(t, arguments, group_row);
    const Int64 wave_row = group_row + wave_id() % 4 * kScoreTile,
                rows_end = t.is_shared() ? a.seqlen_q * shared_heads(a) : a.seqlen_q;
    const Int64 row_end =
        group_row + t.rows_of_group(a) < rows_end ? group_row + t.rows_of_group(a) : rows_end;
    const RowMap map{a, t.batch, t.head, kSharesTiles ? row_end : rows_end, t.is_shared()};
    const algorithm::KeyRange keys =
        band_of(a).any(map.query(group_row), map.query(row_end - 1) + 1);
    bool any = group_row < row_end && keys.end > keys.begin;
    int n = any ? t.order.passed_over(keys.end) : t.order.count;
    WaveRows rows = {};
    rows.state.clear();
    queries = LdsMatrix::of(queries_at(query_ring), kBlockM).rows_further(64 * group);
    if (t.order.count > 0)
      mbarrier_wait(queries_barrier(kQueriesFull, query_ring, group), query_ring.parity);
    if constexpr (kMaskBits) {
      const int nth = static_cast<int>(group_row - t.row_begin) / kMaskRows;
      any = step_kept_tiles(*this, t, map, wave_row, group_row < a.seqlen_q ? nth : -1, rows);
    } else {
#pragma unroll 1
      for (int passed = 0; passed < n; ++passed) pass_over();
    }
    if (!kMaskBits && any) {
      const Int64 first_key = t.order.first_key(n++);
      if (kBand || t.order.masked > 0) {
        first<true>(map, wave_row, rows, first_key);
      } else {
        first<false>(map, wave_row, rows, first_key);
      }
      for (; n < t.order.masked; ++n) step<true>(map, wave_row, rows, t.order.first_key(n));
      for (; n < t.order.count; ++n) step<false>(map, wave_row, rows, t.order.first_key(n));
    }
    if (t.order.count > 0) release(queries_barrier(kQueriesEmpty, query_ring, group), query_ring);
    if (any) last(rows);
    if (kSplits && t.split != kWholeTile) {
      store_split(map, wave_row, t.split, rows);
    } else {
      store_outputs(arguments, t, map, wave_row, rows);
    }
  }
  // Waits until the TMA has stored the last tile's outputs.
  FULMEN_DEVICE void end() const {
    if constexpr (kStoresByTma) {
      if (lane_id() == 0) tma_wait<0>();
    }
  }

  FULMEN_DEVICE void wait_keys() const {
    mbarrier_wait(kKeysFull + 8 * key_ring.buffer, key_ring.parity);
  }
  FULMEN_DEVICE void wait_values() const {
    mbarrier_wait(kValuesFull + 8 * value_ring.buffer, value_ring.parity);
  }
  // Releases a buffer to its loader. All lanes of the wave have waited for the products that read
  // it.
  template <class Buffers>
  FULMEN_DEVICE static void release(int empty, Buffers& ring) {
    if (lane_id() == 0) mbarrier_arrive(empty);
    ring.advance();
  }
  FULMEN_DEVICE void release_keys() { release(kKeysEmpty + 8 * key_ring.buffer, key_ring); }
  FULMEN_DEVICE void release_values() { release(kValuesEmpty + 8 * value_ring.buffer, value_ring); }
  FULMEN_DEVICE void wait_turn() const {
    if constexpr (kTurns) warpgroup_turn_wait(group);
  }
  FULMEN_DEVICE void pass_turn() const {
    if constexpr (kTurns) warpgroup_turn_pass(next_group);
  }
  // A tile of which none of the warpgroup's rows attends a key.
  FULMEN_DEVICE void pass_over() {
    wait_keys();
    wait_turn();
    pass_turn();
    release_keys();
    wait_values();
    release_values();
  }
  template <bool kMasked>
  FULMEN_DEVICE void first(const RowMap& map, Int64 wave_row, WaveRows& rows, Int64 first_key) {
    TileRow<kKeyTiles> score;
    float factor[kRowsPerLane];
    const auto row_bits = RowBits<kMasked>::of(map, wave_row, first_key);
    const auto bias = TileBias<kMasked, kRegisters.consumer>::of(map, wave_row, first_key);
    wait_keys();
    wait_turn();
    wgmma_fence();
    begin_scores(queries, key_ring.now(), score);
    pass_turn();
    wgmma_wait<0>();
    wgmma_hold(score);
    multiply_keys(score);
    release_keys();
    exponentiate_tile<kMasked>(map, wave_row, rows.state, first_key, row_bits, score, factor, bias);
    multiply_values(score);
    keep_probabilities(rows, score);
  }
  template <bool kMasked>
  FULMEN_DEVICE void step(const RowMap& map, Int64 wave_row, WaveRows& rows, Int64 first_key) {
    TileRow<kKeyTiles> score;
    // In flight beside the products.
    const auto row_bits = RowBits<kMasked>::of(map, wave_row, first_key);
    const auto bias = TileBias<kMasked, kRegisters.consumer>::of(map, wave_row, first_key);
    wait_keys();
    wait_turn();
    wgmma_fence();
    begin_scores(queries, key_ring.now(), score);
    if constexpr (!kValueFactors) wait_values();
    begin_outputs(rows, value_ring.now());
    pass_turn();
    wgmma_wait<1>();
    wgmma_hold(score);
    multiply_keys(score);
    release_keys();
    exponentiate_and_end_outputs<kMasked>(map, wave_row, rows, first_key, row_bits, score, bias);
    release_values();
    multiply_values(score);
    keep_probabilities(rows, score);
  }
  // Where tokens have scales: of the tile in the rings' next buffers. The wait for values is that
  // of their product, too.
  FULMEN_DEVICE void multiply_keys(TileRow<kKeyTiles>& score) const {
    if constexpr (kKeyFactors) {
      multiply_rows<false>(kLdsLayout.key_factors_at + 4 * kBlockN * key_ring.buffer, score);
      wave_barrier();  // one lane releases the buffer
    }
  }
  FULMEN_DEVICE void multiply_values(TileRow<kKeyTiles>& probability) const {
    if constexpr (kValueFactors) {
      wait_values();
      // Which keys a mask hides from all rows the loader does not know here.
      multiply_rows<kMaskBits>(kLdsLayout.value_factors_at + 4 * kBlockN * value_ring.buffer,
                               probability);
      wave_barrier();
    }
  }
  FULMEN_DEVICE void last(WaveRows& rows) {
    if constexpr (!kValueFactors) wait_values();
    wgmma_fence();
    begin_outputs(rows, value_ring.now());
    end_outputs(rows);
    release_values();
  }
};

FULMEN_DEVICE void prefill_tma(const TmaForwardArguments& a) {
  if (thread_id() == 0) {
    mbarrier_init(kPatch, 1);
    mbarrier_init(kValuePatch, 1);
    mbarrier_init(kNextFull, 1);
    mbarrier_init(kNextEmpty, 4 * kWarpgroups + (kTwoLoaders ? 2 : 1));
#pragma unroll
    for (int n = 0; n < kQueryBuffers * kWarpgroups; ++n) {
      mbarrier_init(kQueriesFull + 8 * n, 1);
      mbarrier_init(kQueriesEmpty + 8 * n, 4);
    }
#pragma unroll
    for (int n = 0; n < kBuffers; ++n) {
      mbarrier_init(kKeysFull + 8 * n, kKeyFactors ? 2 : 1);
      mbarrier_init(kKeysEmpty + 8 * n, 4 * kWarpgroups);
      mbarrier_init(kValuesFull + 8 * n, kValueFactors ? 2 : 1);
      mbarrier_init(kValuesEmpty + 8 * n, 4 * kWarpgroups);
    }
    mbarrier_init_fence();
  }
  if constexpr (kSharesTiles) clear_rows_without_query(a);
  // forward/clear_tile_counter.h or pack_mask.h may still run.
  if constexpr (kDynamicTiles || kMaskBits) grid_dependency_wait();
  barrier();
  const int loader = wave_id() - 4 * kWarpgroups;
  if (loader >= 0) {
    setmaxnreg_dec<kRegisters.loader>();
    // A tile without keys has nothing to load.
    if (loader == 0) {
      KeyLoader keys{a};
      for_each_tile<true>(a, [&](const QueryTile& t) {
        if (t.order.count > 0) keys.tile(t);
      });
    } else if (loader == 1) {
      QueryLoader queries{a};
      for_each_tile<false>(a, [&](const QueryTile& t) {
        if (t.order.count > 0) queries.tile(t);
      });
    } else if (kTwoLoaders && loader == 2) {
      KeyLoader values{a};
      for_each_tile<false>(a, [&](const QueryTile& t) {
        if (t.order.count > 0) values.values_of_tile(t);
      });
    }
  } else {
    setmaxnreg_inc<kRegisters.consumer>();
    Consumer consumer(a);
    for_each_tile<false>(a, [&](const QueryTile& t) { consumer.tile(t); });
    consumer.end();
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::TmaForwardArguments, fulmen::kernels::prefill_tma)
