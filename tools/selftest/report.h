// The report of `fulmen selftest`: JSON, and one HTML page that needs nothing else. Nothing private
// is in either.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fulmen/compile.h"
#include "fulmen/probe.h"
#include "tools/doctor/finding.h"
#include "tools/selftest/private_words.h"
#include "tools/selftest/runs.h"
#include "tools/selftest/speed.h"

namespace fulmen::tools {

struct SelftestReport {
  std::string device, chip, features;
  std::string twin;  // the emulated chip, or why there is none
  std::vector<std::string> libraries;
  std::vector<SelftestRun> runs;
  std::vector<SpeedRow> speed;
  std::vector<Yardstick> yardsticks;
  std::vector<HardwareProbe> probes;
  std::vector<KernelReport> kernels;
  std::string kernels_missing;  // why there are none
  std::vector<Finding> findings;

  // Numbers of runs and of timed problems, for the terminal and the page.
  int results() const;
  int failed() const;
};

nlohmann::json to_json(const SelftestReport& report, const PrivateWords& words);
std::string to_html(const nlohmann::json& report);

// The two files of --report FILE: its extension, .json or .html, is replaced; any other name gets
// both behind it.
std::pair<std::string, std::string> report_files(const std::string& name);

}  // namespace fulmen::tools
