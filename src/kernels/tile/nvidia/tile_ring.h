// NVIDIA: cp.async copies rows by pieces of 16 bytes, [row][dim].
#pragma once

#include "tile/direct.h"
#include "tile/stored_scales.h"
#include "tile/tile_ring_layout.h"

namespace fulmen::kernels {

constexpr TileRingLayout kRing =
    TileRingLayout::of(kHeadDim, kStoredBytes<false>, kHeadDimV, kStoredBytes<true>, kBlockN);
template <bool kValues>
constexpr int kRingPitch = kValues ? kRing.value_pitch : kRing.key_pitch;

// Rows of a tile that has arrived, read as NearRows are.
template <bool kValues>
struct RingRows {
  int at;  // of the tile's first row

  template <bool kUniform, int kCount>
  FULMEN_DEVICE StoredWords<kValues, kCount> load(int key, int fixed, int dim) const {
    return lds_load<StoredWords<kValues, kCount> >(at + (key + fixed) * kRingPitch<kValues> +
                                                   dim * kStoredBytes<kValues>);
  }
};
struct RingTile {
  int at;

  template <bool kValues, int kTiles>
  FULMEN_DEVICE StepScales<kValues, kTiles, true> scales(float factor) const {
    return StepScales<kValues, kTiles, true>::staged(
        at + (kValues ? kRing.value_scales_at : kRing.key_scales_at), factor);
  }

  template <bool kValues>
  FULMEN_DEVICE RingRows<kValues> rows() const {
    return {kValues ? at + kRing.values_at : at};
  }
};

// The scale of a lane's row in flight: a tile later it goes to LDS. A tile has no more rows than a
// wave has lanes.
template <bool kValues>
struct ScaleInFlight {
  // Else the head's alone is multiplied with.
  static constexpr bool kRows = !StepScales<kValues, 1>::kOne;
  typename StoredHead<kValues>::Scale scale;
  bool exists;  // its page

  // last: the tile's last row that is there.
  FULMEN_DEVICE void load(const ForwardArguments& a, const StoredHead<kValues>& head,
                          const TilePlace& tile, int last) {
    if constexpr (!kRows) return;
    const int row = lane_id() < last ? lane_id() : last;
    exists = true;
    Int64 at = (tile.key + row) * (kValues ? a.v_scale : a.k_scale).row;
    if constexpr (kPaged) {
      const PagedRow place = kTilesInPages ? PagedRow{uniform(tile.place.page),
                                                      tile.place.row + static_cast<unsigned>(row)}
                                           : PagedRow::of(a, tile.key + row);
      exists = kValues || place.exists(a);
      at = StoredRow<kValues>::scale_in_page(a, place);
    }
    if constexpr (StoredHead<kValues>::kOfToken) scale = global_load(head.scales + at);
  }
  FULMEN_DEVICE void store(const StoredHead<kValues>& head, int to) const {
    if constexpr (!kRows) return;
    float factor = head.factor;
    if constexpr (StoredHead<kValues>::kOfToken) factor *= to_float(scale);
    if (lane_id() < kBlockN)
      lds_store(to + 4 * static_cast<int>(lane_id()),
                factor_of_scale<kValues>(exists ? factor : kNan));
  }
};

class TileRing {
 public:
  FULMEN_DEVICE TileRing(int wave, const StoredHead<false>& keys, const StoredHead<true>& values)
      : at_(wave * kBuffers * kRing.tile_bytes), keys_(keys), values_(values) {}

  // Starts the copies of a tile, if any of its keys is there, to where the last release() was. A
  // wave fetches kBuffers tiles, and one more after each release().
  FULMEN_DEVICE void fetch(const KeySource& keys, const KeySource& values, const TilePlace& tile) {
    const int to = at_ + filled_ * kRing.tile_bytes;
    store_scales();
    if (tile.key < keys.end) {
      copy_rows<false>(keys, tile, to);
      copy_rows<true>(values, tile, to + kRing.values_at);
      const int last = at_most(keys.end - tile.key, kBlockN) - 1;
      key_scale_.load(keys.arguments, keys_, tile, last);
      value_scale_.load(keys.arguments, values_, tile, last);
      if constexpr (kScalesOfRows) scales_to_ = to;
    }
    copy_commit();
    filled_ = filled_ == kBuffers - 1 ? 0 : filled_ + 1;
  }
  // The oldest tile.
  FULMEN_DEVICE RingTile arrived() const {
    copy_wait<kBuffers - 1>();
    wave_barrier();
    return {at_ + filled_ * kRing.tile_bytes};
  }
  // All lanes have read it.
  FULMEN_DEVICE void release() const { wave_barrier(); }

 private:
  // Rows that are not there, and dims beyond a row's end, are 0: their scores are masked, their
  // probabilities 0.
  template <bool kValues>
  FULMEN_DEVICE static void copy_rows(const KeySource& source, const TilePlace& tile, int to) {
    constexpr int kRowBytes = (kValues ? kHeadDimV : kHeadDim) * kStoredBytes<kValues>;
    constexpr int kRowPieces = kRowBytes / 16, kAll = kBlockN * kRowPieces;
    const int last = at_most(source.end - tile.key, kBlockN) - 1;
    const int skipped =
        kBand && kValues && tile.key < source.begin ? static_cast<int>(source.begin - tile.key) : 0;
    const KvElement* const rows = tile.row<kValues>(source.arguments, source.view, source.rows);
    const Int64 stride = tile.stride<kValues>(source.arguments, source.view);
#pragma unroll
    for (int n = 0; n < (kAll + kWaveSize - 1) / kWaveSize; ++n) {
      const int piece = n * kWaveSize + static_cast<int>(lane_id());
      if (kAll % kWaveSize != 0 && piece >= kAll) break;
      const int row = piece / kRowPieces, byte = piece % kRowPieces * 16;
      const bool there = row >= skipped && row <= last &&
                         (kExactDims || byte < source.dims * kStoredBytes<kValues>);
      const KvElement* from = source.rows;
      if (there) {
        from = (kScattered
                    ? kv_row<kValues>(source.arguments, source.view, source.rows, tile.key + row)
                    : rows + row * stride) +
               byte;
      }
      copy_async_16(to + row * kRingPitch<kValues> + byte, from, there);
    }
  }

  // The scales of the tile before: they had a step's time to arrive, and are read kBuffers - 1
  // steps later at the earliest.
  FULMEN_DEVICE void store_scales() {
    if (!kScalesOfRows || scales_to_ < 0) return;
    key_scale_.store(keys_, scales_to_ + kRing.key_scales_at);
    value_scale_.store(values_, scales_to_ + kRing.value_scales_at);
    scales_to_ = -1;
  }

  static constexpr bool kScalesOfRows = ScaleInFlight<false>::kRows || ScaleInFlight<true>::kRows;
  int at_;
  int filled_ = 0;      // the tile that the next fetch fills: the oldest one, once all are
  int scales_to_ = -1;  // the tile whose scales are in flight
  const StoredHead<false>& keys_;
  const StoredHead<true>& values_;
  ScaleInFlight<false> key_scale_;
  ScaleInFlight<true> value_scale_;
};

}  // namespace fulmen::kernels
