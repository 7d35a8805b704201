// llvm-objdump's text of an AMD code object: lines "\t<name> <operands> // <address>: <words> <symbol>", branches by their distance
// in words.
#include <map>

#include "gpu/compile/disassembly_line.h"
#include "gpu/compile/inner_loop.h"

namespace fulmen::gpu {
namespace {

using Flow = Instruction::Flow;

LoopCounts counts_of(std::string_view name) {
  LoopCounts c;
  c.total = 1;
  if (begins_with_any(name, {"v_wmma_", "v_swmmac_", "v_mfma_", "v_smfmac_"})) {
    c.matrix = 1;
    c.matrix_products = static_cast<int>(shape_product(name) / kProduct);
  } else if (begins_with_any(name, {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"})) {
    c.transcendental = 1;
  } else if (name.starts_with("v_")) {
    c.vector = 1;  // v_dual_*: one instruction, two operations
  } else if (name.starts_with("ds_")) {
    c.lds = 1;
  } else if (begins_with_any(name, {"global_load", "global_store", "global_atomic", "flat_", "buffer_", "scratch_"})) {
    c.memory = 1;
  } else {
    c.scalar = 1;
  }
  return c;
}

Flow flow_of(std::string_view name) {
  if (name == "s_branch") return Flow::jump;
  if (name.starts_with("s_cbranch_")) return Flow::conditional;
  if (begins_with_any(name, {"s_endpgm", "s_setpc_b64"})) return Flow::end;
  return Flow::next;
}

}  // namespace

LoopCounts count_amd_loop(std::string_view text) {
  std::vector<Instruction> code;
  std::vector<uint64_t> goals;  // addresses that are jumped to
  std::map<uint64_t, std::size_t> index;
  for (std::string_view line; take_line(text, line);) {
    const std::size_t comment = line.find("// ");
    if (comment == std::string_view::npos || !line.starts_with('\t')) continue;
    uint64_t address = 0;
    if (std::from_chars(line.data() + comment + 3, line.data() + line.size(), address, 16).ec != std::errc()) continue;
    std::string_view operands = line.substr(0, comment);
    const std::string_view name = take_word(operands);
    if (name == "s_code_end") continue;  // padding
    Instruction instruction{flow_of(name), Instruction::kNowhere, counts_of(name)};
    uint16_t words = 0;
    uint64_t goal = ~uint64_t{0};
    if (instruction.flow != Flow::next && instruction.flow != Flow::end &&
        std::from_chars(operands.data(), operands.data() + operands.size(), words).ec == std::errc()) {
      goal = address + 4 + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(words)) * 4);
    }
    index[address] = code.size();
    code.push_back(instruction);
    goals.push_back(goal);
  }
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (const auto found = index.find(goals[i]); found != index.end()) code[i].target = found->second;
  }
  return inner_loop(code);
}

}  // namespace fulmen::gpu
