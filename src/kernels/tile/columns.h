// Tiles of columns on their way from memory to LDS, as rows and, on AMD, transposed. As tile/stage.h, for any tensor:
//   fetch<clamped>(...)   begins the tile's way; clamped: rows past the end are possible, and repeat the last one
//   publish(...)          its data is in LDS after the barrier that follows
// What `alive` says no to becomes 0.
#pragma once

#include "layout.h"
#include "tile/rows.h"
#include "tile/values.h"

namespace fulmen::kernels {

// kBlockN rows of one head.
struct ColumnSource {
  const Element* rows;  // the tile's first
  Int64 stride;
  int dims;
  int last;  // the last row that is there

  FULMEN_DEVICE static ColumnSource of(const Element* head, Int64 stride, int dims, Int64 first, Int64 end) {
    const Int64 left = end - first;
    return {head + first * stride, stride, dims, static_cast<int>(left < kBlockN ? left - 1 : kBlockN - 1)};
  }
  FULMEN_DEVICE int clamp(int row) const { return row < last ? row : last; }
};

#if defined(FULMEN_TARGET_SM80)

// kDims, rounded up, of each row; both uses read [row][dim].
template <int kDims, bool kValues>
class ColumnTile {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const ColumnSource& source, int at, int /*values_at*/, int pitch, const Alive& alive) {
    for_pieces([&](int row, int dim) {
      const int from = source.clamp(row);
      const bool valid = (kExactDims || dim < source.dims) && alive(from);
      if constexpr (kWholeRows) {
        copy_async_16(at + row * pitch + 2 * dim, valid ? source.rows + from * source.stride + dim : source.rows, valid);
      } else {
        lds_store(at + row * pitch + 2 * dim,
                  valid ? load_piece(source.rows + from * source.stride, dim, source.dims) : Words<4>{});
      }
    });
  }
  FULMEN_DEVICE void publish(int /*at*/, int /*values_at*/, int /*pitch*/) const {}

 private:
  template <class Body>
  FULMEN_DEVICE static void for_pieces(const Body& body) {
    constexpr int kPieces = kDims / 8, kAll = kBlockN * kPieces;
#pragma unroll
    for (int n = 0; n < (kAll + kWorkgroup - 1) / kWorkgroup; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kAll % kWorkgroup != 0 && index >= kAll) break;
      body(static_cast<int>(static_cast<unsigned>(index) / kPieces), static_cast<int>(static_cast<unsigned>(index) % kPieces) * 8);
    }
  }
};

#else

// Through registers. Lanes take neighbouring pieces of a row; where the tile is transposed, too, kGroup neighbouring positions of
// that and 8 dims.
template <int kDims, bool kValues>
class ColumnTile {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const ColumnSource& source, int /*at*/, int /*values_at*/, int /*pitch*/, const Alive& alive) {
    const Buffer buffer(source.rows, static_cast<unsigned>(source.last * source.stride + source.dims) * 2);
    const auto stride = static_cast<unsigned>(source.stride) * 2;
    for_groups([&](int n, int position, int dim) {
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        const int row = row_of(position + m);
        if constexpr (kWholeRows) {
          const bool valid = (kExactDims || dim < source.dims) && alive(source.clamp(row));
          pieces_[n][m] = buffer.load<Words<4> >(
              valid ? static_cast<unsigned>(source.clamp(row)) * stride + 2 * static_cast<unsigned>(dim) : kBeyond, 0);
        } else {
          pieces_[n][m] = {};
          if (alive(source.clamp(row)))
            pieces_[n][m] = load_piece(source.rows + source.clamp(row) * source.stride, dim, source.dims);
        }
      }
    });
  }
  FULMEN_DEVICE void publish(int at, int values_at, int pitch) const {
    for_groups([&](int n, int position, int dim) {
#pragma unroll
      for (int m = 0; m < kGroup; ++m) lds_store(at + row_of(position + m) * pitch + 2 * dim, pieces_[n][m]);
      if constexpr (kValues) {
#pragma unroll
        for (int d = 0; d < 8; ++d) {
          Words<kGroup / 2> words;
#pragma unroll
          for (int m = 0; m < kGroup / 2; ++m) {
            words.word[m] = halves(pieces_[n][2 * m].word[d / 2], pieces_[n][2 * m + 1].word[d / 2], d % 2 != 0);
          }
          lds_store(values_at + (dim + d) * kValuePitch + 2 * position, words);
        }
      }
    });
  }

 private:
  static constexpr int kRowPieces = kDims / 8;
  static constexpr int kGroup = !kValues ? 1 : kBlockN / 4 * kRowPieces >= kWorkgroup ? 4 : 2;
  static constexpr int kAll = kBlockN / kGroup * kRowPieces;
  static constexpr int kRounds = (kAll + kWorkgroup - 1) / kWorkgroup;
  static constexpr int kValuePitch = transposed_pitch(kBlockN);
  // Each tile has the same addresses, which compilers keep in registers: not where those are too few.
  static constexpr bool kAnew = FULMEN_VALUES_EARLY == 0;
  static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end

  FULMEN_DEVICE static int row_of(int position) { return kValues ? row_at(position) : position; }
  template <class Body>
  FULMEN_DEVICE static void for_groups(const Body& body) {
    const int thread = kAnew ? recompute(thread_id()) : thread_id();
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kAll % kWorkgroup != 0 && index >= kAll) break;
      if constexpr (kValues) {
        body(n, static_cast<int>(index % (kBlockN / kGroup)) * kGroup, static_cast<int>(index / (kBlockN / kGroup)) * 8);
      } else {
        body(n, static_cast<int>(index / kRowPieces), static_cast<int>(index % kRowPieces) * 8);
      }
    }
  }

  Words<4> pieces_[kRounds][kGroup];
};

#endif

}  // namespace fulmen::kernels
