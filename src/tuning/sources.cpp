#include "tuning/sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "fulmen/printable.h"
#include "runtime/environment.h"
#include "tuning/results.h"

namespace fulmen::tuning {
namespace {

constexpr const char* kVariable = "FULMEN_TUNING";

// A tuned result is taken whole or not at all: this user's own before one that came with the
// library.
void add_tuned(const KernelTuning& identity, const Space& space, std::vector<Asked>& asked,
               std::vector<std::string>& notes) {
  const ChipResults& results = results_of(known_chip(identity.chip));
  for (const auto& [list, source] :
       {std::pair{&results.own, "own"}, std::pair{&results.shipped, "shipped"}}) {
    // What comes with the library meets all versions of compilers and drivers; a user can measure
    // again.
    FoundResult found = find_result(*list, identity, list == &results.shipped);
    if (!found.configuration.empty()) {
      const Result<std::vector<Asked>> tuned =
          parse_tuning(found.configuration, "its configuration", source);
      const Result<Choice> legal =
          tuned.ok() ? choose(identity.kernel, space, tuned.value()) : tuned.status();
      if (legal.ok()) {
        asked = tuned.value();
        for (Asked& one : asked) one.nearest = true;  // they give way to what others say
        if (!found.note.empty())
          notes.push_back(
              fmt::format("the {} tuned result of this problem: {}", source, found.note));
        return;
      }
      found.why_not = legal.status().message();
    }
    if (found.why_not.empty()) continue;
    notes.push_back(
        fmt::format("the {} tuned result of this problem is not used: {}", source, found.why_not));
  }
}

}  // namespace

bool is_anything_asked(const AttentionOptions& options, KnownChip& chip, std::string_view kernel) {
  return !options.tuning.empty() || results_of(chip).has(kernel) ||
         environment_has({"FULMEN_TUNING", "FATTN_"});
}

Result<std::string> tuning_of_environment() {
  std::string text = environment(kVariable);
  if (text.empty()) return text;
  const Result<std::vector<Asked>> asked = parse_tuning(text, kVariable, "environment");
  if (!asked.ok()) return asked.status();
  const std::span<const std::string_view> known = parameter_names();
  for (const Asked& one : asked.value()) {
    if (std::find(known.begin(), known.end(), one.name) != known.end()) continue;
    return Status(
        StatusCode::invalid_argument,
        fmt::format("{} is \"{}\": no kernel has a parameter {}; the names are {}", kVariable,
                    printable(text), printable(one.name), fmt::join(known, ", ")));
  }
  return text;
}

Result<Choice> tuned_choice(const Problem& problem, const AttentionOptions& options,
                            const KernelTuning& identity, const Space& space) {
  std::vector<Asked> asked;
  std::vector<std::string> notes;
  add_tuned(identity, space, asked, notes);
  const auto add = [&](const Result<std::vector<Asked>>& more, bool optional) -> Status {
    if (!more.ok()) return more.status();
    for (const Asked& one : more.value()) {
      asked.push_back(one);
      asked.back().optional = optional;
    }
    return {};
  };
  if (Status status = add(asked_by_old_names(problem, space, notes), true); !status.ok())
    return status;
  if (const std::string text = environment(kVariable); !text.empty()) {
    if (Status status = add(parse_tuning(text, kVariable, "environment"), true); !status.ok())
      return status;
  }
  if (!options.tuning.empty()) {
    if (Status status = add(parse_tuning(options.tuning, "options.tuning", "option"), false);
        !status.ok())
      return status;
  }
  Result<Choice> choice = choose(identity.kernel, space, asked);
  if (choice.ok()) choice->notes.insert(choice->notes.begin(), notes.begin(), notes.end());
  return choice;
}

}  // namespace fulmen::tuning
