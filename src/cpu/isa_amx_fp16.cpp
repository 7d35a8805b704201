#include "cpu/amx_table.h"
#include "cpu/isa_tables.h"

namespace fulmen::cpu {

const IsaTable& table_amx_fp16() {
  static constexpr IsaTable kTable = amx_fp16_table<AmxFp16Instructions>("amx_fp16");
  return kTable;
}

}  // namespace fulmen::cpu
