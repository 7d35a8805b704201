// Keys and values in pages, as prefill_tma.h has the TMA bring them: a box a page, or one where a
// page holds a whole tile.
#pragma once

#include "forward/parts/query_tiles.h"

namespace fulmen::kernels {

constexpr int kBoxRows = kPageSize > 0 && kPageSize < kBlockN ? kPageSize : kBlockN,
              kBoxes = kBlockN / kBoxRows;
// Few boxes of a tile are looked up a tile ahead, and one lane asks for them. Of many each lane
// asks for its own: their places take more registers than a loader has.
constexpr bool kFewBoxes = kBoxes <= 2;
// A wave asks for keys, another one for values: lanes of many boxes ask one after the other, some
// hundred cycles each, and values of which a mask hides some are changed in LDS first.
constexpr bool kTwoLoaders = kMaskBits || (kPaged && !kFewBoxes);
static_assert(!kPaged || (kPageSize > 0 && kPageSize % kBoxRows == 0 && kBlockN % kBoxRows == 0 &&
                          kBoxRows % 8 == 0 && kBoxes <= kWaveSize),
              "prefill_tma: a box lies in a page");

// A lane's box of a tile's keys; lanes from kBoxes on have none.
struct TilePages {
  Int64 key;  // the box's first one
  PagedRow place;
  bool exists;

  FULMEN_DEVICE static TilePages of(const ForwardArguments& call, const QueryTile& t,
                                    Int64 first_key) {
    if constexpr (!kPaged) {
      return {};
    } else {
      const ForwardArguments& a = t.sequence(call);
      const Int64 key = first_key + lane_id() % kBoxes * kBoxRows;
      // Past the last key the table may end: what comes from there is masked.
      const PagedRow place = PagedRow::of(a, key < a.seqlen_k ? key : a.seqlen_k - 1);
      return {key, {place.page, key < a.seqlen_k ? place.row : 0}, place.exists(a)};
    }
  }
  // Whether an attended key's page does not exist.
  FULMEN_DEVICE bool misses(const QueryTile& t) const {
    if constexpr (!kPaged) return false;
    return any_lane(!exists && is_attended(t));
  }
  template <int kCount>
  FULMEN_DEVICE void load(int to, const TensorMap& map, int kv_head, int barrier,
                          L2Policy policy) const {
    const unsigned page = exists ? place.page : 0U;
    if constexpr (kFewBoxes) {
      const unsigned second = kBoxes > 1 ? shuffle_xor(page, 1) : page;
      if (lane_id() != 0) return;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        load_box<kCount>(to, map, kv_head, box, box == 0 ? page : second, barrier, policy);
    } else if (lane_id() < kBoxes) {
      load_box<kCount>(to, map, kv_head, lane_id(), page, barrier, policy);
    }
  }
  // Keys of pages that do not exist become NaN, as their rows' results are.
  template <int kCount>
  FULMEN_DEVICE void make_missing(int to) const {
    if (lane_id() >= kBoxes || exists) return;
    const Words<4> nan{{~0U, ~0U, ~0U, ~0U}};
    for (int row = 0; row < kCount * kBoxRows; ++row) {
      const int panel = row / kBoxRows,
                at =
                    to + (panel * kBlockN + lane_id() * kBoxRows + row % kBoxRows) * kPanelRowBytes;
      for (int byte = 0; byte < kPanelRowBytes; byte += 16) lds_store(at + byte, nan);
    }
  }

 private:
  template <int kCount>
  FULMEN_DEVICE void load_box(int to, const TensorMap& map, int kv_head, int box, unsigned page,
                              int barrier, L2Policy policy) const {
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      tma_load(to + (p * kBlockN + box * kBoxRows) * kPanelRowBytes, &map, p * kPanelColumns,
               kBoxes > 1 ? 0 : place.row, kv_head, static_cast<int>(page), barrier, policy);
    }
  }
  FULMEN_DEVICE bool is_attended(const QueryTile& t) const {
    return key < t.keys.end && key + kBoxRows > t.keys.begin;
  }
};

}  // namespace fulmen::kernels
