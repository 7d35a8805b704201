// What the backward kernels by Hopper's warpgroup products share: copies of tensors to panels in
// LDS, from the products of a tile to P and dS, and products of which each of two warpgroups has
// half of the dims.
#pragma once

#include "backward/parts/owned_keys.h"
#include "backward/parts/stored_bias.h"

namespace fulmen::kernels {

constexpr int kWarpgroups = kWaves / 4;
constexpr int kHeadDimTiles = kHeadDim / kScoreTile, kHeadDimVTiles = kHeadDimV / kScoreTile;
static_assert(kRowTiles == 1 && kBlockN == 64,
              "backward by wgmma: a wave has 16 rows, a tile one panel of scores");

// kRows rows of a tensor to panels, zeros where there are none.
template <int kDims, int kRows, bool kAll, class Alive>
FULMEN_DEVICE void copy_panels(const Element* rows, Int64 stride, int dims, int left, int at,
                               const Alive& alive) {
  constexpr int kRow = kDims / 8, kLater = kWorkgroup / kRow,
                kRounds = (kRows + kLater - 1) / kLater;
  static_assert(kWorkgroup % kRow == 0 && kLater % 8 == 0,
                "backward by wgmma: each round the same pieces of later rows");
  const auto thread = static_cast<unsigned>(recompute(thread_id()));
  const int row = static_cast<int>(thread / kRow), dim = static_cast<int>(thread % kRow) * 8;
  // Whole rows are near; of others a stride may be anything.
  const Element* from =
      rows + ((kWholeRows ? Int64{row * static_cast<int>(stride)} : row * stride) + dim);
  const int to = at + panel_place(row, dim, kRows);
  const bool there = kExactDims || dim < dims;
#pragma unroll
  for (int n = 0; n < kRounds; ++n) {
    const int later = n * kLater;
    if (kRows % kLater != 0 && n + 1 == kRounds && row + later >= kRows) continue;
    const bool valid = there && (kAll || row + later < left) && alive(row + later);
    if constexpr (kWholeRows) {
      copy_async_16(to + later * kPanelRowBytes, from + later * stride, valid);
    } else {
      lds_store(to + later * kPanelRowBytes,
                valid ? load_piece(from + later * stride - dim, dim, dims) : Words<4>{});
    }
  }
}
template <int kDims, int kRows>
FULMEN_DEVICE void copy_panels(const Element* rows, Int64 stride, int dims, int left, int at) {
  const auto any = [](int) { return true; };
  if (left >= kRows) {
    copy_panels<kDims, kRows, true>(rows, stride, dims, left, at, any);
  } else {
    copy_panels<kDims, kRows, false>(rows, stride, dims, left, at, any);
  }
}

// Compilers do not carry it, and what follows from it, in registers from one use to the next.
FULMEN_DEVICE LdsMatrix matrix_at(int at, int rows) { return LdsMatrix::of(recompute(at), rows); }

// rows . columns over kMmaSteps x 16 dims, a group of its own.
template <int kMmaSteps, int kTiles>
FULMEN_DEVICE void multiply_panels(float (&product)[kTiles][kElements], const LdsMatrix& rows,
                                   const LdsMatrix& columns) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < kMmaSteps; ++d) {
    wgmma<Element, false, false>(product, rows.columns_further(kWgmmaDepth * d, kBlockM),
                                 columns.columns_further(kWgmmaDepth * d, kBlockN), d > 0);
  }
  wgmma_commit();
}

template <int kTiles>
FULMEN_DEVICE void clear(float (&sums)[kTiles][kElements]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[t][e] = 0;
  }
}

// The warpgroup's half of a matrix of kDims columns: half of its panels, or half of the columns of
// a single panel.
template <int kDims>
FULMEN_DEVICE LdsMatrix half_of_dims(int at, int rows, int warpgroup) {
  constexpr int kCount = (kDims + kPanelColumns - 1) / kPanelColumns;
  const int half = kCount == 1 ? kPanelColumns : kCount / 2 * rows * kPanelRowBytes;  // in bytes
  return matrix_at(at, rows).further(warpgroup * half);
}

// dq of the warpgroup's half of the dims begins, a group of its own: from dS^T of kBlockM keys, and
// the keys, both in LDS.
template <int kTiles>
FULMEN_DEVICE void begin_queries(float (&dq)[kTiles][kElements], int gradients_at, int keys_at,
                                 int warpgroup) {
  const LdsMatrix ds = matrix_at(gradients_at, kBlockM),
                  keys = half_of_dims<kHeadDim>(keys_at, kBlockM, warpgroup);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kBlockM / kScoreTile; ++k) {
    wgmma<Element, true, true>(dq, ds.rows_further(kWgmmaDepth * k),
                               keys.rows_further(kWgmmaDepth * k), k > 0);
  }
  wgmma_commit();
}

// Begins dv += P^T dout and dk += dS^T q of keys that two warpgroups share, in the warpgroup's half
// of kDims and kDimsV, as one group. All operands lie in LDS.
template <int kDims = kHeadDim, int kDimsV = kHeadDimV, int kKeyTiles, int kValueTiles>
FULMEN_DEVICE void begin_shared_keys(float (&dk)[kKeyTiles][kElements],
                                     float (&dv)[kValueTiles][kElements], int gradients_at,
                                     int probabilities_at, int queries_at, int dout_at,
                                     int warpgroup) {
  const LdsMatrix queries = half_of_dims<kDims>(queries_at, kBlockN, warpgroup),
                  dout = half_of_dims<kDimsV>(dout_at, kBlockN, warpgroup);
  const LdsMatrix ds = matrix_at(gradients_at, kBlockM), p = matrix_at(probabilities_at, kBlockM);
  wgmma_fence();
#pragma unroll
  for (int f = 0; f < kColumnTiles; ++f) {
    if constexpr (kGivesDv)
      wgmma<Element, false, true>(dv, p.columns_further(kWgmmaDepth * f, kBlockM),
                                  dout.rows_further(kWgmmaDepth * f), true);
  }
#pragma unroll
  for (int f = 0; f < kColumnTiles; ++f) {
    if constexpr (kGivesDk)
      wgmma<Element, false, true>(dk, ds.columns_further(kWgmmaDepth * f, kBlockM),
                                  queries.rows_further(kWgmmaDepth * f), true);
  }
  wgmma_commit();
}

// Waits for the two groups of products S and D of kTiles x 16 columns, from the tile's column
// `first` on, and overwrites S with P and D with dS. The kLater groups behind them may stay in
// flight. numbers_at: the row statistics of column `first`.
template <bool kMasked, int kLater, int kTiles>
FULMEN_DEVICE void wait_for_scores(const BackwardTask& task, Int64 head, Int64 first_column,
                                   int first, int numbers_at,
                                   const RowStatistics (&row_statistics)[kRowsPerLane],
                                   float (&score)[kTiles][kElements],
                                   float (&gradient)[kTiles][kElements]) {
  constexpr int kGradients = kNeedsDout ? 1 : 0;
  TileScores tile = task.tile_scores<kMasked>(head, task.wave_row, first_column);
  tile.keep_half<kScoreTile * kTiles>(first);
  if constexpr (kDropout || kSoftcap || kScoreMod) {
    // Random numbers while the products are in flight.
    const DropoutMask dropout(task.arguments, task.batch, head);
    DropoutTile<kRowsAreKeys> stays[kTiles];
#pragma unroll
    for (int f = 0; f < kTiles; ++f)
      stays[f] = task.staying(dropout, task.wave_row, first_column + first + kScoreTile * f);
    wgmma_wait<kLater>();
    wgmma_hold(score);
    wgmma_hold(gradient);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      float bias[kElements];
      task.gradients<kMasked>(tile, first + kScoreTile * f, numbers_at + 8 * kScoreTile * f,
                              stays[f], row_statistics, score[f], gradient[f], bias);
      store_bias_gradient<kMasked>(task, head, task.wave_row, first_column + first + kScoreTile * f,
                                   gradient[f]);
    }
  } else {
    // Exponentials while D is in flight.
    wgmma_wait<kLater + kGradients>();
    wgmma_hold(score);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      task.probabilities<kMasked>(tile, first + kScoreTile * f, numbers_at + 8 * kScoreTile * f,
                                  row_statistics, score[f]);
    }
    if constexpr (!kNeedsDout) return;
    wgmma_wait<kLater>();
    wgmma_hold(gradient);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      task.gradients_of(score[f], numbers_at + 8 * kScoreTile * f, row_statistics, gradient[f]);
      store_bias_gradient<kMasked>(task, head, task.wave_row, first_column + first + kScoreTile * f,
                                   score[f], gradient[f]);
    }
  }
}

}  // namespace fulmen::kernels
