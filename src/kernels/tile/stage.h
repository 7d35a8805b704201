// Tiles of K and V in flight from memory to LDS, and from there into operands. The kernel's loop:
//   fetch<clamped>(first key, buffer)   starts the next tile's loads; clamped: keys past the end are possible
//   publish(buffer)            the tile is in LDS after the barrier that follows
// Tiles begin at attended keys, or before them where they lie in pages or elements are dropped. Keys past the end repeat the last
// one: their scores are masked, and a probability of 0 is multiplied by a value that the tile has anyway. Keys before the first
// repeat the first, or are 0. What the keep-mask hides from every row becomes 0, as it may be NaN.
#pragma once

#include "tile/kept_keys.h"
#include "tile/layout.h"
#include "tile/sources.h"
#include "tile/values.h"

namespace fulmen::kernels {

constexpr ForwardLayout kLayout =
    ForwardLayout::of({kTransposedValues, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kQueriesInLds, kPersistent});
static_assert(kLayout.total == kLdsBytes, "forward: the host reserves the LDS that the tiles need");

FULMEN_DEVICE int keys_at(int buffer) { return buffer * kLayout.key_bytes; }
FULMEN_DEVICE int values_at(int buffer) { return kBuffers * kLayout.key_bytes + buffer * kLayout.value_bytes; }

constexpr int kKeyPieces = kBlockN * (kHeadDim / 8);  // of a tile
constexpr int kRowPieces = kHeadDim / 8;
constexpr int kRowPiecesV = kHeadDimV / 8;

// What a step does for the next tile between its products: nothing, where its loads are in flight already.
struct NoCopies {
  FULMEN_DEVICE void turn(int /*turn*/, int /*turns*/) {}
};

}  // namespace fulmen::kernels

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/stage.h"
#else
#include "tile/amd/stage.h"
#endif
