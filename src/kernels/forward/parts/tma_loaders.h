// The loaders of prefill_tma.h: two waves ask the TMA for tiles of Q, K and V, into rings of
// buffers that mbarriers guard.
#pragma once

#include "forward/parts/fp8_scales.h"
#include "forward/parts/query_tiles.h"
#include "forward/parts/tma_masks.h"
#include "forward/parts/tma_pages.h"
#include "forward/prefill_tma_layout.h"
#include "tile/nvidia/register_shares.h"
#include "tile/rings.h"

namespace fulmen::kernels {

// Dims in LDS: whole panels, zeros past the last one. Codes of 8 bits are moved by pairs; values
// are transposed then: panels of keys, their rows are dims.
constexpr int kPairedDims = kFp8Products ? kHeadDim / 2 : kHeadDim;
constexpr int kPanels = (kPairedDims + kPanelColumns - 1) / kPanelColumns,
              kPanelsV = (kHeadDimV + kPanelColumns - 1) / kPanelColumns;
constexpr int kValuePanels = kFp8Products ? kBlockN / kFp8PanelKeys : kPanelsV,
              kValueRows = kFp8Products ? kHeadDimV : kBlockN;
// Quantized keys and values whose tokens have scales: these come to LDS beside the tiles.
constexpr bool kKeyFactors = kKvNumbers && kKeyScaleOfToken,
               kValueFactors = kKvNumbers && kValueScaleOfToken;
constexpr TmaPrefillLayout kLdsLayout =
    kFp8Products ? TmaPrefillLayout::of_fp8(kHeadDim, kHeadDimV, kPanelsV* kPanelColumns, kBlockM,
                                            kBlockN, kBuffers)
                 : TmaPrefillLayout::of(kPanels * kPanelColumns, kPanelsV* kPanelColumns, kBlockM,
                                        kBlockN, kBuffers, kVariable, kKeyFactors, kValueFactors);
static_assert(kLdsLayout.total == kLdsBytes,
              "prefill_tma: the host reserves the LDS that the tiles need");
constexpr int kWarpgroups = kBlockM / 64;  // that multiply
static_assert(kBlockM % 64 == 0 && kWorkgroup == 128 * (kWarpgroups + 1),
              "prefill_tma: a warpgroup has 64 rows, one has none");
static_assert(kBlockN % kScoreTile == 0 && (kWholeRows || kFp8Products),
              "prefill_tma: keys are whole tiles of products, of rows that the TMA can read");
static_assert(!kFp8Products || !(kVariable || kPaged || kMaskBits),
              "prefill_fp8: sequences have one length, masks are bands");
static_assert(kKeepMask == kMaskBits && !(kVariable && (kMaskBits || !kDynamicTiles)),
              "prefill_tma: the keep-mask comes as bits, sequences' tiles by the tile counter");
static_assert(!kSplits || (!kBand && !kMaskBits && kLdsLayout.output_bytes > 0),
              "prefill_tma: splits are of as many keys, up to 128 dims");

constexpr RegisterShares kRegisters =
    RegisterShares::of(kWarpgroups, kMinWorkgroups, kTmaRegisters);

// mbarriers: of each buffer, of the queries those of each warpgroup.
constexpr int kQueryBuffers = kLdsLayout.query_buffers;
constexpr int kQueriesFull = kLdsLayout.barriers_at,
              kQueriesEmpty = kQueriesFull + 8 * kQueryBuffers * kWarpgroups;
constexpr int kKeysFull = kQueriesEmpty + 8 * kQueryBuffers * kWarpgroups,
              kKeysEmpty = kKeysFull + 8 * kBuffers;
constexpr int kValuesFull = kKeysEmpty + 8 * kBuffers, kValuesEmpty = kValuesFull + 8 * kBuffers;
constexpr int kPatch = kValuesEmpty + 8 * kBuffers, kValuePatch = kPatch + 8,
              kNextFull = kValuePatch + 8, kNextEmpty = kNextFull + 8;

using QueryRing = Ring<kQueryBuffers>;
using TileRing = Ring<kBuffers>;

// The first of a tile's rows that a warpgroup takes. With a band the first ones often have fewer
// keys than the last: warpgroups change ends from tile to tile.
FULMEN_DEVICE Int64 row_of_group(const ForwardArguments& a, const QueryTile& t, int group,
                                 const QueryRing& ring) {
  const bool odd = (kQueryBuffers == 1 ? ring.parity : ring.buffer) != 0;
  return t.row_begin + t.rows_of_group(a) * (kBand && odd ? kWarpgroups - 1 - group : group);
}
// A warpgroup's mbarrier of the buffer that is next; and where the buffer lies.
FULMEN_DEVICE int queries_barrier(int first, const QueryRing& ring, int group) {
  return first + 8 * (ring.buffer * kWarpgroups + group);
}
FULMEN_DEVICE int queries_at(const QueryRing& ring) {
  return kLdsLayout.queries_at + ring.buffer * kLdsLayout.query_bytes;
}

// One lane asks the TMA for the map's rows of kCount panels, kPanelRows rows apart in LDS.
template <int kCount, int kPanelRows>
FULMEN_DEVICE void load(int to, const TensorMap& map, Int64 row, int head, int batch, int barrier,
                        L2Policy policy) {
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    tma_load(to + p * kPanelRows * kPanelRowBytes, &map, p * kPanelColumns, row, head, batch,
             barrier, policy);
  }
}

// The wave that brings Q: 64 rows for each warpgroup, as soon as that one has begun its last
// product with those before.
struct QueryLoader {
  const TmaForwardArguments& arguments;
  L2Policy once = L2Policy::evict_first();
  QueryRing ring;

  FULMEN_DEVICE void tile(const QueryTile& t) {
#pragma unroll 1
    for (int group = 0; group < kWarpgroups; ++group) {
      mbarrier_wait(queries_barrier(kQueriesEmpty, ring, group), ring.parity ^ 1);
      if (lane_id() == 0) {
        const int full = queries_barrier(kQueriesFull, ring, group),
                  to = queries_at(ring) + group * 64 * kPanelRowBytes;
        const Int64 row = row_of_group(arguments, t, group, ring);
        const BoxPlace place = t.queries_in_map(arguments);
        mbarrier_arrive_expect(full, t.rows_of_group(arguments) * kPanels * kPanelRowBytes);
        if (t.is_shared()) {
          load_shared(to, place, shared_query(arguments, row), t.head, full);
        } else {
          load<kPanels, kBlockM>(to, arguments.q_map, place.row + row, t.head, place.batch, full,
                                 once);
        }
      }
    }
    ring.advance();
  }
  // In its map a query's heads are rows.
  FULMEN_DEVICE void load_shared(int to, const BoxPlace& place, Int64 query, int head,
                                 int full) const {
    const int first = static_cast<int>(place.row + query);
    load<kPanels, kBlockM>(to, arguments.shared_q_map, head, first, place.batch, full, once);
  }
};

// The wave that brings keys and values; kTwoLoaders: one of two.
struct KeyLoader {
  const TmaForwardArguments& arguments;
  L2Policy again = L2Policy::evict_last();
  TileRing key_ring, value_ring;
  int patch_parity = 0;
  TokenFactors factors = {};

  FULMEN_DEVICE void tile(const QueryTile& t) {
    const int kv_head = begin(t);
    if constexpr (kTwoLoaders) {
      for_each_of_tile(t, [&](Int64 first_key, const TilePages& where, bool /*hidden*/) {
        keys(t, first_key, kv_head, where);
      });
      return;
    }
    TilePages now = pages(t, 0), ahead = kFewBoxes ? pages(t, 1) : now;
    keys(t, t.order.first_key(0), kv_head, now);
#pragma unroll 1
    for (int n = 1; n < t.order.count; ++n) {
      const TilePages before = now;
      now = kFewBoxes ? ahead : pages(t, n);
      if constexpr (kFewBoxes) ahead = pages(t, n + 1);
      keys(t, t.order.first_key(n), kv_head, now);
      values(t, t.order.first_key(n - 1), kv_head, kFewBoxes ? before : pages(t, n - 1));
    }
    values(t, t.order.first_key(t.order.count - 1), kv_head, now);
  }
  // kTwoLoaders: the other wave's.
  FULMEN_DEVICE void values_of_tile(const QueryTile& t) {
    const int kv_head = begin(t);
    for_each_of_tile(t, [&](Int64 first_key, const TilePages& where, bool hidden) {
      values(t, first_key, kv_head, where, hidden);
    });
  }
  // Visits the key tiles, whose pages are looked up a tile ahead; kMaskBits: those that some row
  // attends, and whether some of their keys are hidden from all rows.
  template <class Visit>
  FULMEN_DEVICE void for_each_of_tile(const QueryTile& t, const Visit& visit) const {
    if constexpr (kMaskBits) return for_each_kept_tile(arguments, t, visit);
    TilePages ahead = pages(t, 0);
#pragma unroll 1
    for (int n = 0; n < t.order.count; ++n) {
      const TilePages now = ahead;
      ahead = pages(t, n + 1);
      visit(t.order.first_key(n), now, false);
    }
  }
  FULMEN_DEVICE int begin(const QueryTile& t) {
    if constexpr (kSharesTiles)
      again = t.is_alone(arguments) ? L2Policy::evict_first() : L2Policy::evict_last();
    if constexpr (kKeyFactors || kValueFactors) factors = TokenFactors::of(t, arguments);
    return t.head / arguments.group_size;
  }
  FULMEN_DEVICE TilePages pages(const QueryTile& t, int n) const {
    return TilePages::of(arguments, t, t.order.first_key(n < t.order.count ? n : 0));
  }

  FULMEN_DEVICE void keys(const QueryTile& t, Int64 first_key, int kv_head,
                          const TilePages& pages = {}) {
    const int to = kLdsLayout.keys_at + key_ring.buffer * kLdsLayout.key_bytes,
              full = kKeysFull + 8 * key_ring.buffer;
    const bool patched = pages.misses(t);
    mbarrier_wait(kKeysEmpty + 8 * key_ring.buffer, key_ring.parity ^ 1);
    request<kPanels>(to, arguments.k_map, t, first_key, kv_head, pages, patched ? kPatch : full);
    if (patched) patch<kPatch>(full, [&] { pages.make_missing<kPanels>(to); });
    if constexpr (kKeyFactors)
      bring_factors<false>(t, factors.keys, first_key, kLdsLayout.key_factors_at, key_ring, full);
    key_ring.advance();
  }
  // hidden: kMaskBits, some keys of the tile are attended by no row.
  FULMEN_DEVICE void values(const QueryTile& t, Int64 first_key, int kv_head,
                            const TilePages& pages = {}, bool hidden = false) {
    const int to = kLdsLayout.values_at + value_ring.buffer * kLdsLayout.value_bytes,
              full = kValuesFull + 8 * value_ring.buffer;
    mbarrier_wait(kValuesEmpty + 8 * value_ring.buffer, value_ring.parity ^ 1);
    // Past the last key are zeros; of a sequence, what lies behind it.
    const bool before = first_key < t.keys.begin,
               after = (kVariable || t.keys.end < arguments.seqlen_k) &&
                       first_key + kBlockN > t.keys.end;
    if constexpr (kFp8Products) {
      codes_of_values(to, t, first_key, kv_head, full);
      value_ring.advance();
      return;
    }
    const bool patched = kMaskBits ? hidden : before || after;
    constexpr int kChanged = kTwoLoaders ? kValuePatch : kPatch;
    const auto rows = HiddenValues::of(arguments, t, first_key, hidden);  // ahead of the tile
    request<kPanelsV>(to, arguments.v_map, t, first_key, kv_head, pages, patched ? kChanged : full);
    if (patched) patch<kChanged>(full, [&] { rows.template clear<kPanelsV>(to); });
    if constexpr (kValueFactors)
      bring_factors<true>(t, factors.values, first_key, kLdsLayout.value_factors_at, value_ring,
                          full);
    value_ring.advance();
  }
  // The factors of a tile's rows: a second arrival at the buffer's mbarrier. Rows that are not
  // there have the last one's. Probabilities of values that no row attends are 0, and their factor
  // may be anything: it is 0, too.
  template <bool kValues>
  FULMEN_DEVICE void bring_factors(const QueryTile& t, const float* from, Int64 first_key, int to,
                                   const TileRing& ring, int full) const {
    const int last = at_most(factors.rows - first_key, kBlockN) - 1;
    for (int row = lane_id(); row < kBlockN; row += kWaveSize) {
      const Int64 key = first_key + row;
      const bool hidden = kValues && (key < t.keys.begin || key >= t.keys.end);
      const float factor = global_load(from + first_key + (row < last ? row : last));
      lds_store(to + 4 * (ring.buffer * kBlockN + row), hidden ? 0.0F : factor);
    }
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(full);
  }
  // Values in 8 bits: hidden ones are 0 as they are (forward/fp8_key_codes.h).
  FULMEN_DEVICE void codes_of_values(int to, const QueryTile& t, Int64 first_key, int kv_head,
                                     int barrier) const {
    if (lane_id() != 0) return;
    mbarrier_arrive_expect(barrier, kLdsLayout.value_bytes);
#pragma unroll
    for (int p = 0; p < kValuePanels; ++p) {
      tma_load(to + p * kValueRows * kPanelRowBytes, &arguments.v_map, 0, 0,
               static_cast<int>(first_key / kFp8PanelKeys) + p,
               t.batch * arguments.num_kv_heads + kv_head, barrier, again);
    }
  }
  // kBlockN rows of kCount panels.
  template <int kCount>
  FULMEN_DEVICE void request(int to, const TensorMap& map, const QueryTile& t, Int64 first_key,
                             int kv_head, const TilePages& pages, int barrier) const {
    if (lane_id() == 0) mbarrier_arrive_expect(barrier, kCount * kBlockN * kPanelRowBytes);
    if constexpr (kPaged) {
      wave_barrier();
      pages.load<kCount>(to, map, kv_head, barrier, again);
    } else if (lane_id() == 0) {
      const BoxPlace place = t.keys_in_map(arguments);
      load<kCount, kBlockN>(to, map, place.row + first_key, kv_head, place.batch, barrier, again);
    }
  }
  // What the TMA brings is changed in LDS before it counts as full.
  template <int kChanged, class Change>
  FULMEN_DEVICE void patch(int full, const Change& change) {
    mbarrier_wait(kChanged, patch_parity);
    patch_parity ^= 1;
    wave_barrier();
    change();
    lds_fence_for_matrices();
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(full);
  }
};

}  // namespace fulmen::kernels
