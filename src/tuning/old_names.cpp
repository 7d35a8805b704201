// Names by which users of other kernels know the same numbers, set there when building: here as environment variables.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "fulmen/printable.h"
#include "runtime/environment.h"
#include "tuning/sources.h"

namespace fulmen::tuning {
namespace {

struct OldName {
  const char* name;
  std::vector<const char*> parameters;  // the first that a kernel has; none: nothing here is like it
  const char* why_none;
};

const std::vector<OldName>& old_names() {
  static const auto* const kNames = new std::vector<OldName>{
      {"NTHREADS", {"waves"}, ""},
      {"OCCUPANCY", {"min_workgroups", "min_waves"}, ""},
      {"NBATCH_FA", {"block_n"}, ""},
      {"NBATCH_K2", {}, "K's tiles have all dims of their rows here"},
      {"NBATCH_V2", {}, "V's tiles have all dims of their rows here"},
      {"NBATCH_COMBINE", {}, "outputs are combined in registers here, all dims at once"},
      {"NSTAGES", {"buffers"}, ""},
  };
  return *kNames;
}

bool has(const Space& space, const char* name) {
  return std::any_of(space.parameters.begin(), space.parameters.end(), [&](const ParameterRange& p) { return p.name == name; });
}

std::string wave_multiples(const Space& space) {
  std::string text;
  for (const ParameterRange& range : space.parameters) {
    if (range.name != "waves") continue;
    for (const int waves : range.values) text += fmt::format("{}{}", text.empty() ? "" : ", ", waves * space.wave_size);
  }
  return text;
}

}  // namespace

Result<std::vector<Asked>> asked_by_old_names(const Problem& problem, const Space& space, std::vector<std::string>& notes) {
  std::vector<Asked> asked;
  for (const OldName& old : old_names()) {
    const std::string variable = fmt::format("FATTN_{}_D{}", old.name, problem.head_dim);
    const std::string text = environment(variable.c_str());
    if (text.empty()) continue;
    const auto refuse = [&](const std::string& why) {
      return Status{StatusCode::invalid_argument, fmt::format("{} is \"{}\": {}", variable, printable(text), why)};
    };
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) return refuse("a number is accepted");
    const std::string_view name = old.name;
    if (name != "NSTAGES" && value == 0) return refuse("1 or more is accepted");
    // Counted in pairs of 16-bit elements, or in elements.
    const int64_t dims = name == "NBATCH_COMBINE" ? problem.head_dim_v : (problem.head_dim + 1) / 2;
    if (old.parameters.empty()) {
      if (value > dims) return refuse(fmt::format("a tile is not wider than head_dim, up to {} is accepted", dims));
      notes.push_back(fmt::format("{}={} changes nothing: {}", variable, value, old.why_none));
      continue;
    }
    const auto parameter = std::find_if(old.parameters.begin(), old.parameters.end(), [&](const char* p) { return has(space, p); });
    if (parameter == old.parameters.end()) {
      notes.push_back(fmt::format("{}={} changes nothing: the kernel has no {}", variable, value, old.parameters.front()));
      continue;
    }
    int own = value;
    if (name == "NTHREADS") {
      if (space.wave_size <= 0 || value % space.wave_size != 0) {
        return refuse(fmt::format("a workgroup has a whole number of waves of {} lanes, {} are accepted", space.wave_size,
                                  wave_multiples(space)));
      }
      own = value / space.wave_size;
    }
    if (name == "NSTAGES") own = std::max(1, value);
    asked.push_back({*parameter, own, fmt::format("environment, {}={}", variable, value), true, true});
  }
  return asked;
}

}  // namespace fulmen::tuning
