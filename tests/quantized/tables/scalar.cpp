#include "cpu/isa/scalar.h"

#include "cpu/isa/float_codes.h"
#include "cpu/isa/table.h"
#include "cpu/prefill_int8/amx.h"
#include "cpu/prefill_int8/vector.h"
#include "quantized/code_sums.h"
#include "support/emulated_codes.h"
#include "support/emulated_tiles.h"
#include "support/wide_vectors.h"

namespace fulmen::testing {

namespace {

template <class Product>
const cpu::IsaTable& emulated_table() {
  static constexpr cpu::IsaTable kTable{.name = Product::kName,
                                        .lanes = Product::kLanes,
                                        .int8 = cpu::int8_tasks<cpu::Scalar, Product>()};
  return kTable;
}

}  // namespace

const cpu::IsaTable& emulated_vnni_table() { return emulated_table<EmulatedVnni>(); }
const cpu::IsaTable& emulated_sdot_table() { return emulated_table<EmulatedSdot>(); }
const cpu::IsaTable& emulated_smmla_table() { return emulated_table<EmulatedSmmla>(); }

void emulated_sdot_sums(const CodeSums& call) { code_sums<EmulatedSdot>(call); }
void emulated_smmla_sums(const CodeSums& call) { code_sums<EmulatedSmmla>(call); }

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
