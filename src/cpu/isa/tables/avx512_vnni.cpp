#include "cpu/isa/avx512_vnni.h"

#include "cpu/isa/tables.h"
#include "cpu/prefill_int8/vector.h"

namespace fulmen::cpu {

// Products in int8 alone: for all others there is the set without them.
const IsaTable& table_avx512_vnni() {
  static constexpr IsaTable kTable{.name = Avx512Vnni<Avx512>::kName,
                                   .lanes = Avx512Vnni<Avx512>::kLanes,
                                   .int8 = int8_tasks<Avx512, Avx512Vnni<Avx512>>()};
  return kTable;
}

}  // namespace fulmen::cpu
