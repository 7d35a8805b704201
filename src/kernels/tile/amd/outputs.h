// AMD: a lane's outputs of a row are neighbours already; each lane stores its own.
#pragma once

#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

constexpr bool kPairsOutputs = false;
FULMEN_DEVICE int paired_column() { return 0; }
// kPairsOutputs alone.
template <class T>
FULMEN_DEVICE Words<2> paired_outputs(const float (&)[kElements], int, float);
template <int kDims, int kRowTiles>
FULMEN_DEVICE void store_tiles_through_lds(
    int /*at*/, const Element* /*board*/, Int64 /*board_stride*/, int /*row*/, Int64 /*end*/,
    int /*dims*/, float /*scale*/, const float (&)[kRowTiles][kDims / kScoreTile][kElements]) {}

}  // namespace fulmen::kernels
