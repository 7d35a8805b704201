// Tuned results as files, this user's own and those that come with the library: the fields that
// src/tuning/results.h reads, and others that tell how they were found.
#pragma once

#include <string>
#include <vector>

#include "fulmen/backend.h"
#include "tools/tune/tuner.h"

namespace fulmen::tools {

struct TuneRecord {
  std::string chip, kernel, problem_class, build, configuration, usual;
  int compute_units = 0;
  std::string device, fulmen_version, when;  // when: UTC, "2026-11-25T01:23:45Z"
  std::string product, driver, compiler;     // as in KernelTuning
  std::string problem, arguments;            // one of the class: its name, its text for --problem
  bool is_default = false;                   // nothing was faster than the default
  double median_s = 0, default_median_s = 0, spread = 0, gain = 0, noise = 0;
};

// Reads a file's records; none where there is no file. Errors: it cannot be read, or is no file of
// results.
Result<std::vector<TuneRecord>> read_records(const std::string& path);
std::string records_text(const std::string& chip, const std::vector<TuneRecord>& records);
Result<std::vector<TuneRecord>> parse_records(const std::string& text, const std::string& path);

// Puts records in place of those of the same kernel, class, compute units and product. Safe with
// other processes that do the same: nothing is lost, and a file is whole or as before. Errors: the
// folder or the disk cannot take it.
Status merge_records(const std::string& path, const std::vector<TuneRecord>& records);

}  // namespace fulmen::tools
