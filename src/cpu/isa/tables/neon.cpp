#include "cpu/isa/neon.h"

#include "cpu/backward/steps.h"
#include "cpu/decode/combine.h"
#include "cpu/decode/vector.h"
#include "cpu/isa/float_codes.h"
#include "cpu/isa/tables.h"
#include "cpu/prefill/vector.h"
#include "cpu/prefill_int8/vector.h"
#include "cpu/short/vector.h"

namespace fulmen::cpu {

const IsaTable& table_neon() {
  static constexpr IsaTable kTable{
      .name = Neon::kName,
      .lanes = Neon::kLanes,
      .prefill_task = {prefill_task<Neon, float>, prefill_task<Neon, Fp16>,
                       prefill_task<Neon, Bf16>},
      .short_task = {short_task<Neon, float>, short_task<Neon, Fp16>, short_task<Neon, Bf16>},
      .decode_task = {decode_task<Neon, float>, decode_task<Neon, Fp16>, decode_task<Neon, Bf16>},
      .decode_combine = {decode_combine<Neon, float>, decode_combine<Neon, Fp16>,
                         decode_combine<Neon, Bf16>},
      .backward = {backward_step<Neon, float>, backward_step<Neon, Fp16>,
                   backward_step<Neon, Bf16>},
      .int8 = int8_tasks<Neon, FloatCodes<Neon>>()};
  return kTable;
}

}  // namespace fulmen::cpu
