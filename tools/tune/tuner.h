// The search for the fastest configuration of a kernel. What compiles, verifies and times is given,
// and so is the clock: tests give a device whose times are a known function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tools {

class TuneDevice {
 public:
  virtual ~TuneDevice() = default;
  // Makes a configuration ready to run: compiles it.
  virtual Status prepare(const std::string& configuration) = 0;
  // Checks its results: verification_failed where they are wrong.
  virtual Status verify(const std::string& configuration) = 0;
  // Seconds that a call takes, measured over as many calls as take a while.
  virtual Result<double> time(const std::string& configuration) = 0;
  virtual void drop(const std::string& configuration) = 0;  // it is not needed any more
  virtual double now() const = 0;                           // seconds
};

struct TuneLimits {
  double seconds = 60;  // for one problem
  std::size_t max_candidates = 64;
  bool timed = true;  // false: an emulated device, whose results alone count
};

struct TuneStatistics {
  double mean = 0, median = 0, max = 0, min = 0, deviation = 0;  // seconds
  double spread() const { return mean > 0 ? deviation / mean : 0; }
};
TuneStatistics statistics_of(std::vector<double> seconds);

struct TuneCandidate {
  std::string configuration;
  std::string problem;  // why it is out: does not compile, wrong results, hangs; "": it is right
  bool timed = false;
  TuneStatistics statistics;  // from its last round
  int rounds = 0;
};

struct TuneOutcome {
  std::vector<TuneCandidate> candidates;  // the default first
  std::size_t winner = 0;
  std::size_t untried = 0;  // the time was over before
  double gain = 0;          // the winner's over the default: 0.1 is 10 % less time
  double noise = 0;         // a gain must be larger than it
};

// configurations: the default first. report is told of each step: "verify block_m=64 (3 of 20)".
// Errors: the default itself does not run or is wrong.
Result<TuneOutcome> tune(const std::vector<std::string>& configurations, TuneDevice& device,
                         const TuneLimits& limits,
                         const std::function<void(const std::string&)>& report);

// The configurations that differ from the first in few parameters come first.
std::vector<std::string> nearest_first(const std::vector<std::string>& configurations);

}  // namespace fulmen::tools
