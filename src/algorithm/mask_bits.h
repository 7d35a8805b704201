// The keep-mask as bits, as kernels' arguments have it. Freestanding.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::algorithm {

constexpr int kMaskRows = 64;  // queries of a block of MaskBits
// kernels/forward/pack_mask.h: blocks of keys that a workgroup fills, of a block mask.
constexpr int kFilledBlocks = 8;

// The keep-mask as bits: forward/pack_mask.h makes them, tile/mask_bits.h reads them. A plane is
// what the mask has of a batch and a head; its number is batch * batch_planes + head * head_planes.
// Only `any` knows of the band.
struct MaskBits {
  unsigned* by_query;      // [planes][rows][words]: bit j % 32 of word j / 32: the mask lets query
                           // i attend key j
  unsigned* any;           // [planes][blocks][words]: some query of the block attends key j, within
                           // its band
  unsigned* all;           // [planes][blocks][words]: the mask lets every query of the block attend
                           // key j
  unsigned* by_key;        // [planes][keys][query_words]: the transpose of by_query; null where no
                           // kernel reads it
  unsigned* lists;         // algorithm/mask_tiles.h; null where no kernel reads them
  int words, query_words;  // multiples of 4
  int batch_planes, head_planes;
  Index rows;    // seqlen_q, the most that any sequence has; 1 where all queries have one row of
                 // the mask
  Index blocks;  // of kMaskRows queries; 1 where all have one row, and there is no band
  Index keys;    // seqlen_k, the most that any sequence has
};

}  // namespace fulmen::algorithm
