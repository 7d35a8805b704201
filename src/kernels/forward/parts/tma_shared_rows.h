// Rows of tiles that heads share (kSharesTiles) where queries times heads do not fill a warpgroup's
// 64.
#pragma once

#include "forward/parts/tma_loaders.h"

namespace fulmen::kernels {

// Rows that no query fills are multiplied with the others: they are written once. The workgroup's
// barrier follows.
FULMEN_DEVICE void clear_rows_without_query(const ForwardArguments& a) {
  const int first = shared_rows(a);
  if (first == 64) return;
  constexpr int kPieces = kPanelRowBytes / 16, kRuns = kQueryBuffers * kWarpgroups * kPanels;
  for (int n = thread_id(); n < kRuns * 64 * kPieces; n += kWorkgroup) {
    const int run = n / (64 * kPieces), rest = n % (64 * kPieces);
    if (rest / kPieces < first) continue;
    const int row = 64 * (run % (kWarpgroups * kPanels)) + rest / kPieces;
    lds_store(kLdsLayout.queries_at + run / (kWarpgroups * kPanels) * kLdsLayout.query_bytes +
                  row * kPanelRowBytes + rest % kPieces * 16,
              Words<4>{});
  }
  lds_fence_for_matrices();
}

}  // namespace fulmen::kernels
