#include "cpu/backward_steps.h"
#include "cpu/decode_combine.h"
#include "cpu/decode_task.h"
#include "cpu/forward_task.h"
#include "cpu/isa/scalar.h"
#include "cpu/isa_tables.h"
#include "cpu/short_task.h"

namespace fulmen::cpu {

const IsaTable& table_scalar() {
  static constexpr IsaTable kTable{
      .name = Scalar::kName,
      .lanes = Scalar::kLanes,
      .tile_task = {forward_task<Scalar, float>, forward_task<Scalar, Fp16>, forward_task<Scalar, Bf16>},
      .short_task = {short_task<Scalar, float>, short_task<Scalar, Fp16>, short_task<Scalar, Bf16>},
      .decode_task = {decode_task<Scalar, float>, decode_task<Scalar, Fp16>, decode_task<Scalar, Bf16>},
      .decode_combine = {decode_combine<Scalar, float>, decode_combine<Scalar, Fp16>, decode_combine<Scalar, Bf16>},
      .backward = {backward_step<Scalar, float>, backward_step<Scalar, Fp16>, backward_step<Scalar, Bf16>}};
  return kTable;
}

}  // namespace fulmen::cpu
