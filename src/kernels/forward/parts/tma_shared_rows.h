// Rows of tiles that heads share (kSharesTiles) where queries times heads do not fill a warpgroup's
// 64.
#pragma once

#include "forward/parts/tma_loaders.h"

namespace fulmen::kernels {

// Rows that no query fills are multiplied with the others: they are written once. The workgroup's
// barrier follows.
FULMEN_DEVICE void clear_rows_without_query() {
  if constexpr (kSharedRows < 64) {
    constexpr int kPieces = kPanelRowBytes / 16, kLeft = kSharedRows < 64 ? 64 - kSharedRows : 64,
                  kRuns = kQueryBuffers * kWarpgroups * kPanels;
    for (int n = thread_id(); n < kRuns * kLeft * kPieces; n += kWorkgroup) {
      const int run = n / (kLeft * kPieces), rest = n % (kLeft * kPieces);
      const int row = 64 * (run % (kWarpgroups * kPanels)) + kSharedRows + rest / kPieces;
      lds_store(kLdsLayout.queries_at + run / (kWarpgroups * kPanels) * kLdsLayout.query_bytes +
                    row * kPanelRowBytes + rest % kPieces * 16,
                Words<4>{});
    }
    lds_fence_for_matrices();
  }
}

}  // namespace fulmen::kernels
