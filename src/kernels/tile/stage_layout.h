// Where tiles of K and V, queries and outputs lie in LDS.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "forward/prefill_layout.h"

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
