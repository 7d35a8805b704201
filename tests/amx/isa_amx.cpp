#include "amx/emulated_tiles.h"
#include "cpu/amx_table.h"

namespace fulmen::testing {

// The tile kernels over emulated tiles.
const cpu::IsaTable& emulated_amx_table() {
  static constexpr cpu::IsaTable kTable = cpu::amx_table<EmulatedTiles>("amx_emulated");
  return kTable;
}

}  // namespace fulmen::testing
