#include "tuning/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "fulmen/printable.h"
#include "runtime/tensor_checks.h"

namespace fulmen::tuning {
namespace {

std::string list_of(std::span<const int> values) {
  std::string text;
  for (const int value : values) text += fmt::format("{}{}", text.empty() ? "" : ", ", value);
  return text;
}

// How far a configuration is from what is wished: near what was asked for first, then few
// parameters that differ from the usual ones, then by how much.
double distance(const Space& space, const std::vector<const Asked*>& asked,
                std::span<const int> values) {
  constexpr double kAsked = 1e4, kEach = 100;
  const auto apart = [](int a, int b) { return std::abs(std::log2((a + 1.0) / (b + 1.0))); };
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int usual = space.parameters[i].usual;
    if (asked[i] != nullptr) {
      sum += kAsked * apart(values[i], asked[i]->value);
    } else if (values[i] != usual) {
      sum += kEach + apart(values[i], usual);
    }
  }
  return sum;
}

// Calls visit(values) for every combination of the parameters; fixed[i] is the only value of one
// that is not free.
template <class Visit>
void visit_all(const Space& space, const std::vector<const int*>& fixed, const Visit& visit) {
  const std::size_t count = space.parameters.size();
  Values values(count);
  std::vector<std::size_t> at(count, 0);
  for (;;) {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = fixed[i] != nullptr ? *fixed[i] : space.parameters[i].values[at[i]];
    visit(values);
    std::size_t i = 0;
    for (; i < count; ++i) {
      if (fixed[i] == nullptr && ++at[i] < space.parameters[i].values.size()) break;
      at[i] = 0;
    }
    if (i == count) return;
  }
}

// "block_m: 16, 32, 64" of those values with which the other asked ones go.
std::string legal_values(const Space& space, const std::vector<const int*>& fixed) {
  std::string text;
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    if (fixed[i] == nullptr) continue;
    std::vector<const int*> others = fixed;
    others[i] = nullptr;
    std::vector<int> legal;
    visit_all(space, others, [&](const Values& values) {
      if (space.takes(values).yes) legal.push_back(values[i]);
    });
    std::sort(legal.begin(), legal.end());
    legal.erase(std::unique(legal.begin(), legal.end()), legal.end());
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", space.parameters[i].name,
                        legal.empty() ? "none" : list_of(legal));
  }
  return text;
}

}  // namespace

void include_usual(Space& space) {
  for (ParameterRange& parameter : space.parameters) {
    const auto at =
        std::lower_bound(parameter.values.begin(), parameter.values.end(), parameter.usual);
    if (at == parameter.values.end() || *at != parameter.usual)
      parameter.values.insert(at, parameter.usual);
  }
}

Values Space::usual() const {
  Values values;
  for (const ParameterRange& parameter : parameters) values.push_back(parameter.usual);
  return values;
}

std::span<const std::string_view> parameter_names() {
  static constexpr std::string_view kNames[] = {
      "block_m",        "block_n",        "buffers",       "early_loads",   "fetch_ahead",
      "heads_in_row",   "key_block_m",    "key_block_n",   "key_buffers",   "key_min_workgroups",
      "min_waves",      "min_workgroups", "num_splits",    "persistent",    "ping_pong",
      "queries_in_lds", "query_block_m",  "query_block_n", "query_buffers", "query_min_workgroups",
      "run_batches",    "run_tasks",      "runs",          "splits_last",   "tiles_per_task",
      "waves"};
  return kNames;
}

Result<std::vector<Asked>> parse_tuning(std::string_view text, std::string_view what,
                                        std::string_view source) {
  std::vector<Asked> asked;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view one = text.substr(at, end - at);
    const std::size_t equals = one.find('=');
    int value = 0;
    const char* last = one.data() + one.size();
    bool ok = equals != std::string_view::npos && equals > 0;
    if (ok) {
      const auto [stop, error] = std::from_chars(one.data() + equals + 1, last, value);
      if (error == std::errc::result_out_of_range && stop == last && one[equals + 1] != '-') {
        return invalid(fmt::format(
            "{} is \"{}\": {} is a number from 0 to {}", what, printable(std::string(text)),
            printable(std::string(one.substr(0, equals))), std::numeric_limits<int>::max()));
      }
      ok = error == std::errc() && stop == last && value >= 0;
    }
    if (!ok) {
      return invalid(
          fmt::format("{} is \"{}\": name=number, with ',' between them, is accepted, such as "
                      "\"block_m=64,waves=4\"",
                      what, printable(std::string(text))));
    }
    const std::string name(one.substr(0, equals));
    if (std::any_of(asked.begin(), asked.end(),
                    [&](const Asked& other) { return other.name == name; })) {
      return invalid(fmt::format("{} is \"{}\": {} is there twice", what,
                                 printable(std::string(text)), printable(name)));
    }
    asked.push_back({name, value, std::string(source)});
    at = end + 1;
  }
  return asked;
}

std::string to_text(const Space& space, std::span<const int> values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", space.parameters[i].name, values[i]);
  }
  return text;
}

std::vector<Values> configurations(const Space& space) {
  std::vector<Values> list{space.usual()};
  visit_all(space, std::vector<const int*>(space.parameters.size(), nullptr),
            [&](const Values& values) {
              if (values != list.front() && space.takes(values).yes) list.push_back(values);
            });
  return list;
}

Choice usual_choice(const Space& space) {
  Choice choice{space.usual(), {}, {}};
  for (const ParameterRange& parameter : space.parameters) {
    choice.parameters.push_back({std::string(parameter.name), parameter.usual, "default"});
  }
  return choice;
}

Result<Choice> choose(std::string_view kernel, const Space& space,
                      const std::vector<Asked>& asked) {
  Choice choice = usual_choice(space);
  std::vector<const int*> fixed(space.parameters.size(), nullptr);
  std::vector<const Asked*> last(space.parameters.size(), nullptr);  // the later in the list wins
  std::string wanted;
  for (const Asked& one : asked) {
    const auto parameter =
        std::find_if(space.parameters.begin(), space.parameters.end(),
                     [&](const ParameterRange& range) { return range.name == one.name; });
    if (parameter == space.parameters.end()) {
      std::string names;
      for (const ParameterRange& range : space.parameters)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", range.name);
      const std::string message =
          fmt::format("{}={} ({}): {} has no such parameter; {}", printable(one.name), one.value,
                      one.source, kernel, names.empty() ? "it has none" : "it has " + names);
      if (!one.optional) return invalid(message);
      choice.notes.push_back("not used: " + message);
      continue;
    }
    last[static_cast<std::size_t>(parameter - space.parameters.begin())] = &one;
  }
  for (std::size_t i = 0; i < last.size(); ++i) {
    if (last[i] == nullptr) continue;
    const Asked& one = *last[i];
    const std::vector<int>& values = space.parameters[i].values;
    choice.parameters[i].source = one.source;
    if (one.nearest) continue;
    fixed[i] = &one.value;
    wanted +=
        fmt::format("{}{}={} ({})", wanted.empty() ? "" : ", ", one.name, one.value, one.source);
    if (std::find(values.begin(), values.end(), one.value) == values.end()) {
      return invalid(fmt::format("{}={} ({}): {} takes {} as {} for this problem", one.name,
                                 one.value, one.source, kernel, list_of(values), one.name));
    }
  }
  double best = std::numeric_limits<double>::max();
  std::string reason;
  double nearest_refused = best;
  visit_all(space, fixed, [&](const Values& values) {
    const double far = distance(space, last, values);
    if (far >= best) return;
    const Support support = space.takes(values);
    if (support.yes) {
      best = far;
      choice.values = values;
    } else if (far < nearest_refused) {
      nearest_refused = far;
      reason = support.reason;
    }
  });
  if (best == std::numeric_limits<double>::max()) {
    return invalid(fmt::format("{}: {} does not run this problem with that: {}; it would with {}",
                               wanted, kernel, reason, legal_values(space, fixed)));
  }
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    choice.parameters[i].value = choice.values[i];
    // Names of other programs are mapped to the nearest value, which is then theirs all the same.
    const bool tuned =
        last[i] != nullptr && (last[i]->source == "own" || last[i]->source == "shipped");
    const int said = tuned ? last[i]->value : space.parameters[i].usual;
    if ((last[i] == nullptr || tuned) && choice.values[i] != said)
      choice.parameters[i].source = "fitted";
  }
  return choice;
}

}  // namespace fulmen::tuning
