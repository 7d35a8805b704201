#include "emulator/machine_code/instructions/table.h"

#include "runtime/fork_safe.h"

namespace fulmen::gpu::isa {

const Table& instruction_table() {
  constinit static MadeOnce<const Table> made;
  return made.get([] {
    Table table;
    for (const auto add :
         {add_float_instructions, add_division, add_integer_instructions, add_lane_masks,
          add_comparisons, add_packed_instructions, add_cross_lane_instructions,
          add_scalar_instructions, add_scalar_arithmetic, add_flow_instructions,
          add_lds_instructions, add_memory_instructions, add_buffer_instructions, add_atomics,
          add_scratch_instructions, add_flat_instructions, add_matrix_instructions,
          add_half_matrix_instructions, add_int8_matrix_instructions}) {
      add(table);
    }
    return table;
  });
}

}  // namespace fulmen::gpu::isa
