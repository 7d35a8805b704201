// Forward for many queries by Hopper's warpgroup products, whose operands the tensor memory accelerator (TMA) brings.
//
//   S[64, kBlockN] = Q[64, d] K[kBlockN, d]^T,  P = 2^(S - max),  O[64, d_v] += P V[kBlockN, d_v]     a warpgroup's step
//
// A workgroup has kBlockM query rows of one head, a warpgroup 64 of them, a wave 16. One more warpgroup has two waves that work:
// the key loader asks the TMA for tiles of keys and values, in a ring of kBuffers each, the query loader for each warpgroup's Q. An
// mbarrier a buffer says that a tile has arrived (full), another that no warpgroup reads it any more (empty). A persistent kernel's
// workgroups take further tiles of queries: the loaders are then ahead of the warpgroups, which store outputs meanwhile.
//
// A step begins S = Q K^T of tile n and O += P V of tile n - 1, and computes exponentials of n while the second one is in
// flight. Ping-pong: warpgroups issue products one after the other, so that one's exponentials overlap another's products.
//
// kSplits: the last tiles of queries would leave multiprocessors without work. Their keys are split, and forward/decode_combine.h
// merges what the splits give.
//
// LDS: up to 128 dims 2 x Q, kBuffers x K, kBuffers x V and the outputs, which the TMA stores; wider heads have one Q, and their
// outputs go from registers to memory. Then mbarriers. Registers of a lane: S kBlockN / 2, O d_v / 2, P kBlockN / 4.
#include "forward/parts/query_tiles.h"
#include "forward/prefill_tma_layout.h"
#include "tile/lane_quads.h"
#include "tile/nvidia/register_shares.h"
#include "tile/nvidia/warpgroup_rows.h"
#include "tile/rings.h"

namespace fulmen::kernels {

// Dims in LDS: whole panels, zeros past the last one.
constexpr int kPanels = (kHeadDim + kPanelColumns - 1) / kPanelColumns, kPanelsV = (kHeadDimV + kPanelColumns - 1) / kPanelColumns;
constexpr TmaPrefillLayout kLdsLayout =
    TmaPrefillLayout::of(kPanels * kPanelColumns, kPanelsV* kPanelColumns, kBlockM, kBlockN, kBuffers);
static_assert(kLdsLayout.total == kLdsBytes, "prefill_tma: the host reserves the LDS that the tiles need");
constexpr int kWarpgroups = kBlockM / 64;  // that multiply
static_assert(kBlockM % 64 == 0 && kWorkgroup == 128 * (kWarpgroups + 1), "prefill_tma: a warpgroup has 64 rows, one has none");
static_assert(kBlockN % 16 == 0 && kWholeRows, "prefill_tma: keys are whole tiles of products, of rows that the TMA can read");
static_assert(!kVariable && kKeepMask == kMaskBits, "prefill_tma: a tile's rows are neighbours; the keep-mask comes as bits");
static_assert(!kSplits || (!kBand && !kMaskBits && kLdsLayout.output_bytes > 0),
              "prefill_tma: splits are of as many keys, up to 128 dims");

constexpr RegisterShares kRegisters = RegisterShares::of(kWarpgroups, kMinWorkgroups, kTmaRegisters);

// mbarriers: of each buffer, of the queries those of each warpgroup.
constexpr int kQueryBuffers = kLdsLayout.query_buffers;
constexpr int kQueriesFull = kLdsLayout.barriers_at, kQueriesEmpty = kQueriesFull + 8 * kQueryBuffers * kWarpgroups;
constexpr int kKeysFull = kQueriesEmpty + 8 * kQueryBuffers * kWarpgroups, kKeysEmpty = kKeysFull + 8 * kBuffers;
constexpr int kValuesFull = kKeysEmpty + 8 * kBuffers, kValuesEmpty = kValuesFull + 8 * kBuffers;
constexpr int kPatch = kValuesEmpty + 8 * kBuffers, kNextFull = kPatch + 8, kNextEmpty = kNextFull + 8;

using QueryRing = Ring<kQueryBuffers>;
using TileRing = Ring<kBuffers>;
// Tiles as operands. Where registers allow, the next one's place is known before a warpgroup's turn, not computed in it.
constexpr bool kKeepsPlaces = !kBias && !kAlibi && !kDropout && (!kBand || (kWarpgroups <= 2 && kHeadDim <= 128));
struct MatrixRing : TileRing {
  int first_at, step;  // in bytes
  LdsMatrix kept;

  FULMEN_DEVICE MatrixRing(int at, int bytes) : first_at(at), step(bytes), kept(LdsMatrix::of(at, kBlockN)) {}
  FULMEN_DEVICE LdsMatrix now() const { return kKeepsPlaces ? kept : LdsMatrix::of(first_at + buffer * step, kBlockN); }
  FULMEN_DEVICE void advance() {
    TileRing::advance();
    if constexpr (kKeepsPlaces) kept = buffer == 0 ? LdsMatrix::of(first_at, kBlockN) : kept.further(step);
  }
};

// Dynamic scheduler: the warp that loads keys takes the next tile when it has requested all of this one, and tells the other warps.
struct NextTile {
  int parity = 0;

  FULMEN_DEVICE unsigned take(const ForwardArguments& a) {
    const auto nth = static_cast<unsigned>(a.step_tile + counter_fetch_add(a.tile_counter));
    mbarrier_wait(kNextEmpty, parity ^ 1);
    if (lane_id() == 0) {
      lds_store(kLdsLayout.next_at, nth);
      mbarrier_arrive(kNextFull);
    }
    parity ^= 1;
    return nth;
  }
  FULMEN_DEVICE unsigned told() {
    mbarrier_wait(kNextFull, parity);
    const auto nth = static_cast<unsigned>(broadcast(static_cast<int>(lds_load<unsigned>(kLdsLayout.next_at))));
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(kNextEmpty);
    parity ^= 1;
    return nth;
  }
};

// One lane asks the TMA for kRows rows of kCount panels, which lie kPanelRows rows apart in LDS.
template <int kCount, int kRows, int kPanelRows>
FULMEN_DEVICE void load(int to, const TensorMap& map, Int64 row, int head, int batch, int barrier, L2Policy policy) {
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    tma_load(to + p * kPanelRows * kPanelRowBytes, &map, p * kPanelColumns, row, head, batch, barrier, policy);
  }
}

// Which 64 of a tile's rows a warpgroup takes. With a band the first ones often have fewer keys than the last: warpgroups change
// ends from tile to tile.
FULMEN_DEVICE int rows_of_group(int group, const QueryRing& ring) {
  const bool odd = (kQueryBuffers == 1 ? ring.parity : ring.buffer) != 0;
  return 64 * (kBand && odd ? kWarpgroups - 1 - group : group);
}
// A warpgroup's mbarrier of the buffer that is next; and where the buffer lies.
FULMEN_DEVICE int queries_barrier(int first, const QueryRing& ring, int group) {
  return first + 8 * (ring.buffer * kWarpgroups + group);
}
FULMEN_DEVICE int queries_at(const QueryRing& ring) { return kLdsLayout.queries_at + ring.buffer * kLdsLayout.query_bytes; }

// Visits a workgroup's tiles. kIsKeyLoader: this warp takes tiles from the counter, others are told.
template <bool kIsKeyLoader, class Visit>
FULMEN_DEVICE void for_each_tile(const ForwardArguments& a, const Visit& visit) {
  QueryTiles tiles(a);
  NextTile next;
  do {
    visit(QueryTile::of(a, tiles.block(), tiles.split()));
    if constexpr (kDynamicTiles) {
      tiles.place(kIsKeyLoader ? next.take(a) : next.told());
    } else {
      tiles.advance();
    }
  } while (kPersistent && tiles.there());
}

// What `rows` queries from row_begin on attend.
FULMEN_DEVICE MaskedRows masked_rows(const ForwardArguments& a, const QueryTile& t, Int64 row_begin, int rows) {
  const Int64 end = row_begin + rows < a.seqlen_q ? row_begin + rows : a.seqlen_q;
  return MaskedRows::of(a, t.batch, t.head, row_begin, end);
}

// The wave that brings Q: 64 rows for each warpgroup, as soon as that one has begun its last product with those before.
struct QueryLoader {
  const TmaForwardArguments& arguments;
  L2Policy once = L2Policy::evict_first();
  QueryRing ring;

  FULMEN_DEVICE void tile(const QueryTile& t) {
#pragma unroll 1
    for (int group = 0; group < kWarpgroups; ++group) {
      mbarrier_wait(queries_barrier(kQueriesEmpty, ring, group), ring.parity ^ 1);
      if (lane_id() == 0) {
        const int full = queries_barrier(kQueriesFull, ring, group), to = queries_at(ring) + group * 64 * kPanelRowBytes;
        mbarrier_arrive_expect(full, kLdsLayout.query_bytes / kWarpgroups);
        load<kPanels, 64, kBlockM>(to, arguments.q_map, t.row_begin + rows_of_group(group, ring), t.head, t.batch, full, once);
      }
    }
    ring.advance();
  }
};

// The wave that brings keys and values.
struct KeyLoader {
  const TmaForwardArguments& arguments;
  L2Policy again = L2Policy::evict_last();
  TileRing key_ring, value_ring;
  int patch_parity = 0;

  FULMEN_DEVICE void tile(const QueryTile& t) {
    const int kv_head = t.head / arguments.group_size;
    if constexpr (kMaskBits) {
      kept_tiles(t, kv_head);
      return;
    }
    keys(t, t.order.first_key(0), kv_head);
#pragma unroll 1
    for (int n = 1; n < t.order.count; ++n) {
      keys(t, t.order.first_key(n), kv_head);
      values(t, t.order.first_key(n - 1), kv_head);
    }
    values(t, t.order.first_key(t.order.count - 1), kv_head);
  }

 private:
  // Those tiles that some row attends.
  FULMEN_DEVICE void kept_tiles(const QueryTile& t, int kv_head) {
    KeptTiles tiles(masked_rows(arguments, t, t.row_begin, kBlockM), t.order);
    int before = -1;
    bool before_is_full = true;
#pragma unroll 1
    for (int n = 0; n < t.order.count; ++n) {
      if (!tiles.is_kept(n)) continue;
      keys(t, t.order.first_key(n), kv_head);
      if (before >= 0) values(t, t.order.first_key(before), kv_head, !before_is_full);
      before = n;
      before_is_full = tiles.has_all_keys(n);
    }
    if (before >= 0) values(t, t.order.first_key(before), kv_head, !before_is_full);
  }
  FULMEN_DEVICE void keys(const QueryTile& t, Int64 first_key, int kv_head) {
    mbarrier_wait(kKeysEmpty + 8 * key_ring.buffer, key_ring.parity ^ 1);
    if (lane_id() == 0) {
      const int full = kKeysFull + 8 * key_ring.buffer;
      mbarrier_arrive_expect(full, kLdsLayout.key_bytes);
      load<kPanels, kBlockN, kBlockN>(kLdsLayout.keys_at + key_ring.buffer * kLdsLayout.key_bytes, arguments.k_map, first_key,
                                      kv_head, t.batch, full, again);
    }
    key_ring.advance();
  }
  // hidden: kMaskBits, some keys of the tile are attended by no row.
  FULMEN_DEVICE void values(const QueryTile& t, Int64 first_key, int kv_head, bool hidden = false) {
    const int to = kLdsLayout.values_at + value_ring.buffer * kLdsLayout.value_bytes, full = kValuesFull + 8 * value_ring.buffer;
    mbarrier_wait(kValuesEmpty + 8 * value_ring.buffer, value_ring.parity ^ 1);
    // Values of keys that no row attends are not to be multiplied, not even with 0: they may be NaN. Past the last one are zeros.
    const bool before = first_key < t.keys.begin, after = t.keys.end < arguments.seqlen_k && first_key + kBlockN > t.keys.end;
    const bool patched = kMaskBits ? hidden : before || after;
    if (lane_id() == 0) {
      const int arrives = patched ? kPatch : full;
      mbarrier_arrive_expect(arrives, kLdsLayout.value_bytes);
      load<kPanelsV, kBlockN, kBlockN>(to, arguments.v_map, first_key, kv_head, t.batch, arrives, again);
    }
    if (patched) {
      mbarrier_wait(kPatch, patch_parity);
      patch_parity ^= 1;
      wave_barrier();
      if constexpr (kMaskBits) {
        const TileBits attended = masked_rows(arguments, t, t.row_begin, kBlockM).attended(first_key);
        clear_unless(to, 0, kBlockN, [&](int row) { return attended.has_column(row); });
      } else {
        const auto all = [](int) { return false; };
        if (before) clear_unless(to, 0, static_cast<int>(t.keys.begin - first_key), all);
        if (after) clear_unless(to, static_cast<int>(t.keys.end - first_key), kBlockN, all);
      }
      lds_fence_for_matrices();
      wave_barrier();
      if (lane_id() == 0) mbarrier_arrive(full);
    }
    value_ring.advance();
  }
  template <class Stays>
  FULMEN_DEVICE static void clear_unless(int tile_at, int begin, int end, const Stays& stays) {
    for (int row = begin + lane_id() / 8; row < end; row += kWaveSize / 8) {
      if (stays(row)) continue;
#pragma unroll
      for (int p = 0; p < kPanelsV; ++p) {
        lds_store(tile_at + (p * kBlockN + row) * kPanelRowBytes + lane_id() % 8 * 16, Words<4>{});
      }
    }
  }
};

// What a wave of the other warpgroups does.
struct Consumer {
  const TmaForwardArguments& arguments;
  int group, next_group;
  QueryRing query_ring;
  MatrixRing key_ring{kLdsLayout.keys_at, kLdsLayout.key_bytes}, value_ring{kLdsLayout.values_at, kLdsLayout.value_bytes};
  LdsMatrix queries;

  FULMEN_DEVICE explicit Consumer(const TmaForwardArguments& a)
      : arguments(a), group(wave_id() / 4), next_group(group + 1 < kWarpgroups ? group + 1 : 0) {
    if (kWarpgroups > 1 && next_group == 0) pass_turn();
  }

  FULMEN_DEVICE void tile(const QueryTile& t) {
    const RowMap map{arguments, t.batch, t.head, arguments.seqlen_q};
    const Int64 group_row = t.row_begin + rows_of_group(group, query_ring), wave_row = group_row + wave_id() % 4 * 16;
    const Int64 row_end = group_row + 64 < arguments.seqlen_q ? group_row + 64 : arguments.seqlen_q;
    const algorithm::KeyRange keys = band_of(arguments).any(group_row, row_end);
    bool any = group_row < row_end && keys.end > keys.begin;
    int n = any ? t.order.passed_over(keys.end) : t.order.count;
    WaveRows rows = {};
    rows.state.clear();
    queries = LdsMatrix::of(queries_at(query_ring), kBlockM).rows_further(64 * group);
    if (t.order.count > 0) mbarrier_wait(queries_barrier(kQueriesFull, query_ring, group), query_ring.parity);
    if constexpr (kMaskBits) {
      any = kept_tiles(t, map, wave_row, group_row, rows);
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
    } else if constexpr (kStoresByTma) {
      give_to_tma(map, wave_row, rows);
    } else {
      store(map, wave_row, rows);
    }
  }
  // Waits until the TMA has stored the last tile's outputs.
  FULMEN_DEVICE void end() const {
    if constexpr (kStoresByTma) {
      if (lane_id() == 0) tma_wait<0>();
    }
  }

 private:
  // The tiles that some of the workgroup's rows attend. Returns whether the warpgroup's own do.
  FULMEN_DEVICE bool kept_tiles(const QueryTile& t, const RowMap& map, Int64 wave_row, Int64 group_row, WaveRows& rows) {
    KeptTiles all(masked_rows(arguments, t, t.row_begin, kBlockM), t.order), own(masked_rows(arguments, t, group_row, 64), t.order);
    int n = 0;
#pragma unroll 1
    for (; n < t.order.count && !own.is_kept(n); ++n) {
      if (all.is_kept(n)) pass_over();
    }
    if (n == t.order.count) return false;
    first<true>(map, wave_row, rows, t.order.first_key(n));
#pragma unroll 1
    for (++n; n < t.order.count; ++n) {
      if (!all.is_kept(n)) continue;
      // Once products are in flight a tile that the warpgroup does not attend takes its step as well.
      if (n >= t.order.masked && own.is_whole(n)) {
        step<false>(map, wave_row, rows, t.order.first_key(n));
      } else {
        step<true>(map, wave_row, rows, t.order.first_key(n));
      }
    }
    return true;
  }
  FULMEN_DEVICE void wait_keys() const { mbarrier_wait(kKeysFull + 8 * key_ring.buffer, key_ring.parity); }
  FULMEN_DEVICE void wait_values() const { mbarrier_wait(kValuesFull + 8 * value_ring.buffer, value_ring.parity); }
  // Releases a buffer to its loader. All lanes of the wave have waited for the products that read it.
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
    float score[kKeyTiles][kElements], factor[kRowsPerLane];
    const auto row_bits = RowBits<kMasked>::of(map, wave_row, first_key);
    wait_keys();
    wait_turn();
    wgmma_fence();
    begin_scores(queries, key_ring.now(), score);
    pass_turn();
    wgmma_wait<0>();
    wgmma_hold(score);
    release_keys();
    exponentiate_tile<kMasked>(map, wave_row, rows.state, first_key, row_bits, score, factor);
    keep_probabilities(rows, score);
  }
  template <bool kMasked>
  FULMEN_DEVICE void step(const RowMap& map, Int64 wave_row, WaveRows& rows, Int64 first_key) {
    float score[kKeyTiles][kElements];
    const auto row_bits = RowBits<kMasked>::of(map, wave_row, first_key);  // in flight beside the products
    wait_keys();
    wait_turn();
    wgmma_fence();
    begin_scores(queries, key_ring.now(), score);
    wait_values();
    begin_outputs(rows, value_ring.now());
    pass_turn();
    wgmma_wait<1>();
    wgmma_hold(score);
    release_keys();
    exponentiate_and_end_outputs<kMasked>(map, wave_row, rows, first_key, row_bits, score);
    release_values();
    keep_probabilities(rows, score);
  }
  FULMEN_DEVICE void last(WaveRows& rows) {
    wait_values();
    wgmma_fence();
    begin_outputs(rows, value_ring.now());
    end_outputs(rows);
    release_values();
  }

  // By way of the wave's panels of 16 rows in LDS.
  FULMEN_DEVICE void give_to_tma(const RowMap& map, Int64 wave_row, const WaveRows& rows) const {
    const ForwardArguments& a = map.arguments;
    float factor[kRowsPerLane];
    end_rows(map, wave_row, rows.state, factor);
    // A lane's address is that of a row of one of four matrices of 8 x 8.
    const int lane_row = lane_id() % 16, panels_at = kLdsLayout.outputs_at + wave_id() * kPanelsV * kOutputPanelBytes;
    const int lane_at = panels_at + panel_place(lane_row, lane_id() / 16 * 8, 16);
    if (lane_id() == 0) tma_wait_read();
    wave_barrier();
#pragma unroll
    for (int d = 0; d < kHeadDimV / 16; ++d) {
      const auto& tile = rows.out[0][d];
      Words<4> words;
#pragma unroll
      for (int w = 0; w < 4; ++w) words.word[w] = pack<Element>(tile[2 * w] * factor[w % 2], tile[2 * w + 1] * factor[w % 2]);
      stmatrix_x4((lane_at ^ d % 4 * 32) + d / 4 * kOutputPanelBytes, words);
    }
    lds_fence_for_matrices();
    wave_barrier();
    if (lane_id() == 0 && wave_row < a.seqlen_q) {
#pragma unroll
      for (int p = 0; p < kPanelsV; ++p) {
        tma_store(&arguments.out_map, panels_at + p * kOutputPanelBytes, p * kPanelColumns, wave_row, map.first_head, map.batch);
      }
    }
  }
  FULMEN_DEVICE static void store_split(const RowMap& map, Int64 wave_row, int split, const WaveRows& rows) {
    const ForwardArguments& a = map.arguments;
    const Int64 head = static_cast<Int64>(map.batch) * a.num_heads + map.first_head;
    const Int64 split_rows = static_cast<Int64>(a.batch) * a.num_heads * a.seqlen_q - a.first_split_row;
    const Int64 first = split * split_rows + head * a.seqlen_q - a.first_split_row;
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 i = wave_row + tile_row(slot);
      const float sum = total(rows.state.sum[slot]);
      if (i < a.seqlen_q) store_part(a, first + i, slot, 0, rows, sum);
    }
  }
  // From registers to memory: the four lanes of a row exchange their pairs for pieces of 16 bytes, of two tiles at a time.
  FULMEN_DEVICE static void store(const RowMap& map, Int64 wave_row, const WaveRows& rows) {
    const ForwardArguments& a = map.arguments;
    float factor[kRowsPerLane];
    end_rows(map, wave_row, rows.state, factor);
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 i = wave_row + tile_row(slot);
      Element* const row = out_row(a, map.batch, map.first_head, map.clamp(i));
#pragma unroll
      for (int g = 0; g < kProducts; ++g) {
#pragma unroll
        for (int d = 0; d < kProductTiles; d += 2) {
          const bool two = d + 1 < kProductTiles;
          const float f = factor[slot];
          const auto &low = rows.out[g][d], &high = rows.out[g][two ? d + 1 : d];
          Words<4> piece{{pack<Element>(low[2 * slot] * f, low[2 * slot + 1] * f),
                          pack<Element>(low[2 * slot + 4] * f, low[2 * slot + 5] * f),
                          pack<Element>(high[2 * slot] * f, high[2 * slot + 1] * f),
                          pack<Element>(high[2 * slot + 4] * f, high[2 * slot + 5] * f)}};
          transpose_quads(piece.word);
          const int part = lane_id() % 4, dim = 16 * (g * kProductTiles + d) + 8 * part;
          if (i < a.seqlen_q && (two || part < 2)) store_piece(row, dim, a.head_dim_v, piece);
        }
      }
    }
  }

  static constexpr bool kStoresByTma = kLdsLayout.output_bytes > 0;
  static constexpr int kOutputPanelBytes = 16 * kPanelRowBytes;
  static constexpr bool kTurns = kWarpgroups > 1 && kPingPong;
};

FULMEN_DEVICE void prefill_tma(const TmaForwardArguments& a) {
  if (thread_id() == 0) {
    mbarrier_init(kPatch, 1);
    mbarrier_init(kNextFull, 1);
    mbarrier_init(kNextEmpty, 4 * kWarpgroups + 1);
#pragma unroll
    for (int n = 0; n < kQueryBuffers * kWarpgroups; ++n) {
      mbarrier_init(kQueriesFull + 8 * n, 1);
      mbarrier_init(kQueriesEmpty + 8 * n, 4);
    }
#pragma unroll
    for (int n = 0; n < kBuffers; ++n) {
      mbarrier_init(kKeysFull + 8 * n, 1);
      mbarrier_init(kKeysEmpty + 8 * n, 4 * kWarpgroups);
      mbarrier_init(kValuesFull + 8 * n, 1);
      mbarrier_init(kValuesEmpty + 8 * n, 4 * kWarpgroups);
    }
    mbarrier_init_fence();
  }
  if constexpr (kDynamicTiles) grid_dependency_wait();  // forward/clear_tile_counter.h may still run
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
