// How tiles are cut into a wave's products, and where K, V, queries and outputs lie in LDS.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "forward/prefill_layout.h"
#include "tile/stored_scales.h"

namespace fulmen::kernels {

// Neighbouring waves that share their query rows, of whose outputs each has a part of the dims:
// wider ones would not fit in registers. Each computes all scores.
constexpr int kValueParts = kConfig.dim_groups;
constexpr int kWaves = kWorkgroup / kWaveSize / kValueParts;  // with rows of their own
constexpr int kRowTiles = kBlockM / (kScoreTile * kWaves);    // of a wave
// Each lane's own: wave_id() is for all lanes of a wave together.
FULMEN_DEVICE int part_of_wave() {
  return kValueParts == 1 ? 0 : thread_id() / kWaveSize % kValueParts;
}
FULMEN_DEVICE int first_row_of_wave() { return wave_id() / kValueParts * kRowTiles * kScoreTile; }
constexpr int kKeyTiles = kBlockN / kScoreTile;
// Key tiles of a product P V.
constexpr int kValueStepTiles = kCodeValues ? kCodeDepth / kScoreTile : kStepTiles;
constexpr int kValueSteps = kKeyTiles / kValueStepTiles;
constexpr int kStepDims = kCodeKeys ? kCodeMmaK : kTileMmaK;  // of a product of q.k
constexpr int kMmaSteps = kHeadDim / kStepDims;
constexpr int kDimTiles = kHeadDimV / kScoreTile / kValueParts;  // of a wave
FULMEN_DEVICE int first_value_dim() { return part_of_wave() * kDimTiles * kScoreTile; }
// Rows of quantized keys, or values, have scales of their own, which go through LDS, too.
template <bool kValues>
constexpr bool kStagesScales = kQuantized && !StepScales<kValues, kKeyTiles>::kOne;
// Of a number of K and Q in LDS.
constexpr int kCodeBytes = kCodeKeys ? 1 : 2;
constexpr PrefillShape kShape{
    kTransposedDepth, kReadsTransposed,
    kHeadDim,         kHeadDimV,
    kBlockM,          kBlockN,
    kBuffers,         kQueriesInLds,
    kPersistent,      int{kStagesScales<false>} + int{kStagesScales<true>},
    kCodeBytes,       kCodeValues,
    kScoreTile};
constexpr bool kValuesFollow = kShape.values_follow();
// Outputs alone fill half the registers: operands must not be loaded long before their use.
constexpr bool kTightRegisters = kRowTiles * kDimTiles * kElements >= 128;
// How many products' operands are loaded together then: of gfx11, whose operands are there twice,
// one's beside a tile in flight.
constexpr int kTightSteps = kValuesFollow ? 1 : 2;
static_assert(kBlockM == kRowTiles * kScoreTile * kWaves,
              "prefill: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % kValueDepth == 0 && kKeyTiles % kValueStepTiles == 0 &&
                  kHeadDim % kStepDims == 0 && kHeadDimV % (kScoreTile * kValueParts) == 0,
              "prefill: tiles are whole operands");

static_assert(kValueParts == 1 || !kPersistent,
              "prefill: a persistent workgroup's waves have all dims of V");

constexpr PrefillLayout kLayout = PrefillLayout::of(kShape);
static_assert(kLayout.total == kLdsBytes, "prefill: the host reserves the LDS that the tiles need");

FULMEN_DEVICE int keys_at(int buffer) { return buffer * kLayout.key_bytes; }
FULMEN_DEVICE int values_at(int buffer) { return kLayout.values_at + buffer * kLayout.value_bytes; }
template <bool kValues>
FULMEN_DEVICE int scales_at(int buffer) {
  return kLayout.scales_at + buffer * kLayout.scale_bytes +
         (kValues && kStagesScales<false> ? 4 * kBlockN : 0);
}

constexpr int kPieceDims = 16 / kCodeBytes;  // of K and Q
constexpr int kRowPieces = kHeadDim / kPieceDims;
constexpr int kKeyPieces = kBlockN * kRowPieces;  // of a tile
constexpr int kRowPiecesV = kHeadDimV / 8;

// What a step does for the next tile between its products: nothing, where its loads are in flight
// already.
struct NoCopies {
  FULMEN_DEVICE void turn(int /*turn*/, int /*turns*/) {}
};

}  // namespace fulmen::kernels
