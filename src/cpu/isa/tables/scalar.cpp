#include "cpu/isa/scalar.h"

#include "cpu/backward/steps.h"
#include "cpu/decode/combine.h"
#include "cpu/decode/vector.h"
#include "cpu/isa/float_codes.h"
#include "cpu/isa/tables.h"
#include "cpu/prefill/vector.h"
#include "cpu/prefill_int8/vector.h"
#include "cpu/short/vector.h"

namespace fulmen::cpu {

const IsaTable& table_scalar() {
  static constexpr IsaTable kTable{
      .name = Scalar::kName,
      .lanes = Scalar::kLanes,
      .prefill_task = {prefill_task<Scalar, float>, prefill_task<Scalar, Fp16>,
                       prefill_task<Scalar, Bf16>},
      .short_task = {short_task<Scalar, float>, short_task<Scalar, Fp16>, short_task<Scalar, Bf16>},
      .decode_task = {decode_task<Scalar, float>, decode_task<Scalar, Fp16>,
                      decode_task<Scalar, Bf16>},
      .decode_combine = {decode_combine<Scalar, float>, decode_combine<Scalar, Fp16>,
                         decode_combine<Scalar, Bf16>},
      .backward = {backward_step<Scalar, float>, backward_step<Scalar, Fp16>,
                   backward_step<Scalar, Bf16>},
      .int8 = int8_tasks<Scalar, FloatCodes<Scalar>>()};
  return kTable;
}

}  // namespace fulmen::cpu
