#include "gpu/compile/amd_rules/path_facts.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

constexpr char kNot = '0', kHolds = '1', kOpen = '?';
using Facts = std::string;  // of each condition: kNot, kHolds, kOpen

bool is_logic(std::string_view name) {
  return begins_with_any(name, {"s_mov_b", "s_and_b", "s_or_b", "s_xor_b", "s_not_b",
                                "s_and_not1_b", "s_andn2_b", "s_or_not1_b", "s_orn2_b"});
}

bool is_compare(std::string_view name) {
  return begins_with_any(name, {"s_cmp_", "s_cmpk_", "s_bitcmp"});
}

char inverse(char fact) { return fact == kNot ? kHolds : fact == kHolds ? kNot : kOpen; }

char both(char a, char b) {
  if (a == kNot || b == kNot) return kNot;
  return a == kHolds && b == kHolds ? kHolds : kOpen;
}

char either(char a, char b) { return inverse(both(inverse(a), inverse(b))); }

// The conditions that a kernel tests: scalar registers of 0 or -1, and comparisons that it repeats.
class Conditions {
 public:
  Conditions(const std::vector<AmdInstruction>& code, const std::vector<AmdAccess>& access)
      : code_(code), access_(access) {
    of_register_.fill(-1);
    of_register_[kVccLow] = count_++;
    of_register_[kScc] = count_++;
    for (bool more = true; more;) {
      more = false;
      for (std::size_t i = 0; i < code.size(); ++i) more = add_sources(i) || more;
    }
    std::map<std::string, int> seen;
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (is_compare(code[i].name)) ++seen[text_of(i)];
    }
    for (const auto& [text, times] : seen) {
      if (times > 1) of_compare_[text] = count_++;
    }
    find_compares();
  }

  Facts nothing_known() const { return Facts(static_cast<std::size_t>(count_), kOpen); }

  // All that may hold after an instruction.
  void step(std::size_t i, std::vector<Facts>& all) const {
    const std::size_t before = all.size();
    for (std::size_t n = 0; n < before; ++n) step_one(i, n, all);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
  }

  // What is used before it is set, of what is used after an instruction.
  void step_back(std::size_t i, std::vector<bool>& used) const {
    each_written(i, [&](std::size_t condition) { used[condition] = false; });
    if (compare_[i] >= 0) used[static_cast<std::size_t>(compare_[i])] = true;
    const std::string_view name = code_[i].name;
    if (!is_logic(name) && !begins_with_any(name, {"s_cselect_", "s_cbranch_"})) return;
    for (const RegisterRange& range : access_[i].reads) {
      if (const int condition = of(range); condition >= 0)
        used[static_cast<std::size_t>(condition)] = true;
    }
  }

  // Whether a branch may be taken, or not be.
  bool may_go(std::size_t branch, bool taken, const Facts& facts) const {
    const std::string_view name = code_[branch].name;
    if (name.starts_with("s_cbranch_scc")) return allows(facts, kScc, taken == name.ends_with('1'));
    if (name == "s_cbranch_vccz" || name == "s_cbranch_vccnz")
      return allows(facts, kVccLow, taken == (name == "s_cbranch_vccnz"));
    return true;
  }

 private:
  int of(const RegisterRange& range) const {
    return range.count > 0 && range.first < kScalarRegisters
               ? of_register_[static_cast<std::size_t>(range.first)]
               : -1;
  }
  std::string text_of(std::size_t i) const {
    return std::string(code_[i].name) + " " + std::string(code_[i].operands);
  }
  bool allows(const Facts& facts, int scalar_register, bool holds) const {
    const char fact =
        facts[static_cast<std::size_t>(of_register_[static_cast<std::size_t>(scalar_register)])];
    return fact == kOpen || (fact == kHolds) == holds;
  }
  // What a condition is made of is a condition, too.
  bool add_sources(std::size_t i) {
    if (!is_logic(code_[i].name)) return false;
    const auto [to, a, b] = FirstOperands(code_[i].operands);
    const bool tests = parse_registers(a).first == kExecLow || parse_registers(b).first == kExecLow;
    if (!tests && of(parse_registers(to)) < 0) return false;
    bool added = false;
    for (const RegisterRange& range : {parse_registers(a), parse_registers(b)}) {
      if (range.count == 0 || range.first >= kVccLow || of(range) >= 0) continue;
      of_register_[static_cast<std::size_t>(range.first)] = count_++;
      added = true;
    }
    return added;
  }
  void find_compares() {
    compare_.assign(code_.size(), -1);
    compares_by_register_.resize(kScalarRegisters);
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const auto found =
          is_compare(code_[i].name) ? of_compare_.find(text_of(i)) : of_compare_.end();
      if (found == of_compare_.end()) continue;
      compare_[i] = found->second;
      for (const RegisterRange& range : access_[i].reads) {
        for (int r = range.first; r < range.first + range.count && r < kScalarRegisters; ++r) {
          compares_by_register_[static_cast<std::size_t>(r)].push_back(found->second);
        }
      }
    }
  }
  template <class Call>
  void each_written(std::size_t i, Call call) const {
    for (const RegisterRange& range : access_[i].writes) {
      for (int r = range.first; r < range.first + range.count && r < kScalarRegisters; ++r) {
        const auto number = static_cast<std::size_t>(r);
        if (of_register_[number] >= 0) call(static_cast<std::size_t>(of_register_[number]));
        // The upper half of a pair.
        if (number > 0 && of_register_[number - 1] >= 0 && r != kScc)
          call(static_cast<std::size_t>(of_register_[number - 1]));
        for (const int compare : compares_by_register_[number])
          call(static_cast<std::size_t>(compare));
      }
    }
  }
  char value(std::string_view operand, const Facts& facts) const {
    if (operand == "0") return kNot;
    if (operand == "-1" || operand.starts_with("exec")) return kHolds;
    const int condition = of(parse_registers(operand));
    return condition < 0 ? kOpen : facts[static_cast<std::size_t>(condition)];
  }
  char logic(const AmdInstruction& at, const Facts& facts) const {
    const FirstOperands operands(at.operands);
    const char a = value(operands.second, facts), b = value(operands.third, facts);
    const std::string_view name = at.name;
    if (name.starts_with("s_mov_b")) return a;
    if (name.starts_with("s_not_b")) return inverse(a);
    if (name.starts_with("s_and_b")) return both(a, b);
    if (name.starts_with("s_or_b")) return either(a, b);
    if (name.starts_with("s_xor_b"))
      return a == kOpen || b == kOpen ? kOpen : a == b ? kNot : kHolds;
    return name.starts_with("s_and") ? both(a, inverse(b)) : either(a, inverse(b));
  }
  // A comparison of scalars alone: the same for all lanes.
  bool is_uniform_compare(std::size_t i) const {
    const std::string_view name = code_[i].name;
    if (!name.starts_with("v_cmp_") || access_[i].writes.empty()) return false;
    return std::none_of(access_[i].reads.begin(), access_[i].reads.end(),
                        [](const RegisterRange& r) { return r.is_vector(); });
  }

  void step_one(std::size_t i, std::size_t n, std::vector<Facts>& all) const {
    const AmdInstruction& at = code_[i];
    const int to = access_[i].writes.empty() ? -1 : of(access_[i].writes.front());
    const Facts old = all[n];
    Facts& facts = all[n];
    each_written(i, [&](std::size_t condition) { facts[condition] = kOpen; });
    const auto scc = static_cast<std::size_t>(of_register_[kScc]);
    const auto fork = [&](std::initializer_list<int> same) {
      Facts other = facts;
      for (const int condition : same) {
        if (condition < 0) continue;
        all[n][static_cast<std::size_t>(condition)] = kHolds;
        other[static_cast<std::size_t>(condition)] = kNot;
      }
      all.push_back(std::move(other));
    };
    if (is_logic(at.name)) {
      const char result = logic(at, old);
      if (to >= 0) facts[static_cast<std::size_t>(to)] = result;
      if (!at.name.starts_with("s_mov_b")) facts[scc] = result;
    } else if (at.name.starts_with("s_cselect_b") && to >= 0) {
      const auto [first, a, b] = FirstOperands(at.operands);
      const bool condition = (a == "-1" && b == "0") || (a == "0" && b == "-1");
      if (condition && old[scc] != kOpen) {
        facts[static_cast<std::size_t>(to)] = a == "0" ? inverse(old[scc]) : old[scc];
      } else if (condition && a == "-1") {
        fork({to, static_cast<int>(scc)});
      }
    } else if (compare_[i] >= 0) {
      const char known = old[static_cast<std::size_t>(compare_[i])];
      if (known != kOpen) {
        facts[scc] = known;
      } else {
        fork({compare_[i], static_cast<int>(scc)});
      }
    } else if (to >= 0 && is_uniform_compare(i)) {
      fork({to});
    }
  }

  const std::vector<AmdInstruction>& code_;
  const std::vector<AmdAccess>& access_;
  int count_ = 0;
  std::array<int, kScalarRegisters> of_register_{};
  std::map<std::string, int> of_compare_;
  std::vector<int> compare_;                            // of each instruction, or -1
  std::vector<std::vector<int>> compares_by_register_;  // that are void when it is written
};

// Which conditions matter before each block.
std::vector<std::vector<bool>> used_before(const Conditions& conditions, const AmdFlow& flow) {
  std::vector<std::vector<bool>> used(flow.blocks().size(),
                                      std::vector<bool>(conditions.nothing_known().size(), false));
  for (bool more = true; more;) {
    more = false;
    for (std::size_t b = flow.blocks().size(); b-- > 0;) {
      const AmdBlock& block = flow.blocks()[b];
      std::vector<bool> now(used[b].size(), false);
      for (const AmdEdge& edge : block.next) {
        for (std::size_t c = 0; c < now.size(); ++c) now[c] = now[c] || used[edge.to][c];
      }
      for (std::size_t i = block.end; i-- > block.begin;) conditions.step_back(i, now);
      if (now == used[b]) continue;
      used[b] = std::move(now);
      more = true;
    }
  }
  return used;
}

}  // namespace

AmdFlow flow_by_facts(const std::vector<AmdInstruction>& code, const std::vector<AmdAccess>& access,
                      const AmdFlow& flow) {
  if (flow.blocks().empty()) return flow;
  const Conditions conditions(code, access);
  const std::vector<std::vector<bool>> used = used_before(conditions, flow);
  const std::size_t most = 16 * flow.blocks().size() + 64;
  std::vector<AmdBlock> blocks;
  std::vector<std::pair<std::size_t, Facts>> keys;
  std::map<std::pair<std::size_t, Facts>, std::size_t> numbers;
  const auto number_of = [&](std::size_t block, Facts facts) {
    for (std::size_t c = 0; c < facts.size(); ++c) {
      if (!used[block][c]) facts[c] = kOpen;
    }
    const auto [found, added] = numbers.try_emplace({block, facts}, keys.size());
    if (added) keys.emplace_back(block, std::move(facts));
    return found->second;
  };
  number_of(0, conditions.nothing_known());
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const AmdBlock& block = flow.blocks()[keys[n].first];
    std::vector<Facts> all{keys[n].second};
    for (std::size_t i = block.begin; i < block.end; ++i) conditions.step(i, all);
    if (keys.size() > most || all.size() > most) return flow;
    AmdBlock copy{block.begin, block.end, {}};
    for (const Facts& facts : all) {
      for (const AmdEdge& edge : block.next) {
        const bool taken = code[block.end - 1].branches &&
                           code[block.end - 1].target == flow.blocks()[edge.to].begin;
        const bool only = block.next.size() == 1;
        if (!only && !conditions.may_go(block.end - 1, taken, facts)) continue;
        const std::size_t to = number_of(edge.to, facts);
        const bool known = std::any_of(copy.next.begin(), copy.next.end(),
                                       [&](const AmdEdge& e) { return e.to == to; });
        if (!known) copy.next.push_back({to, edge.without_lanes});
      }
    }
    blocks.push_back(std::move(copy));
  }
  return AmdFlow(std::move(blocks));
}

}  // namespace fulmen::gpu
