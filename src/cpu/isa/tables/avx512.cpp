#include "cpu/isa/avx512.h"

#include "cpu/backward/steps.h"
#include "cpu/decode/combine.h"
#include "cpu/decode/vector.h"
#include "cpu/isa/float_codes.h"
#include "cpu/isa/tables.h"
#include "cpu/prefill/vector.h"
#include "cpu/prefill_int8/vector.h"
#include "cpu/short/vector.h"

namespace fulmen::cpu {

const IsaTable& table_avx512() {
  static constexpr IsaTable kTable{
      .name = Avx512::kName,
      .lanes = Avx512::kLanes,
      .prefill_task = {prefill_task<Avx512, float>, prefill_task<Avx512, Fp16>,
                       prefill_task<Avx512, Bf16>},
      .short_task = {short_task<Avx512, float>, short_task<Avx512, Fp16>, short_task<Avx512, Bf16>},
      .decode_task = {decode_task<Avx512, float>, decode_task<Avx512, Fp16>,
                      decode_task<Avx512, Bf16>},
      .decode_combine = {decode_combine<Avx512, float>, decode_combine<Avx512, Fp16>,
                         decode_combine<Avx512, Bf16>},
      .backward = {backward_step<Avx512, float>, backward_step<Avx512, Fp16>,
                   backward_step<Avx512, Bf16>},
      .int8 = int8_tasks<Avx512, FloatCodes<Avx512>>(),
      .numbers = "Avx512Numbers",
      .flags = FULMEN_ISA_FLAGS};
  return kTable;
}

}  // namespace fulmen::cpu
