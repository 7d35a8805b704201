#include "cpu/isa/tables.h"
#include "cpu/isa/tables/amx_table.h"

namespace fulmen::cpu {

const IsaTable& table_amx() {
  static constexpr IsaTable kTable =
      amx_table<Amx<AmxInstructions>, Bf16, AmxInt8Instructions<Bf16>>("amx", DType::bf16,
                                                                       FULMEN_ISA_FLAGS);
  return kTable;
}

}  // namespace fulmen::cpu
