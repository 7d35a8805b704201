// Tuning of one problem on a real device.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/case_data.h"
#include "tools/bench/measure/timed_passes.h"
#include "tools/tensors/device_tensors.h"
#include "tools/tune/problems.h"
#include "tools/tune/records.h"
#include "tools/tune/supervised.h"
#include "tools/tune/tuner.h"

namespace fulmen::tools {

struct TuneSettings {
  std::string device;
  std::string kernel;  // forced by name
  int num_threads = 0;
  TuneLimits limits;
  double step_seconds = 120;  // the most that compiling, verifying or timing one candidate may take
  bool resume = false;        // skip if this kernel, device and software have a result
};

// Tunes a problem in this process. excluded: configurations that crashed or hung before, with the
// reason. It tells its steps, and at the end "result" and a JSON text that read_tuned() takes.
void tune_problem(const TuneProblem& problem, const TuneSettings& settings,
                  const std::map<std::string, std::string>& excluded, const Teller& teller);

// The messages of tune_problem().
struct TunedProblem {
  std::string name, device, arguments;  // arguments: --problem's
  std::string error;                    // the default itself does not run, or there is nothing to
                                        // tune
  bool tunable = true;                  // false: the kernel has no parameters
  bool kept = false;                    // settings.resume: there is a result already
  KernelTuning identity;
  double flops = 0, bytes = 0;  // the problem's useful flops, and the bytes of each tensor once
  TuneOutcome outcome;
};
Result<TunedProblem> read_tuned(const std::string& json);
std::string tuned_text(const TunedProblem& tuned);

}  // namespace fulmen::tools
