// forward/decode_latent.h: its tiles in LDS, and the mbarriers between their loader and the two
// warpgroups that multiply.
#pragma once

#include "forward/decode_latent_layout.h"
#include "forward/parts/key_boxes.h"
#include "forward/parts/packed_rows.h"
#include "tile/nvidia/register_shares.h"

namespace fulmen::kernels {

// kHeadDimV is what a warpgroup has of V's dims: half of them, in whole panels.
constexpr int kHalfPanels = kHeadDimV / kPanelColumns;
constexpr DecodeLatentLayout kLdsLayout = DecodeLatentLayout::of(kHeadDim, kHeadDimV);
static_assert(kLdsLayout.total == kLdsBytes,
              "decode_latent: the host reserves the LDS that the tiles need");
static_assert(kBlockM == 64 && kBlockN == 64 && kWorkgroup == 384 && kPackedRows &&
                  kMinWorkgroups == 1 && kHeadsInRow == 1,
              "decode_latent: two warpgroups have 64 rows, one has none");
static_assert(kHeadDimV % kPanelColumns == 0, "decode_latent: halves of V are whole panels");
static_assert(kWholeRows && !kKeepMask && !kDropout,
              "decode_latent: what the TMA can read, without holes");
// The loader of pages looks tables up, too.
constexpr RegisterShares kRegisters = RegisterShares::of(2, 1, kPaged ? 32 : kTmaRegisters);

constexpr int kQueriesFull = kLdsLayout.barriers_at, kPatch = kQueriesFull + 8,
              kSumsFull = kPatch + 8, kScoresDone = kSumsFull + 8,
              kProbabilitiesFull = kScoresDone + 2 * 8, kTileFull = kProbabilitiesFull + 2 * 8,
              kTileEmpty = kTileFull + 4 * 8;
FULMEN_DEVICE constexpr int scores_done(int tile) { return kScoresDone + 8 * tile; }
FULMEN_DEVICE constexpr int probabilities_full(int tile) { return kProbabilitiesFull + 8 * tile; }
// Half 0 of a tile: the first half of the values; half 1: all other dims.
FULMEN_DEVICE constexpr int tile_full(int tile, int half) {
  return kTileFull + 8 * (2 * tile + half);
}
FULMEN_DEVICE constexpr int tile_empty(int tile, int half) {
  return kTileEmpty + 8 * (2 * tile + half);
}
FULMEN_DEVICE constexpr int tile_at(int tile) {
  return kLdsLayout.tiles_at + tile * kLdsLayout.tile_bytes;
}
FULMEN_DEVICE constexpr int probabilities_at(int tile) {
  return kLdsLayout.probabilities_at + tile * kLdsLayout.probability_step;
}

}  // namespace fulmen::kernels
