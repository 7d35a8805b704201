#include "cpu/isa/scalar.h"

#include <cstdint>
#include <cstring>

#include "cpu/isa/float_codes.h"
#include "cpu/isa/table.h"
#include "cpu/prefill_int8/amx.h"
#include "cpu/prefill_int8/vector.h"
#include "support/emulated_tiles.h"
#include "support/wide_vectors.h"

namespace fulmen::testing {
namespace {

// What cpu/isa/avx_vnni.h and avx512_vnni.h have, with vpdpbusd in plain C++: keys' codes are
// unsigned, by an offset of 128.
struct EmulatedVnni : cpu::Scalar {
  using Numbers = cpu::Scalar;
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 128;

  static Vec dot(Vec sum, Vec a, Vec b) {
    int32_t sums[kLanes];
    int8_t of_queries[kLanes][4];
    uint8_t of_keys[kLanes][4];
    std::memcpy(sums, &sum, sizeof sums);
    std::memcpy(of_queries, &a, sizeof of_queries);
    std::memcpy(of_keys, &b, sizeof of_keys);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) sums[lane] += of_keys[lane][i] * of_queries[lane][i];
    }
    std::memcpy(&sum, sums, sizeof sum);
    return sum;
  }
  static Vec number(Vec sum) {
    int32_t sums[kLanes];
    std::memcpy(sums, &sum, sizeof sums);
    Vec x{};
    for (int lane = 0; lane < kLanes; ++lane) x[lane] = static_cast<float>(sums[lane]);
    return x;
  }
  static Vec code(Vec rounded) { return sub(rounded, set1(cpu::kCodeOrigin)); }
  static void store_codes(float* to, Vec rounded) { store_bytes(to, rounded, 0); }
  static void store_key_codes(float* to, Vec rounded) { store_bytes(to, rounded, 0x80); }

 private:
  static void store_bytes(float* to, Vec rounded, uint32_t flipped) {
    uint8_t bytes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      bytes[lane] = static_cast<uint8_t>(bits(rounded)[lane] ^ flipped);
    std::memcpy(to, bytes, sizeof bytes);
  }
};

}  // namespace

const cpu::IsaTable& emulated_vnni_table() {
  static constexpr cpu::IsaTable kTable{.name = "vnni_emulated",
                                        .lanes = EmulatedVnni::kLanes,
                                        .int8 = cpu::int8_tasks<cpu::Scalar, EmulatedVnni>()};
  return kTable;
}

// The kernels of cpu/isa/tables/amx_table.h that this folder tests, without AVX-512: prefill's
// softmax and second product are the same with both products.
const cpu::IsaTable& emulated_amx_int8_table() {
  using Isa = WideAmx<EmulatedTiles>;
  using Product = WideInt8<Isa, EmulatedInt8Tiles>;
  static constexpr cpu::IsaTable kTable{
      .name = "amx_wide",
      .lanes = Isa::kLanes,
      .group = {1, 1, Isa::kGroup},
      .block_n = 128,
      .int8 = {.codes = Product::kGroup,
               .prefill_task = {nullptr, nullptr,
                                cpu::amx_prefill_int8_task<Isa, cpu::Bf16, Product>},
               .code_keys = {nullptr, nullptr, cpu::code_keys<Isa, cpu::Bf16, Product>},
               .scratch_floats =
                   [](const Problem& problem, int block_n, int tiles) {
                     return cpu::amx_int8_scratch(problem, Isa::kLanes, Product::kGroup, block_n,
                                                  tiles)
                         .total;
                   }},
      .amx_tiles = true};
  return kTable;
}

}  // namespace fulmen::testing
