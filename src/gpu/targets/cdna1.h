// CDNA1: as CDNA2. Products of bf16 take twice as many instructions, and sums lie in accumulators,
// registers apart that only products and moves reach.
#pragma once

#include <array>

#include "gpu/targets/cdna2.h"

namespace fulmen::gpu {
namespace cdna1 {

// A lane has 256 registers for values and as many for sums, in one wave a SIMD.
inline constexpr PrefillShape kPrefill[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 2},
    {.max_head_dim = 128, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 1},
    {.max_head_dim = 256, .block_m = 64, .block_n = 32, .waves = 4, .buffers = 1},
    {.max_head_dim = 576, .block_m = 32, .block_n = 16, .waves = 4, .buffers = 1},
};
inline constexpr PrefillShape kPrefillFp32[]{
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 4},
    {.max_head_dim = 128, .block_m = 64, .block_n = 32, .waves = 4},
    {.max_head_dim = 256, .block_m = 64, .block_n = 16, .waves = 4},
};
inline constexpr BiasGradientShape kBiasGradient[]{
    {.max_head_dim = 32, .block_m = 128, .block_n = 64, .waves = 4, .buffers = 1},
    {.max_head_dim = 64, .block_m = 128, .block_n = 32, .waves = 4, .buffers = 1},
    kCdna3BiasGradient[3],
    kCdna3BiasGradient[4],
};

// Scalar registers would be kept in lanes.
inline constexpr auto kBackward = [] {
  auto shapes = std::to_array(cdna3::kBackward);
  for (BackwardShapes& s : shapes) s.plain_queries = s.plain_keys = {};
  return shapes;
}();

inline constexpr ChipFacts kChips[]{
    {.arch = "gfx908",
     .wave_size = 64,
     .vector_registers = 512,
     .register_file = 512 * 64,
     .pair_products = true,
     .products = "Instinct MI100"},
};

inline constexpr std::string_view kTestChips[]{"gfx908"};

}  // namespace cdna1

inline constexpr Target kCdna1 = [] {
  Target target = kCdna2;
  target.name = "cdna1";
  target.decode_latent = {};  // not tried with accumulators apart
  target.prefill->shapes = cdna1::kPrefill;
  target.prefill->plain_tile = 16;
  target.prefill->many_plain_shapes = {};
  target.prefill->wave_dims = 256;  // outputs of more fill the accumulators
  target.prefill_fp32->shapes = cdna1::kPrefillFp32;
  target.prefill_int8->shapes = usual_heads(cdna1::kPrefill);
  target.backward->shapes = cdna1::kBackward;
  target.bias_gradient->shapes = cdna1::kBiasGradient;
  target.backward_fp32 = {};  // clang 19 crashes on it, or reads registers that nothing has written
  target.loop_budget = {.vector = 1600, .occupancy = 1, .keys_lds = 400};
  target.chips = cdna1::kChips;
  target.test_chips = cdna1::kTestChips;
  return target;
}();

}  // namespace fulmen::gpu
