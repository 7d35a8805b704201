#include "cpu/isa/tables.h"
#include "cpu/isa/tables/amx_table.h"

namespace fulmen::cpu {

const IsaTable& table_amx() {
  static constexpr IsaTable kTable = [] {
    IsaTable table =
        amx_table<Amx<AmxInstructions>, Bf16, AmxInt8Instructions<Bf16>>("amx", DType::bf16);
    table.numbers = "Avx512Numbers";
    table.flags = FULMEN_ISA_FLAGS;
    return table;
  }();
  return kTable;
}

}  // namespace fulmen::cpu
