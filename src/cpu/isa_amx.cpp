#include "cpu/amx_table.h"
#include "cpu/isa_tables.h"

namespace fulmen::cpu {

const IsaTable& table_amx() {
  static constexpr IsaTable kTable = amx_table<AmxInstructions>("amx");
  return kTable;
}

}  // namespace fulmen::cpu
