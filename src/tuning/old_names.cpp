// Names by which users of other kernels know the same numbers, set there when building: here as
// environment variables.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "fulmen/printable.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "tuning/sources.h"

namespace fulmen::tuning {
namespace {

struct OldName {
  const char* name;
  // The first that a kernel has; none: nothing here is like it.
  std::vector<const char*> parameters;
  const char* why_none;
  // Dims of the rows, which parameters that change nothing count in pairs.
  int64_t Problem::* dims = nullptr;
};

const std::vector<OldName>& old_names() {
  constinit static MadeOnce<const std::vector<OldName>> made;
  return made.get([] {
    return std::vector<OldName>{
        {"NTHREADS", {"waves"}, ""},
        {"OCCUPANCY", {"min_workgroups", "min_waves"}, ""},
        {"NBATCH_FA", {"block_n"}, ""},
        {"NBATCH_K2", {}, "K's tiles have all dims of their rows here", &Problem::head_dim},
        {"NBATCH_V2", {}, "V's tiles have all dims of their rows here", &Problem::head_dim_v},
        {"NBATCH_COMBINE",
         {},
         "outputs are combined in registers here, all dims at once",
         &Problem::head_dim_v},
        {"NSTAGES", {"buffers"}, ""},
    };
  });
}

bool has(const Space& space, const char* name) {
  return std::any_of(space.parameters.begin(), space.parameters.end(),
                     [&](const ParameterRange& p) { return p.name == name; });
}

std::string wave_multiples(const Space& space) {
  std::string text;
  for (const ParameterRange& range : space.parameters) {
    if (range.name != "waves") continue;
    for (const int waves : range.values)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", waves * space.wave_size);
  }
  return text;
}

}  // namespace

Result<std::vector<Asked>> asked_by_old_names(const Problem& problem, const Space& space,
                                              std::vector<std::string>& notes) {
  std::vector<Asked> asked;
  for (const OldName& old : old_names()) {
    const std::string variable = fmt::format("FATTN_{}_D{}", old.name, problem.head_dim);
    const std::string text = environment(variable.c_str());
    if (text.empty()) continue;
    const auto refuse = [&](const std::string& why) {
      return Status{StatusCode::invalid_argument,
                    fmt::format("{} is \"{}\": {}", variable, printable(text), why)};
    };
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view name = old.name;
    const int least = name == "NSTAGES" ? 0 : 1;
    if (error != std::errc() || end != text.data() + text.size() || value < least) {
      return refuse(fmt::format("a number from {} to {} is accepted", least,
                                std::numeric_limits<int>::max()));
    }
    if (old.dims != nullptr) {
      notes.push_back(fmt::format("{}={} changes nothing: {}, {} pairs", variable, value,
                                  old.why_none, (problem.*old.dims + 1) / 2));
      continue;
    }
    const auto parameter = std::find_if(old.parameters.begin(), old.parameters.end(),
                                        [&](const char* p) { return has(space, p); });
    if (parameter == old.parameters.end()) {
      notes.push_back(fmt::format("{}={} changes nothing: the kernel has no {}", variable, value,
                                  old.parameters.front()));
      continue;
    }
    int own = value;
    if (name == "NTHREADS") {
      if (space.wave_size <= 0 || value % space.wave_size != 0) {
        return refuse(
            fmt::format("a workgroup has a whole number of waves of {} lanes, {} are accepted",
                        space.wave_size, wave_multiples(space)));
      }
      own = value / space.wave_size;
    }
    if (name == "NSTAGES") own = std::max(1, value);
    asked.push_back(
        {*parameter, own, fmt::format("environment, {}={}", variable, value), true, true});
  }
  return asked;
}

}  // namespace fulmen::tuning
