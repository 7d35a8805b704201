#include "cpu/backward_steps.h"
#include "cpu/decode_combine.h"
#include "cpu/decode_task.h"
#include "cpu/forward_task.h"
#include "cpu/isa/avx2.h"
#include "cpu/isa_tables.h"
#include "cpu/short_task.h"

namespace fulmen::cpu {

const IsaTable& table_avx2() {
  static constexpr IsaTable kTable{
      .name = Avx2::kName,
      .lanes = Avx2::kLanes,
      .tile_task = {forward_task<Avx2, float>, forward_task<Avx2, Fp16>, forward_task<Avx2, Bf16>},
      .short_task = {short_task<Avx2, float>, short_task<Avx2, Fp16>, short_task<Avx2, Bf16>},
      .decode_task = {decode_task<Avx2, float>, decode_task<Avx2, Fp16>, decode_task<Avx2, Bf16>},
      .decode_combine = {decode_combine<Avx2, float>, decode_combine<Avx2, Fp16>, decode_combine<Avx2, Bf16>},
      .backward = {backward_step<Avx2, float>, backward_step<Avx2, Fp16>, backward_step<Avx2, Bf16>}};
  return kTable;
}

}  // namespace fulmen::cpu
