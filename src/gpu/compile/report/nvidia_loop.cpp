// nvdisasm's text of a cubin: lines "/*<address>*/ [@[!]P<n>] <NAME> <operands> ;", labels
// ".L_x_<n>:", branches by label.
#include <map>
#include <string>

#include "gpu/compile/report/disassembly_line.h"
#include "gpu/compile/report/inner_loop.h"

namespace fulmen::gpu {
namespace {

using Flow = Instruction::Flow;

// m * n * k of a warp's share.
long matrix_work(std::string_view name) {
  if (const long product = shape_product(name); product > 0) {
    // A warpgroup's four warps share it.
    return name.find("GMMA") != std::string_view::npos ? product / 4 : product;
  }
  return name.find(".1688") != std::string_view::npos ? 16L * 8 * 8 : 16L * 8 * 16;  // HMMA.16816
}

// work: of matrix instructions, which are parts of a product.
WayCounts nvidia_counts_of(std::string_view name) {
  WayCounts c;
  c.total = 1;
  const std::string_view base = name.substr(0, name.find('.'));
  if (base.ends_with("MMA")) {
    c.matrix = 1;
    c.matrix_products = static_cast<int>(matrix_work(name));
  } else if (base == "MUFU") {
    c.transcendental = 1;
  } else if (begins_with_any(base, {"LDSM", "STSM", "LDS", "STS", "ATOMS", "SHFL"})) {
    c.lds = 1;
  } else if (begins_with_any(base, {"LDGDEPBAR", "LDC",  "ULDC",  "S2",       "CS2R",     "BAR",
                                    "DEPBAR",    "BSSY", "BSYNC", "BRA",      "BREAK",    "CALL",
                                    "RET",       "EXIT", "NOP",   "WARPSYNC", "MEMBAR",   "FENCE",
                                    "ERRBAR",    "CCTL", "YIELD", "SYNCS",    "WARPGROUP"})) {
    c.scalar = 1;
  } else if (begins_with_any(base, {"LDG", "STG", "LD", "ST", "RED", "ATOM", "UTMA", "UBLKCP"})) {
    c.memory = 1;
  } else if (base.starts_with("U")) {
    c.scalar = 1;  // the uniform datapath
  } else {
    c.vector = 1;
  }
  return c;
}

}  // namespace

LoopCounts count_nvidia_loop(std::string_view text) {
  std::vector<Instruction> code;
  std::vector<std::string_view> goals;
  std::map<std::string_view, std::size_t> labels;
  for (std::string_view line; take_line(text, line);) {
    line = trimmed(line);
    if (line.starts_with(".L") && line.ends_with(':'))
      labels[line.substr(0, line.size() - 1)] = code.size();
    if (!line.starts_with("/*") || line.find("*/") == std::string_view::npos) continue;
    std::string_view operands = line.substr(line.find("*/") + 2);
    std::string_view name = take_word(operands);
    const bool predicated = name.starts_with('@');
    if (predicated) name = take_word(operands);
    if (name.ends_with(';')) name.remove_suffix(1);
    if (name.empty() || name.front() < 'A' || name.front() > 'Z') continue;
    Instruction instruction;
    instruction.counts = nvidia_counts_of(name);
    std::string_view goal;
    if (name.starts_with("BRA")) {
      const std::size_t begin = operands.find("`(");
      if (begin != std::string_view::npos)
        goal = operands.substr(begin + 2, operands.find(')', begin) - begin - 2);
      instruction.flow = predicated || begin != 0 || name != "BRA" ? Flow::conditional : Flow::jump;
    } else if (!predicated && (name.starts_with("EXIT") || name.starts_with("RET"))) {
      instruction.flow = Flow::end;
    }
    code.push_back(instruction);
    goals.push_back(goal);
  }
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (goals[i].empty()) continue;
    if (const auto found = labels.find(goals[i]);
        found != labels.end() && found->second < code.size())
      code[i].target = found->second;
  }
  LoopCounts counts = inner_loop(code);
  counts.matrix_products = static_cast<int>(counts.matrix_products / kProduct);
  return counts;
}

}  // namespace fulmen::gpu
