#include "cpu/isa/amx_table.h"
#include "cpu/isa/tables.h"

namespace fulmen::cpu {

const IsaTable& table_amx() {
  static constexpr IsaTable kTable = amx_table<Amx<AmxInstructions>, Bf16>("amx", DType::bf16);
  return kTable;
}

}  // namespace fulmen::cpu
