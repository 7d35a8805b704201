// AMD: columns go to LDS through registers, where both products need them, as rows and transposed.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/amd/rows_as_values.h"
#include "tile/column_source.h"
#include "tile/rows.h"
#include "tile/values.h"

namespace fulmen::kernels {

// Loads to registers are waited for where publish() reads them.
FULMEN_DEVICE void commit_columns() {}
FULMEN_DEVICE void columns_arrived() {}

// Lanes take neighbouring pieces of a row; where the tile is transposed, too, kGroup neighbouring
// positions of that and 8 dims. kLanes: of the workgroup, whose other lanes bring another tile
// meanwhile.
template <int kDims, bool kValues, int kLanes = kWorkgroup, int kRows = kBlockN>
class ColumnTile {
 public:
  template <class Source, class Alive>
  FULMEN_DEVICE void fetch(const Source& source, int /*at*/, int /*values_at*/, int /*pitch*/,
                           const Alive& alive) {
    const Buffer buffer(source.rows,
                        static_cast<unsigned>(source.last * source.stride + source.dims) * 2);
    const auto stride = static_cast<unsigned>(source.stride) * 2;
    if constexpr (kSteps) {
      // Rows past the end are past the buffer's, and read as 0.
      const int thread = own_lane(), row = thread / kRowPieces, dim = thread % kRowPieces * 8;
      const unsigned own = static_cast<unsigned>(row) * stride + 2 * static_cast<unsigned>(dim);
#pragma unroll
      for (int n = 0; n < kRounds; ++n) {
        const bool valid =
            (kExactDims || dim < source.dims) && alive(source.clamp(row + n * kStep));
        pieces_[n][0] = buffer.load<Words<4> >(valid ? own : kBeyond,
                                               static_cast<unsigned>(n * kStep) * stride);
      }
      return;
    }
    for_groups([&](int n, int position, int lane_dim, int fixed) {
      const int dim = lane_dim + fixed;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        const int row = row_of(position) + distance(m);
        if constexpr (kWholeRows) {
          const bool valid = (kExactDims || dim < source.dims) && alive(source.clamp(row));
          pieces_[n][m] =
              buffer.load<Words<4> >(valid ? static_cast<unsigned>(source.clamp(row)) * stride +
                                                 2 * static_cast<unsigned>(lane_dim)
                                           : kBeyond,
                                     2 * static_cast<unsigned>(fixed));
        } else {
          pieces_[n][m] = {};
          if (alive(source.clamp(row)))
            pieces_[n][m] =
                load_piece(source.rows + source.clamp(row) * source.stride, dim, source.dims);
        }
      }
    });
  }
  FULMEN_DEVICE void publish(int at, int values_at, int pitch) const {
    for_groups([&](int n, int position, int lane_dim, int fixed) {
      const int dim = lane_dim + fixed;
#pragma unroll
      for (int m = 0; m < kGroup; ++m)
        lds_store(at + row_of(position) * pitch + 2 * dim + distance(m) * pitch, pieces_[n][m]);
      if constexpr (kValues) {
#pragma unroll
        for (int d = 0; d < 8; ++d) {
          Words<kGroup / 2> words;
#pragma unroll
          for (int m = 0; m < kGroup / 2; ++m) {
            words.word[m] = halves(pieces_[n][2 * m].word[d / 2], pieces_[n][2 * m + 1].word[d / 2],
                                   d % 2 != 0);
          }
          lds_store(values_at + algorithm::transposed_row(lane_dim, kRows, kValueDepth) +
                        algorithm::transposed_row(fixed, kRows, kValueDepth) + d * kValuePitch +
                        2 * position,
                    words);
        }
      }
    });
  }

 private:
  static constexpr int kRowPieces = kDims / 8;
  static constexpr int kGroup = !kValues ? 1 : kRows / 4 * kRowPieces >= kLanes ? 4 : 2;
  static constexpr int kAcross = kRows / kGroup;
  static constexpr int kAll = kAcross * kRowPieces;
  static constexpr int kRounds = (kAll + kLanes - 1) / kLanes;
  static constexpr int kValuePitch = algorithm::transposed_pitch(kRows, kValueDepth);
  // Each tile has the same addresses, which compilers keep in registers: not where those are too
  // few, as where half of the lanes bring a tile of rows that begin anywhere.
  static constexpr bool kAnew = !kEarlyLoads || (kLanes < kWorkgroup && !kWholeRows);
  static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end

  FULMEN_DEVICE static int row_of(int position) { return kValues ? row_at(position) : position; }
  // Rows of whole pieces: every round takes the same piece of a later row. (32 dims have few
  // rounds: dbias took 3 % more instructions on CDNA2 and CDNA3.)
  static constexpr bool kSteps = !kValues && kWholeRows && kRounds > 1 && kRowPieces >= 8 &&
                                 kLanes % kRowPieces == 0 && kAll % kLanes == 0;
  static constexpr int kStep = kLanes / kRowPieces;
  FULMEN_DEVICE static int own_lane() {
    const int own = kLanes == kWorkgroup ? thread_id() : thread_id() % kLanes;
    return kAnew ? recompute(own) : own;
  }
  // From a group's first position, a multiple of kGroup.
  FULMEN_DEVICE static constexpr int distance(int m) {
    return kValues ? value_key(m) - value_key(0) : 0;
  }
  // Eight lanes write pieces of eight rows at once, whose distances leave them two to four groups
  // of banks. As many rows further on they take the next piece instead, or the one after it.
  FULMEN_DEVICE static int in_other_banks(int piece, int position) {
    constexpr int kSwapped = kRowPieces % 8 == 0   ? 8
                             : kRowPieces % 4 == 0 ? 4
                             : kRowPieces % 2 == 0 ? 2
                                                   : 1;
    const int row = row_of(position);
    // Neighbouring groups of positions are 16 rows apart where a product takes two tiles.
    if constexpr (kStepTiles == 2) return piece ^ ((row / 16 % 2 + row / 8 % 2 * 2) % kSwapped);
    constexpr int kApart = kAcross >= 8 && value_key(1) == 1 ? 1 : 2;
    return piece ^ (row / 8 * kApart % kSwapped);
  }
  template <class Body>
  FULMEN_DEVICE static void for_groups(const Body& body) {
    const int thread = own_lane();
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const unsigned index = thread + n * kLanes;
      if (kAll % kLanes != 0 && index >= kAll) break;
      if constexpr (kValues) {
        // Whole rounds of eight pieces leave a lane its share of them.
        constexpr bool kFixed = kLanes % (8 * kAcross) == 0;
        const unsigned first = kFixed ? thread : index;
        const int position = static_cast<int>(first % kAcross) * kGroup;
        body(n, position, 8 * in_other_banks(static_cast<int>(first / kAcross), position),
             kFixed ? 8 * n * (kLanes / kAcross) : 0);
      } else {
        body(n, static_cast<int>(index / kRowPieces), static_cast<int>(index % kRowPieces) * 8, 0);
      }
    }
  }

  Words<4> pieces_[kRounds][kGroup];
};

// Rows of kDims in LDS: where byte `byte` of a row lies; 16 rows and kMmaK dims as an operand.
template <int kDims>
struct LdsRows {
  static constexpr int kPitch = 2 * kDims + kRowPadding;
  FULMEN_DEVICE static int place(int row, int byte) { return row * kPitch + byte; }
  FULMEN_DEVICE static RowOperand operand(int at, int depth) {
    return lds_row_operand(at + 2 * kMmaK * depth, kPitch);
  }
  FULMEN_DEVICE static QueryOperand query_operand(int at, int depth) { return operand(at, depth); }
  FULMEN_DEVICE static KeyOperand key_operand(int at, int depth) { return operand(at, depth); }
};
// Rows of a tile of columns as values, and 16 dims: from the transposed tile, or from the rows.
template <int kDims, int kValuePitch>
FULMEN_DEVICE ValueOperand column_values(int at, int step, int dims) {
  if constexpr (kReadsTransposed) {
    return lds_rows_as_values<LdsRows<kDims>::kPitch>(at, step, dims);
  } else {
    return lds_value_operand<kValuePitch>(at, step, dims);
  }
}

}  // namespace fulmen::kernels
