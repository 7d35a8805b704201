// From where to where blocks of queries attend keys, and blocks of keys are attended, as masks as
// bits say: a table behind MaskBits::all. forward/mask_spans.h makes it, tile/mask_span.h reads it.
// Freestanding.
#pragma once

#include "algorithm/mask_bits.h"

namespace fulmen::algorithm {

// The first of them, and one past the last, or a few more: bounds are multiples of 32 keys or of
// kMaskRows queries. Empty where begin >= end.
struct MaskSpan {
  unsigned begin, end;
};

// The table: in each plane the blocks of kMaskRows queries, which are those of `any`, then the
// blocks of as many keys.
struct MaskSpans {
  unsigned* at;  // as MaskSpan
  Index blocks, key_blocks;

  FULMEN_ALGORITHM static MaskSpans of(const MaskBits& bits, Index planes) {
    return {bits.all + planes * bits.blocks * bits.words, bits.blocks,
            (bits.keys + kMaskRows - 1) / kMaskRows};
  }
  // Blocks of a plane.
  FULMEN_ALGORITHM Index count() const { return blocks + key_blocks; }
  // Words of all planes, so many that what follows is aligned. The bits may have no address yet.
  FULMEN_ALGORITHM static Index words(const MaskBits& bits, Index planes) {
    return (planes * of(bits, 0).count() * 2 + 15) / 16 * 16;
  }
};

}  // namespace fulmen::algorithm
