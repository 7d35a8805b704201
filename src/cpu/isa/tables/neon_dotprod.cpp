#include "cpu/isa/neon_dotprod.h"

#include "cpu/isa/tables.h"
#include "cpu/prefill_int8/vector.h"

namespace fulmen::cpu {

// Products in int8 alone: for all others there is the set without them.
const IsaTable& table_neon_dotprod() {
  static constexpr IsaTable kTable{.name = NeonDotprod::kName,
                                   .lanes = NeonDotprod::kLanes,
                                   .int8 = int8_tasks<NeonDotprod::Numbers, NeonDotprod>()};
  return kTable;
}

}  // namespace fulmen::cpu
