#include "cpu/isa/avx_vnni.h"

#include "cpu/isa/tables.h"
#include "cpu/prefill_int8/vector.h"

namespace fulmen::cpu {

// Products in int8 alone: for all others there is the set without them.
const IsaTable& table_avx_vnni() {
  static constexpr IsaTable kTable{.name = AvxVnni::kName,
                                   .lanes = AvxVnni::kLanes,
                                   .int8 = int8_tasks<AvxVnni::Numbers, AvxVnni>()};
  return kTable;
}

}  // namespace fulmen::cpu
