// Where the lists of algorithm/mask_tiles.h lie.
#pragma once

#include "algorithm/mask_tiles.h"
#include "core/scores.h"

namespace fulmen::kernels {

using algorithm::kMaskTileKeys;
using algorithm::MaskTile;
using algorithm::MaskTiles;

// The first word, of MaskBits::lists, of a block of keys' list.
FULMEN_DEVICE unsigned mask_tile_list(const ForwardArguments& a, int batch, int kv_head,
                                      int block) {
  const MaskBits& bits = a.mask_bits;
  const int heads = bits.head_planes == 0 ? 1 : a.num_kv_heads,
            plane = (bits.batch_planes == 0 ? 0 : batch * heads) +
                    (bits.head_planes == 0 ? 0 : kv_head);
  return static_cast<unsigned>(MaskTiles::of(a.seqlen_q, a.seqlen_k).list(plane, block));
}

}  // namespace fulmen::kernels
