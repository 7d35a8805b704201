#include "cpu/isa/avx512_bf16.h"

#include "cpu/backward/steps.h"
#include "cpu/decode/combine.h"
#include "cpu/decode/vector.h"
#include "cpu/isa/avx512_vnni.h"
#include "cpu/isa/tables.h"
#include "cpu/prefill/vector.h"
#include "cpu/prefill_int8/vector.h"
#include "cpu/short/vector.h"

namespace fulmen::cpu {

const IsaTable& table_avx512_bf16() {
  using Int8 = Avx512Vnni<Avx512Bf16>;  // every processor that has BF16 has VNNI
  static constexpr IsaTable kTable{
      .name = Avx512Bf16::kName,
      .lanes = Avx512Bf16::kLanes,
      .group = {1, 1, 2},
      .prefill_task = {nullptr, nullptr, prefill_task<Avx512Bf16, Bf16>},
      .short_task = {nullptr, nullptr, short_task<Avx512Bf16, Bf16>},
      .decode_task = {nullptr, nullptr, decode_task<Avx512Bf16, Bf16>},
      .decode_combine = {nullptr, nullptr, decode_combine<Avx512Bf16, Bf16>},
      .backward = {nullptr, nullptr, backward_step<Avx512Bf16, Bf16>},
      .int8 = {.codes = Int8::kGroup,
               .prefill_task = {nullptr, nullptr, prefill_int8_task<Avx512Bf16, Bf16, Int8>},
               .code_keys = {nullptr, nullptr, code_keys<Avx512Bf16, Bf16, Int8>},
               .scratch_floats = int8_floats<Avx512Bf16, Int8>},
      .numbers = "Avx512Numbers",
      .flags = FULMEN_ISA_FLAGS};
  return kTable;
}

}  // namespace fulmen::cpu
