// What kernels/forward/prefill.h needs to know of a target.
#pragma once

#include <span>

namespace fulmen::gpu {

// Tiles for head dims of q and v up to max_head_dim. The first shape of several counts whose
// workgroups (min_workgroups of them; one, of boards) the chip's LDS holds.
struct PrefillShape {
  int max_head_dim;
  int block_m, block_n;
  int waves;
  int buffers = 1;
  bool queries_in_lds = false;
  int min_waves = 1;        // AMD: of a SIMD
  int min_workgroups = 1;   // NVIDIA: of a multiprocessor
  int plain_waves = 0;      // min_waves where nothing modifies scores, which takes registers
  bool persistent = false;  // where there are few tiles of keys: launch/prefill.cpp
};
struct PrefillTiles {
  int value_dims;  // head_dim_v is rounded up to a multiple of them
  // Most dims of q and v for which a wave's registers have room: above, two waves share their query
  // rows, and each has half of the dims of v.
  int wave_dims = 256;
  // Rows and columns of a product where nothing modifies scores and a tile has so many keys.
  int plain_tile = 16, plain_keys = 32;
  std::span<const PrefillShape> shapes;
  // Chess boards, with all their rows in one tile. None: boards are left to forward/short.h.
  std::span<const PrefillShape> board_shapes{};
  // Quantized K and V, where a tile of these in flight takes registers that a tile of q's dtype
  // leaves alone. None: `shapes`.
  std::span<const PrefillShape> quantized_shapes{};
  // Heads wider than 256, often one or two (a VAE's block), where tiles of `shapes` would leave
  // half of the chip without work. None: `shapes`.
  std::span<const PrefillShape> few_wide_shapes{};
  // The same of heads up to their max_head_dim, where tiles of `shapes` are at most one and a half
  // a compute unit.
  std::span<const PrefillShape> few_narrow_shapes{};
  // Where nothing modifies scores and tiles of `shapes` are two a compute unit at least, of so many
  // rows that the last one is not mostly empty: the first one for the head dims. None: `shapes`.
  std::span<const PrefillShape> many_plain_shapes{};
};

// The shapes for heads of up to 256 dims: of wider ones prefill_int8.h's sums may be beyond what a
// float has exactly. The codes of K and Q leave free half of what the rows take.
constexpr std::span<const PrefillShape> usual_heads(std::span<const PrefillShape> shapes) {
  constexpr int kMostDims = 256;
  while (shapes.back().max_head_dim > kMostDims) shapes = shapes.first(shapes.size() - 1);
  return shapes;
}

}  // namespace fulmen::gpu
