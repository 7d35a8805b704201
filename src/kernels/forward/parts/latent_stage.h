// forward/decode_latent_waves.h: tiles of keys, which are values, too, in flight from memory
// through registers to LDS, and what products read of them there.
#pragma once

#include "core/sequence.h"
#include "forward/decode_latent_waves_layout.h"
#include "tile/amd/rows_as_values.h"
#include "tile/direct.h"
#include "tile/values.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr LatentWavesLayout kLatentLayout =
    LatentWavesLayout::of(kHeadDim, kBlockM, kBlockN, kRowPadding);
// Operands of queries that are in LDS, which has room where registers have none.
constexpr int kLdsQueries =
    (kLdsBytes - kLatentLayout.total) / LatentWavesLayout::query_bytes(kBlockM);
static_assert(kLatentLayout.total + kLdsQueries * LatentWavesLayout::query_bytes(kBlockM) ==
                  kLdsBytes,
              "decode_latent: the host reserves the LDS of tiles, probabilities and queries");

// A tile in LDS, for load_keys() and load_direct(): its rows from first_dim on. Dims behind a row's
// end, which no result has, are its first ones.
struct LatentTile {
  int at, first_dim;

  FULMEN_DEVICE static LatentTile of(int buffer, int first_dim) {
    return {buffer * kLatentLayout.tile_bytes, first_dim};
  }
  // Elements of row key + fixed.
  template <bool kUniform, int kCount>
  FULMEN_DEVICE Words<kCount / 2> load(int key, int fixed, int dim) const {
    const int of_row = first_dim + dim;
    const bool inside = kHeadDimV <= kHeadDim || of_row < kHeadDim;
    return lds_load<Words<kCount / 2>>(at + (key + fixed) * kLatentLayout.pitch +
                                       (inside ? 2 * of_row : 0));
  }
  // 16 dims of the keys of the step-th product, which LDS transposes: where it does.
  template <class Operand = ValueOperand>
  FULMEN_DEVICE Operand transposed(int step, int dim) const {
    const int of_row = first_dim + dim;
    const bool inside = kHeadDimV <= kHeadDim || of_row < kHeadDim;
    return lds_rows_as_values<kLatentLayout.pitch>(at + (inside ? 2 * of_row : 0), step, 0);
  }
};

// Each lane brings pieces of one row of a tile. Addresses are computed for each tile, as registers
// are full. Rows before the first key, and behind the last one, repeat these: what they are
// multiplied with is 0, which must not meet a NaN that nobody attends.
class LatentStage {
 public:
  // rows: by head_rows(). Keys [begin, end), at least one.
  FULMEN_DEVICE LatentStage(const ForwardArguments& arguments, const KvElement* rows, Int64 begin,
                            Int64 end)
      : arguments_(arguments), rows_(rows), begin_(begin), end_(end) {}
  // The tile that fetch() brings. Apart from it, for a page is looked up in memory.
  FULMEN_DEVICE void find(Int64 first_key) {
    first_key_ = first_key;
    if constexpr (kPaged)
      page_ = PagedRow::of(arguments_, first_key + row_of_tile(recompute(thread_id(), first_key)));
  }
  FULMEN_DEVICE void fetch() {
    const ForwardArguments& a = arguments_;
    const int thread = recompute(thread_id(), first_key_);
    const KvElement* from;
    if constexpr (kPaged) {
      from = page_.template in<false>(a, a.k, rows_);
    } else {
      from = rows_ + first_key_ * a.k.row + row_of_tile(thread) * a.k.row;
    }
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      // The load is made in any case: a branch around it would take its registers to scratch
      // memory.
      const int piece = piece_of(thread, n);
      pieces_[n] =
          load_piece(from, 8 * (has_piece(thread, n) ? piece : kRowPieces - 1), a.head_dim);
    }
  }
  // Stores the tile to LDS. Other waves see it behind the next barrier.
  FULMEN_DEVICE void publish(int buffer) const {
    const int thread = recompute(thread_id(), buffer);
    const int to = buffer * kLatentLayout.tile_bytes + thread / kLanes * kLatentLayout.pitch;
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      if (has_piece(thread, n)) lds_store(to + 16 * piece_of(thread, n), pieces_[n]);
    }
  }

 private:
  static constexpr int kRowPieces = kHeadDim / 8, kLanes = kWorkgroup / kBlockN,
                       kRounds = (kRowPieces + kLanes - 1) / kLanes;
  static_assert(kWorkgroup % kBlockN == 0, "decode_latent: lanes of a row are whole");

  FULMEN_DEVICE int row_of_tile(int thread) const {
    const int row = thread / kLanes,
              first = first_key_ < begin_ ? static_cast<int>(begin_ - first_key_) : 0,
              last = at_most(end_ - first_key_, kBlockN) - 1;
    return row < first ? first : row < last ? row : last;
  }
  FULMEN_DEVICE static int piece_of(int thread, int n) { return thread % kLanes + n * kLanes; }
  FULMEN_DEVICE static bool has_piece(int thread, int n) {
    return (n + 1) * kLanes <= kRowPieces || piece_of(thread, n) < kRowPieces;
  }

  const ForwardArguments& arguments_;
  const KvElement* rows_;
  Int64 begin_, end_, first_key_ = 0;
  PagedRow page_{};
  Words<4> pieces_[kRounds] = {};
};

}  // namespace fulmen::kernels
