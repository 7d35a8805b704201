// CDNA2: CDNA3's instructions at half the rate, of which subnormal operands count as 0.
#pragma once

#include "gpu/targets/cdna3.h"

namespace fulmen::gpu {
namespace cdna2 {

inline constexpr ChipFacts kChips[]{
    {.arch = "gfx90a",
     .wave_size = 64,
     .vector_registers = 512,
     .register_file = 512 * 64,
     .pair_products = true,
     .products = "Instinct MI210, MI250"},
};

inline constexpr std::string_view kTestChips[]{"gfx90a"};

}  // namespace cdna2

inline constexpr Target kCdna2 = [] {
  Target target = kCdna3;
  target.name = "cdna2";
  target.like = &kCdna3;
  target.prefill_e4m3 = {};  // no codes of fp8 are multiplied
  target.flushes_subnormals = true;
  target.chips = cdna2::kChips;
  target.test_chips = cdna2::kTestChips;
  return target;
}();

}  // namespace fulmen::gpu
