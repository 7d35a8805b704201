#include "cpu/backward/steps.h"
#include "cpu/decode/combine.h"
#include "cpu/decode/vector.h"
#include "cpu/isa/avx2_int8.h"
#include "cpu/isa/tables.h"
#include "cpu/prefill/vector.h"
#include "cpu/prefill_int8/vector.h"
#include "cpu/short/vector.h"

namespace fulmen::cpu {

const IsaTable& table_avx2() {
  static constexpr IsaTable kTable{
      .name = Avx2::kName,
      .lanes = Avx2::kLanes,
      .prefill_task = {prefill_task<Avx2, float>, prefill_task<Avx2, Fp16>,
                       prefill_task<Avx2, Bf16>},
      .short_task = {short_task<Avx2, float>, short_task<Avx2, Fp16>, short_task<Avx2, Bf16>},
      .decode_task = {decode_task<Avx2, float>, decode_task<Avx2, Fp16>, decode_task<Avx2, Bf16>},
      .decode_combine = {decode_combine<Avx2, float>, decode_combine<Avx2, Fp16>,
                         decode_combine<Avx2, Bf16>},
      .backward = {backward_step<Avx2, float>, backward_step<Avx2, Fp16>,
                   backward_step<Avx2, Bf16>},
      .int8 = int8_tasks<Avx2, Avx2Int8>(),
      .numbers = "Avx2Numbers",
      .flags = FULMEN_ISA_FLAGS};
  return kTable;
}

}  // namespace fulmen::cpu
