#include "cpu/isa/neon_i8mm.h"

#include "cpu/isa/tables.h"
#include "cpu/prefill_int8/vector.h"

namespace fulmen::cpu {

// Products in int8 alone: for all others there is the set without them.
const IsaTable& table_neon_i8mm() {
  static constexpr IsaTable kTable{.name = NeonI8mm::kName,
                                   .lanes = NeonI8mm::kLanes,
                                   .int8 = int8_tasks<NeonI8mm::Numbers, NeonI8mm>()};
  return kTable;
}

}  // namespace fulmen::cpu
