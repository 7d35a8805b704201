// The matrix instructions of the chip, as operands and verbs. One algorithm serves every target in
// these terms: a wave multiplies tiles of kScoreTile query rows and as many keys (or output dims).
//
// A target header targets/<name>/target.h defines, for lane l = lane_id() and T = Half or Bfloat16:
//   kScoreTile              rows and columns of a tile: queries and keys of scores, queries and
//                           dims of outputs
//   kValueDepth             keys of a product P V: kScoreTile, or 2 * kScoreTile
//   kCopiesToLds kTransposedValues   how tile/stage.h brings K and V to LDS
//   kReadsTransposed        AMD: LDS transposes while it is read, by lds_load_transposed(at): a
//                           block of 16 lanes reads 4 rows, lane i 4 columns from 4 (i % 4) on of
//                           row i / 4, and has then the 4 rows of column i
//   kAnyAlignment           vectors are loaded from any address (AMD)
//   kFlushesSubnormals      subnormal operands of products count as 0
//   kRowsPerLane            query rows of a tile that a lane owns; row_slot(e) says which of them
//                           element e belongs to
//   kElements               elements of a tile that a lane holds. The same map serves scores and
//                           outputs:
//   tile_row(slot)          the tile's row
//   tile_column(e)          the tile's column: a key of the scores; runs of kColumnRun elements are
//                           neighbours. With a run of 1 every second column is the lane's
//   block_sharer(rows_are_keys, n)   lane_id() ^ that: the lanes whose elements are of the same
//                           blocks of 2 queries and 4 keys (tile/dropout_tile.h)
//   output_column(e)        the same for outputs: a dim; runs of kOutputRun elements are neighbours
//                           in one row
//   row_max(x) row_sum(x)   over the lanes that share a row
//   tile_diagonal(tile, slot)   the element of a lane's row on a tile's diagonal (AMD:
//                           tile/transposed.h)
//   paired_column() paired_outputs<T>(tile, slot, factor)   NVIDIA: 4 neighbouring outputs of a
//                           row, two lanes' put together
//
//   Operands for q.k, each lane 16 bytes (8 elements) at a time from rows of memory:
//   kMmaK                   dims that an operand covers
//   kPieces                 16-byte pieces of a lane: piece_row(p), piece_dim(p); the same for
//                           query rows and for keys
//   struct RowOperand       { Words<4> piece[kPieces] }
//   multiply_scores<T>(float (&scores)[kElements], keys, queries)
//   kTileMmaK QueryOperand KeyOperand lds_query_operand(at, pitch) lds_key_operand(at, pitch)
//                           what tiles in LDS are read as: on AMD the same as above
//
//   Probabilities and values, of kValueDepth keys:
//   ProbabilityOperand to_operand<T, kShifted>(p)   p: const float (&)[kElements], or two of them
//                           where kValueDepth is two tiles. kShifted: see kHalfShift in core/base.h
//   struct ValueOperand; multiply_output<T>(float (&out)[kElements], probabilities, values)   one
//                           tile of dims
//   tile/stage.h loads ValueOperands from LDS.
//
//   Values straight from memory (tile/direct.h):
//   kDirectDims             dims of a direct output tile (AMD 16, NVIDIA 8), one lane's share
//                           kDirectElements, direct_column(e)
//   kDirectKeys             of a tile's keys those that a lane holds, in pairs; direct_key(m);
//                           direct_lane() its place among kDirectDims
//   multiply_direct<T>(float (&out)[kDirectElements], probabilities,
//                      const unsigned (&pairs)[kDirectKeys / 2])
#pragma once

#include "algorithm/transposed_rows.h"
#include "core/base.h"
#include "core/target.h"

namespace fulmen::kernels {

constexpr int kStepTiles = kValueDepth / kScoreTile;  // key tiles of a product P V
// Where values lie transposed in LDS, else 0.
constexpr int kTransposedDepth = kTransposedValues ? kValueDepth : 0;
constexpr int kRowPadding = algorithm::row_padding(kTransposedDepth, kReadsTransposed);
// Tiles that are operands of both products lie in LDS twice.
constexpr bool kCopiesValues = kTransposedValues && !kReadsTransposed;
static_assert(kValueDepth == kStepTiles * kScoreTile && (kStepTiles == 1 || kStepTiles == 2),
              "matrix: a product P V takes one or two key tiles");

// Whether small numbers are lost as factors.
template <class T>
constexpr bool kLosesSmall = kIsHalf<T> && kFlushesSubnormals;

// A row of tiles in accumulators: a lane's elements of [kScoreTile, kScoreTile * kColumns].
template <int kColumns>
using TileRow = float[kColumns][kElements];

// A wave's accumulators of a matrix, scores [query, key] or outputs [query, dim]: rows of tiles.
template <int kRows, int kColumns>
struct Fragment {
  TileRow<kColumns> row[kRows];

  FULMEN_DEVICE TileRow<kColumns>& operator[](int r) { return row[r]; }
  FULMEN_DEVICE const TileRow<kColumns>& operator[](int r) const { return row[r]; }
};

// The operand of the step-th product P V, from a row of probabilities.
template <class T, bool kShifted = false, int kColumns>
FULMEN_DEVICE ProbabilityOperand step_operand(const TileRow<kColumns>& p, int step) {
  if constexpr (kStepTiles == 2) {
    return to_operand<T, kShifted>(p[2 * step], p[2 * step + 1]);
  } else {
    return to_operand<T, kShifted>(p[step]);
  }
}

// The same of row tile t, from the key tiles of one product.
template <class T, int kTiles, int kRows>
FULMEN_DEVICE ProbabilityOperand row_operand(const float (&p)[kTiles][kRows][kElements], int t) {
  static_assert(kTiles == kStepTiles, "row_operand: a product's key tiles");
  if constexpr (kTiles == 2) {
    return to_operand<T>(p[0][t], p[1][t]);
  } else {
    return to_operand<T>(p[0][t]);
  }
}

}  // namespace fulmen::kernels
