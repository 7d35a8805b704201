// CDNA's matrix instructions of 16 x 16 or 32 x 32, wave64: which lane holds what of scores,
// outputs and rows. With T = kScoreTile:
//   accumulator D[i][j]         i = (256 / T) (e / 4) + 4 (l / T) + e % 4, j = l % T
//   operands A[i][k], B[k][j]   i, j = l % T; a lane reads 16 bytes of its row, as the order of
//                               dims is free where both operands share it
// Scores are K Q^T: a lane owns one query row and of its keys runs of 4 neighbours.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

constexpr bool kCopiesToLds = false;
constexpr bool kTransposedValues = true;
constexpr bool kAnyAlignment = true;
constexpr int kScoreTile = kConfig.score_tile;
constexpr int kLaneBlocks = 64 / kScoreTile;  // lanes that share a row
constexpr int kRowsPerLane = 1;
constexpr int kElements = kScoreTile / kLaneBlocks;
FULMEN_DEVICE constexpr int row_slot(int /*e*/) { return 0; }
FULMEN_DEVICE int tile_row(int /*slot*/) { return lane_id() % kScoreTile; }
constexpr int kColumnRun = 4;
FULMEN_DEVICE int tile_column(int e) {
  return 4 * (kLaneBlocks * (e / 4) + lane_id() / kScoreTile) + e % 4;
}
FULMEN_DEVICE constexpr int block_sharer(bool /*rows_are_keys*/, int n) { return 1 << n; }
constexpr int kOutputRun = 4;
FULMEN_DEVICE int output_column(int e) { return tile_column(e); }

constexpr int kMmaK = 8 * kLaneBlocks;
constexpr int kPieces = 1;
FULMEN_DEVICE int piece_row(int /*p*/) { return lane_id() % kScoreTile; }
FULMEN_DEVICE int piece_dim(int /*p*/) { return 8 * (lane_id() / kScoreTile); }
struct RowOperand {
  Words<4> piece[kPieces];
};
// What tiles in LDS are read as: the same.
constexpr int kTileMmaK = kMmaK;
using QueryOperand = RowOperand;
using KeyOperand = RowOperand;

// V^T in LDS.
FULMEN_DEVICE int value_dim() { return lane_id() % kScoreTile; }

constexpr int kDirectDims = 16;
constexpr int kDirectElements = 4;
FULMEN_DEVICE int direct_lane() { return lane_id() % 16; }
FULMEN_DEVICE int direct_column(int e) { return 4 * (lane_id() / 16) + e; }

}  // namespace fulmen::kernels
