// The additive tile of a call's tensors: bias, keep-mask, ALiBi and the band's edge.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

// Where a tile of scores lies: query rows of one head, and keys.
struct TilePlace {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int rows = 0;
  int64_t key = 0;
  int keys = 0;
  bool partial = false;  // only partly inside the band
  bool masked = false;   // the bool mask may leave some out
};

// The head's ALiBi slope; 0: none.
FULMEN_INLINE float alibi_slope_of(const Problem& problem, const AttentionTensors& tensors,
                                   int64_t batch, int64_t head) {
  if (!problem.alibi_slopes.present) return 0;
  return *element<float>(tensors.alibi_slopes, problem.alibi_slopes, batch, 0, 0, head);
}

template <class Isa, class BiasT>
FULMEN_INLINE void additive_tile_of(const Problem& problem, const AttentionTensors& tensors,
                                    const algorithm::Band& band, float alibi_slope,
                                    const TilePlace& at, float* out) {
  AdditiveTile<BiasT> tile;
  if (problem.bias.present) {
    tile.bias = {element<BiasT>(tensors.bias, problem.bias, at.batch, at.head, at.row, at.key),
                 problem.bias.strides[2]};
  }
  if (at.masked && problem.keep_mask.present) {
    tile.keep = {
        element<uint8_t>(tensors.keep_mask, problem.keep_mask, at.batch, at.head, at.row, at.key),
        problem.keep_mask.strides[2]};
  }
  tile.place = {alibi_slope, at.partial, band, at.row, at.key};
  build_additive<Isa>(tile, at.rows, at.keys, out);
}

// out: [keys][kBlockM].
template <class Isa>
FULMEN_INLINE void additive_tile(const Problem& problem, const AttentionTensors& tensors,
                                 const algorithm::Band& band, float alibi_slope,
                                 const TilePlace& at, float* out) {
  switch (problem.bias.dtype) {
    case DType::fp16:
      return additive_tile_of<Isa, Fp16>(problem, tensors, band, alibi_slope, at, out);
    case DType::bf16:
      return additive_tile_of<Isa, Bf16>(problem, tensors, band, alibi_slope, at, out);
    default:
      return additive_tile_of<Isa, float>(problem, tensors, band, alibi_slope, at, out);
  }
}

}  // namespace fulmen::cpu
