#include "cpu/isa/tables.h"
#include "cpu/isa/tables/amx_table.h"

namespace fulmen::cpu {

const IsaTable& table_amx_fp16() {
  static constexpr IsaTable kTable =
      amx_table<AmxFp16<AmxFp16Instructions>, Fp16, AmxInt8Instructions<Fp16>>(
          "amx_fp16", DType::fp16, FULMEN_ISA_FLAGS);
  return kTable;
}

}  // namespace fulmen::cpu
