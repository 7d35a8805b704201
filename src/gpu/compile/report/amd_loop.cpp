// The inner loop of an AMD kernel.
#include "gpu/compile/report/amd_disassembly.h"
#include "gpu/compile/report/disassembly_line.h"
#include "gpu/compile/report/inner_loop.h"

namespace fulmen::gpu {
namespace {

using Flow = Instruction::Flow;

WayCounts amd_counts_of(std::string_view name) {
  WayCounts c;
  c.total = 1;
  if (begins_with_any(name, {"v_wmma_", "v_swmmac_", "v_mfma_", "v_smfmac_"})) {
    c.matrix = 1;
    c.matrix_products = static_cast<int>(shape_product(name));  // divided at the end
  } else if (begins_with_any(
                 name, {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"})) {
    c.transcendental = 1;
  } else if (name.starts_with("v_")) {
    c.vector = 1;  // v_dual_*: one instruction, two operations
  } else if (name.starts_with("ds_")) {
    c.lds = 1;
    c.exchanges = begins_with_any(name, {"ds_bpermute_", "ds_permute_", "ds_swizzle_"}) ? 1 : 0;
  } else if (begins_with_any(name, {"global_load", "global_store", "global_atomic", "flat_",
                                    "buffer_", "scratch_"})) {
    c.memory = 1;
  } else {
    c.scalar = 1;
  }
  return c;
}

Flow flow_of(const AmdInstruction& instruction) {
  if (!instruction.branches) return instruction.falls_through ? Flow::next : Flow::end;
  return instruction.falls_through ? Flow::conditional : Flow::jump;
}

}  // namespace

LoopCounts count_amd_loop(std::string_view text) {
  static_assert(AmdInstruction::kNowhere == Instruction::kNowhere);
  std::vector<Instruction> code;
  for (const AmdInstruction& i : read_amd_disassembly(text))
    code.push_back({flow_of(i), i.target, amd_counts_of(i.name)});
  LoopCounts counts = inner_loop(code);
  counts.matrix_products = static_cast<int>(counts.matrix_products / kProduct);
  return counts;
}

}  // namespace fulmen::gpu
