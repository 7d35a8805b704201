// NVIDIA: cp.async copies rows by pieces of 16 bytes, [row][dim]. LDS: forward/decode_layout.h.
#pragma once

#include "forward/decode_layout.h"

namespace fulmen::kernels {

constexpr DecodeRing kRing =
    DecodeRing::of(kHeadDim, kStoredBytes<false>, kHeadDimV, kStoredBytes<true>, kBlockN);
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

  template <bool kValues>
  FULMEN_DEVICE RingRows<kValues> rows() const {
    return {kValues ? at + kRing.values_at : at};
  }
};

class TileRing {
 public:
  FULMEN_DEVICE explicit TileRing(int wave) : at_(wave * kBuffers * kRing.tile_bytes) {}

  // Starts the copies of a tile, if any of its keys is there, to where the last release() was. A
  // wave fetches kBuffers tiles, and one more after each release().
  FULMEN_DEVICE void fetch(const KeySource& keys, const KeySource& values, const TilePlace& tile) {
    if (tile.key < keys.end) {
      copy_rows<false>(keys, tile, at_ + filled_ * kRing.tile_bytes);
      copy_rows<true>(values, tile, at_ + filled_ * kRing.tile_bytes + kRing.values_at);
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

  int at_;
  int filled_ = 0;  // the tile that the next fetch fills: the oldest one, once all are
};

}  // namespace fulmen::kernels
