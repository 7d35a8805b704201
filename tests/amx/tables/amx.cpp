#include "cpu/isa/tables/amx_table.h"
#include "support/emulated_pairs.h"
#include "support/emulated_tiles.h"

namespace fulmen::testing {

// The tile kernels over emulated tiles, and what AVX-512 BF16 adds to AVX-512 emulated, too.
const cpu::IsaTable& emulated_amx_table() {
  static constexpr cpu::IsaTable kTable =
      cpu::amx_table<cpu::Amx<EmulatedTiles, EmulatedPairs>, cpu::Bf16, EmulatedInt8Tiles>(
          "amx_emulated", DType::bf16);
  return kTable;
}

const cpu::IsaTable& emulated_amx_fp16_table() {
  static constexpr cpu::IsaTable kTable =
      cpu::amx_table<cpu::AmxFp16<EmulatedFp16Tiles>, cpu::Fp16, EmulatedInt8Tiles>(
          "amx_fp16_emulated", DType::fp16);
  return kTable;
}

// c[16][16] += a[16][16 words] b[16 words][16], by the processor's own tiles.
void real_dot(const float* a, const float* b, float* c) {
  cpu::AmxInstructions::configure();
  cpu::AmxInstructions::load<0>(c, 16);
  cpu::AmxInstructions::load<4>(a, 16);
  cpu::AmxInstructions::load<6>(b, 16);
  cpu::AmxInstructions::dot<0, 4, 6>();
  cpu::AmxInstructions::store<0>(c, 16);
  cpu::AmxInstructions::release();
}

}  // namespace fulmen::testing
