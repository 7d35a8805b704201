// Products in 8 bits: the panels of a tile's transposed values.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "tile/fp8_workspace.h"

namespace fulmen::kernels {

constexpr int kFp8PanelKeys = kFp8Products ? fp8_panel_keys(kBlockN) : 1;
static_assert(!kFp8Products || (kBlockN % kFp8PanelKeys == 0 && kFp8PanelKeys % 32 == 0),
              "fp8: panels are whole products");

FULMEN_DEVICE Fp8Workspace fp8_workspace(const ForwardArguments& a) {
  return Fp8Workspace::of(a.batch, a.num_heads, a.num_kv_heads, a.seqlen_q, a.seqlen_k, kHeadDim,
                          a.head_dim_v, kBlockN);
}
FULMEN_DEVICE float* fp8_floats(const ForwardArguments& a, Int64 at) {
  return reinterpret_cast<float*>(a.codes + at);
}

// Which key of a panel is at a position of its rows.
FULMEN_DEVICE int key_of_position(int position) {
  return position / kCodeDepth * kCodeDepth + code_key(position % kCodeDepth);
}

}  // namespace fulmen::kernels
