// What kernels/backward/bias_gradient.h and bias_gradient_fp32.h need to know of a target.
#pragma once

#include <span>

namespace fulmen::gpu {

// Tiles of dbias for head dims of q and v up to max_head_dim.
struct BiasGradientShape {
  int max_head_dim;
  int block_m, block_n, waves;
  int buffers;
  bool rows_in_lds = false;  // q and dout are not held in registers
  int min_waves = 1;         // AMD: of a SIMD
  int min_workgroups = 1;    // NVIDIA: of a multiprocessor
  bool late = false;         // AMD: a term's tiles are fetched only when they are needed
  bool beside_mask = true;   // not: a keep-mask's bits have no registers
};
// By head dims. The first is taken whose workgroups (min_workgroups of them) the chip's LDS holds.
struct BiasGradientTiles {
  std::span<const BiasGradientShape> shapes;
};

// The tables of the targets. On RDNA 32 dims leave registers for sums and bias of 64 keys, 64 dims
// for those of 32. Above, q and dout wait in LDS, of which a workgroup has 64 KiB.
inline constexpr BiasGradientShape kGfx11BiasGradient[]{
    {.max_head_dim = 32,
     .block_m = 128,
     .block_n = 64,
     .waves = 8,
     .buffers = 1,
     .beside_mask = false},
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
    {.max_head_dim = 128,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 1,
     .rows_in_lds = true,
     .late = true},
    {.max_head_dim = 256,
     .block_m = 32,
     .block_n = 16,
     .waves = 2,
     .buffers = 1,
     .rows_in_lds = true,
     .late = true},
};
inline constexpr BiasGradientShape kGfx12BiasGradient[]{
    {.max_head_dim = 32, .block_m = 128, .block_n = 64, .waves = 8, .buffers = 1},
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 8, .buffers = 1},
    {.max_head_dim = 128,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 1,
     .rows_in_lds = true,
     .late = true},
    {.max_head_dim = 256,
     .block_m = 32,
     .block_n = 16,
     .waves = 2,
     .buffers = 1,
     .rows_in_lds = true,
     .late = true},
};
inline constexpr BiasGradientShape kCdna3BiasGradient[]{
    {.max_head_dim = 32, .block_m = 128, .block_n = 64, .waves = 4, .buffers = 1, .min_waves = 2},
    {.max_head_dim = 64,
     .block_m = 128,
     .block_n = 64,
     .waves = 4,
     .buffers = 1,
     .min_waves = 2,
     .beside_mask = false},
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 1, .min_waves = 2},
    {.max_head_dim = 128,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 1,
     .rows_in_lds = true,
     .late = true},
    {.max_head_dim = 256,
     .block_m = 32,
     .block_n = 16,
     .waves = 2,
     .buffers = 1,
     .rows_in_lds = true,
     .late = true},
};
// Large tiles: memory brings 2 (block_m + block_n) rows for block_m block_n elements. Fewer keys or
// buffers serve chips with less LDS.
inline constexpr BiasGradientShape kSm80BiasGradient[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 128, .waves = 8, .buffers = 2},
    {.max_head_dim = 64, .block_m = 128, .block_n = 64, .waves = 8, .buffers = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 64, .waves = 8, .buffers = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 64, .waves = 8, .buffers = 1},
    {.max_head_dim = 256,
     .block_m = 64,
     .block_n = 64,
     .waves = 4,
     .buffers = 1,
     .rows_in_lds = true},
    {.max_head_dim = 256,
     .block_m = 64,
     .block_n = 32,
     .waves = 4,
     .buffers = 1,
     .rows_in_lds = true},
};

}  // namespace fulmen::gpu
