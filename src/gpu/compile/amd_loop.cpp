// The inner loop of an AMD kernel, from llvm-objdump's text: lines "\t<mnemonic> <operands> // <address>: ..." and branches whose
// first operand is the distance in words.
#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "gpu/compile/report.h"

namespace fulmen::gpu {
namespace {

struct Instruction {
  std::string_view name, operands;
  uint64_t address = 0;
};

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

bool parse(std::string_view line, Instruction& instruction) {
  const std::size_t comment = line.find("// ");
  if (comment == std::string_view::npos || line.empty() || line[0] != '\t') return false;
  const std::string_view digits = line.substr(comment + 3);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), instruction.address, 16).ec != std::errc()) return false;
  const std::string_view text = trim(line.substr(0, comment));
  const std::size_t end = std::min(text.find(' '), text.size());
  instruction.name = text.substr(0, end);
  instruction.operands = trim(text.substr(end));
  return true;
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void count(std::string_view name, LoopCounts& c) {
  ++c.total;
  if (starts_with_any(name, {"v_wmma_", "v_mfma_"})) {
    ++c.matrix;
    c.matrix_products += name.find("32x32x8") != std::string_view::npos ? 2 : 1;
  } else if (starts_with_any(name, {"v_exp_", "v_log_", "v_rcp_"})) {
    ++c.transcendental;
  } else if (name.starts_with("v_")) {
    // Two in one: counted as two.
    c.vector += name.starts_with("v_dual_") ? 2 : 1;
  } else if (name.starts_with("ds_")) {
    ++c.lds;
  } else if (starts_with_any(name, {"global_", "flat_", "buffer_", "scratch_"})) {
    ++c.memory;
  } else {
    ++c.scalar;
  }
}

}  // namespace

LoopCounts count_amd_loop(std::string_view text) {
  std::vector<Instruction> code;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (Instruction instruction; parse(text.substr(at, end - at), instruction)) code.push_back(instruction);
    at = end + 1;
  }
  std::map<uint64_t, std::size_t> index;
  for (std::size_t n = 0; n < code.size(); ++n) index[code[n].address] = n;
  LoopCounts best;
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (!starts_with_any(code[n].name, {"s_cbranch", "s_branch"})) continue;
    int distance = 0;
    std::from_chars(code[n].operands.data(), code[n].operands.data() + code[n].operands.size(), distance);
    if (distance < 32768) continue;  // forward
    const auto target = index.find(code[n].address + 4 + static_cast<uint64_t>(static_cast<int64_t>(distance - 65536) * 4));
    if (target == index.end() || target->second > n) continue;
    LoopCounts loop;
    for (std::size_t i = target->second; i <= n; ++i) count(code[i].name, loop);
    const bool better = best.total == 0 || (loop.matrix > 0 && (best.matrix == 0 || loop.total < best.total)) ||
                        (loop.matrix == 0 && best.matrix == 0 && loop.total > best.total);
    if (better) best = loop;
  }
  return best;
}

}  // namespace fulmen::gpu
