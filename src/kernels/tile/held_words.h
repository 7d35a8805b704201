// Tiles of 16-bit elements, two a word, that a wave keeps from batch to batch.
#pragma once

#include "core/config.h"
#include "core/matrix.h"
#include "tile/transposed.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/held_words.h"
#else
#include "tile/amd/held_words.h"
#endif
