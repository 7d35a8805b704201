// How tiles are cut into a wave's products, and where K, V, queries and outputs lie in LDS.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "forward/prefill_layout.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kRowTiles = kBlockM / (kScoreTile * kWaves);  // of a wave
FULMEN_DEVICE int first_row_of_wave() { return wave_id() * kRowTiles * kScoreTile; }
constexpr int kKeyTiles = kBlockN / kScoreTile;
constexpr int kValueSteps = kKeyTiles / kStepTiles;  // products of P V
constexpr int kMmaSteps = kHeadDim / kTileMmaK;
constexpr int kDimTiles = kHeadDimV / kScoreTile;
// Outputs alone fill half the registers: operands must not be loaded long before their use.
constexpr bool kTightRegisters = kRowTiles * kDimTiles * kElements >= 128;
static_assert(kBlockM == kRowTiles * kScoreTile * kWaves,
              "prefill: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % kValueDepth == 0 && kHeadDim % kTileMmaK == 0 &&
                  kHeadDimV % kScoreTile == 0,
              "prefill: tiles are whole operands");

constexpr PrefillLayout kLayout =
    PrefillLayout::of({kTransposedDepth, kReadsTransposed, kHeadDim, kHeadDimV, kBlockM, kBlockN,
                       kBuffers, kQueriesInLds, kPersistent});
static_assert(kLayout.total == kLdsBytes, "prefill: the host reserves the LDS that the tiles need");

FULMEN_DEVICE int keys_at(int buffer) { return buffer * kLayout.key_bytes; }
FULMEN_DEVICE int values_at(int buffer) {
  return kBuffers * kLayout.key_bytes + buffer * kLayout.value_bytes;
}

constexpr int kKeyPieces = kBlockN * (kHeadDim / 8);  // of a tile
constexpr int kRowPieces = kHeadDim / 8;
constexpr int kRowPiecesV = kHeadDimV / 8;

// What a step does for the next tile between its products: nothing, where its loads are in flight
// already.
struct NoCopies {
  FULMEN_DEVICE void turn(int /*turn*/, int /*turns*/) {}
};

}  // namespace fulmen::kernels
