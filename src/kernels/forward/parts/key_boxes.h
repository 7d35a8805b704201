// Tiles of keys and values of a split as the TMA brings them: a box a tile, or one for each of its
// pages.
#pragma once

#include "forward/parts/cleared_rows.h"
#include "forward/parts/split_keys.h"

namespace fulmen::kernels {

// Pages of fewer rows than a tile come one by one, each by a lane.
constexpr int kBoxRows = kPageSize > 0 && kPageSize < kBlockN ? kPageSize : kBlockN,
              kBoxes = kBlockN / kBoxRows;
static_assert(!kPaged || (kPageSize > 0 && kPageSize % kBoxRows == 0 && kBoxRows % 8 == 0),
              "key_boxes: boxes lie in a page each");
static_assert(kBoxes <= kWaveSize, "key_boxes: a lane a box");

// The lane's box of a tile: where it is in the tensor map. is_missed: some key of it is attended,
// by the split and by the mask of `rows`, and its page does not exist.
struct KeyBox {
  Int64 row;
  int batch;
  bool is_missed;

  FULMEN_DEVICE static KeyBox of(const ForwardArguments& a, const Place& place,
                                 const SplitKeys& split, Int64 key, const MaskedRows& rows = {}) {
    if constexpr (!kPaged) return {key, place.batch, false};
    if (lane_id() >= kBoxes) return {0, 0, false};
    const Int64 row = key + lane_id() * kBoxRows;
    // Past the last key the table may end: what comes from there is masked.
    const PagedRow in_page = PagedRow::of(a, row < a.seqlen_k ? row : a.seqlen_k - 1);
    const bool exists = in_page.exists(a);
    bool attended = row < split.any.end && row + kBoxRows > split.any.begin;
    if (kMaskBits && attended && !exists) attended = rows.attend_some(row, row + kBoxRows);
    return {row < a.seqlen_k ? in_page.row : 0, exists ? static_cast<int>(in_page.page) : 0,
            attended && !exists};
  }
};

// Panels kFirst to kEnd of a tile that begins at `to`.
template <int kFirst, int kEnd>
FULMEN_DEVICE void load_panels(int to, const TensorMap& map, const Place& place, const KeyBox& box,
                               int barrier, L2Policy policy) {
  if (lane_id() == 0) mbarrier_arrive_expect(barrier, (kEnd - kFirst) * kBlockN * kPanelRowBytes);
  if constexpr (kBoxes > 1) wave_barrier();
  if (lane_id() >= kBoxes) return;
#pragma unroll
  for (int p = kFirst; p < kEnd; ++p) {
    tma_load(to + (p * kBlockN + lane_id() * kBoxRows) * kPanelRowBytes, &map, p * kPanelColumns,
             box.row, place.kv_heads, box.batch, barrier, policy);
  }
}
// Values of keys that no row attends, by the split or by the mask of `rows`, become 0.
template <int kFirst, int kEnd>
FULMEN_DEVICE void clear_foreign_rows(int tile_at, const SplitKeys& split, Int64 key,
                                      const MaskedRows& rows = {}) {
  wave_barrier();
  const Int64 begin = split.any.begin - key, end = split.any.end - key;
  const int first = begin < kBlockN ? static_cast<int>(begin) : kBlockN,
            behind = end < kBlockN ? static_cast<int>(end) : kBlockN;
  if constexpr (kMaskBits) {
    clear_rows<kFirst, kEnd>(tile_at, rows.attended(key).within(first, behind));
  } else {
    clear_rows<kFirst, kEnd>(tile_at, 0, first);
    clear_rows<kFirst, kEnd>(tile_at, behind, kBlockN);
  }
  lds_fence_for_matrices();
  wave_barrier();
}

}  // namespace fulmen::kernels
