#include "cpu/compiled_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include "cpu/pairs_source.h"
#include "runtime/environment.h"
#include "runtime/log_once.h"
#include "score/functions.h"

namespace fulmen::cpu {
namespace {

constinit std::atomic<HostCodeMaker> host_code_maker{nullptr};

// Below this many operations on a pair its loads and stores are as few in bytecode.
constexpr std::size_t kFewOperations = 3;
// Operations of a call from which on it is compiled for: bytecode takes .07 s for them on a
// processor of Zen 3, a compilation about a second.
constexpr double kManyOperations = 1 << 30;

double pairs_of(const Problem& p) {
  const double pairs = static_cast<double>(p.batch * p.num_heads) *
                       static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_k);
  return p.window_right == 0 ? pairs / 2 : pairs;  // causal
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!word.empty()) all.emplace_back(word);
  }
  return all;
}

// Why a function is left to the bytecode; empty: it is not.
std::string reason_against(const Problem& problem, const IsaTable& table,
                           const score::Bytecode& code) {
  const std::string asked = environment("FULMEN_COMPILE_FUNCTIONS");
  if (asked == "0") return "FULMEN_COMPILE_FUNCTIONS=0";
  if (table.numbers == nullptr) return fmt::format("{} has no compiled one", table.name);
  if (host_code_maker.load(std::memory_order_relaxed) == nullptr)
    return "this library was built without a way to compile";
  if (asked == "1") return {};
  if (code.pairs.size() < kFewOperations) return "so few are not worth a compilation";
  const double operations = pairs_of(problem) * static_cast<double>(code.pairs.size());
  if (operations >= kManyOperations) return {};
  return fmt::format("{:.2g} a call are not worth a compilation, {:.2g} would be", operations,
                     kManyOperations);
}

}  // namespace

void set_host_code_maker(HostCodeMaker maker) noexcept { host_code_maker.store(maker); }

CompiledFunctions::CompiledFunctions(const Problem& problem, const IsaTable& table,
                                     std::vector<std::string>& notes) {
  const ScoreFunctions::Impl* const functions = problem.functions.impl();
  if (functions == nullptr) return;
  score_.bytecode =
      problem.pass == Pass::forward ? &functions->score_code : &functions->gradient_code;
  mask_.bytecode = &functions->mask_code;
  for (const auto& [name, function] : {std::pair{"score_mod", &score_}, {"mask_mod", &mask_}}) {
    if (!function->bytecode->pairs.empty())
      notes.push_back(compile(problem, table, name, *function));
  }
}

std::string CompiledFunctions::compile(const Problem& problem, const IsaTable& table,
                                       const char* name, Function& function) {
  const std::size_t count = function.bytecode->pairs.size();
  const std::string of_pairs =
      fmt::format("{}: {} operation{} a pair", name, count, count == 1 ? "" : "s");
  if (const std::string against = reason_against(problem, table, *function.bytecode);
      !against.empty())
    return fmt::format("{} by bytecode; {}", of_pairs, against);
  const HostSource source{
      fmt::format("{} of {} operations", name, count), table.name, words(table.flags),
      pairs_source(*function.bytecode, problem.functions.tensors(), table.numbers), kPairsSymbol};
  const Result<HostCode> code = host_code_maker.load()(source);
  if (!code.ok()) {
    const std::string why = sentence_of(code.status().message());
    // A machine without a compiler is no fault.
    if (code.status().code() != StatusCode::unavailable)
      log_line_once(fmt::format("{} is left to bytecode: {}", name, why));
    return fmt::format("{} by bytecode; {}", of_pairs, why);
  }
  function.code = code.value();
  function.pairs = reinterpret_cast<PairsFunction>(function.code.function);
  return of_pairs + " by compiled code";
}

}  // namespace fulmen::cpu
