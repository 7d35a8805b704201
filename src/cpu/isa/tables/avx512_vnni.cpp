#include "cpu/isa/avx512_vnni.h"

#include "cpu/isa/tables.h"
#include "cpu/prefill_int8/vector.h"

namespace fulmen::cpu {

// Products in int8 alone: for all others there is the set without them.
const IsaTable& table_avx512_vnni() {
  using Values = NumbersFor<struct Avx512VnniSet, Avx512>;
  using Int8 = Avx512Vnni<Values>;
  static constexpr IsaTable kTable{
      .name = Int8::kName, .lanes = Int8::kLanes, .int8 = int8_tasks<Values, Int8>()};
  return kTable;
}

}  // namespace fulmen::cpu
