// The numbers that a kernel may be specialised with: a small space, in which what was asked for is
// looked up.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/backend.h"
#include "fulmen/plan.h"
#include "fulmen/status.h"

namespace fulmen::tuning {

struct ParameterRange {
  std::string_view name;
  int usual = 0;            // what the kernel takes by itself
  std::vector<int> values;  // ascending, `usual` among them
};

using Values = std::vector<int>;  // one for each parameter

struct Space {
  std::vector<ParameterRange> parameters;
  // Yes if the values may go together; else why not. The usual ones always may. A space that says
  // nothing takes all.
  std::function<Support(std::span<const int>)> takes = [](std::span<const int>) {
    return Support{};
  };
  int wave_size = 0;  // GPU: lanes of a wave

  Values usual() const;
};

// Puts each parameter's usual value among its values.
void include_usual(Space& space);

// One parameter as somebody asked for it.
struct Asked {
  std::string name;
  int value = 0;
  std::string source;     // "option", "environment", ...
  bool optional = false;  // is left out with a note where the kernel does not have it: the
                          // environment is everybody's
  bool nearest = false;   // the nearest value that is legal will do
};

// Every name that a kernel of the library's has, in some space: a test keeps the list whole.
std::span<const std::string_view> parameter_names();

// "block_m=64,waves=4". Errors name `what` ("options.tuning"), the text and what is accepted.
Result<std::vector<Asked>> parse_tuning(std::string_view text, std::string_view what,
                                        std::string_view source);
// The same text of values.
std::string to_text(const Space& space, std::span<const int> values);

// Every legal configuration, the usual one first.
std::vector<Values> configurations(const Space& space);

struct Choice {
  Values values;
  std::vector<KernelParameter> parameters;
  std::vector<std::string> notes;
};
// The usual values, with sources.
Choice usual_choice(const Space& space);
// The legal configuration that has what was asked for and is otherwise nearest to the usual one.
// Errors: a parameter or value that the kernel does not have; values that do not go together, with
// the reason and those that would.
Result<Choice> choose(std::string_view kernel, const Space& space, const std::vector<Asked>& asked);

}  // namespace fulmen::tuning
