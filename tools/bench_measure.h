// One row of the benchmark: a case timed, verified, and set beside the ceiling and standard attention.
#pragma once

#include <cstddef>
#include <string>

#include "bench_cases.h"
#include "ceilings.h"
#include "fulmen/status.h"

namespace fulmen::tools {

struct BenchSettings {
  std::string device = "cpu";
  std::string kernel;                 // forced by name; empty: the plan's choice
  int num_threads = 0;                // 0: OpenMP's setting
  double seconds = 1.0;               // of measuring a case, standard attention included
  double max_standard_seconds = 1.5;  // one call of standard attention that is expected to take longer is left out
  std::size_t max_bytes = std::size_t{3'000'000'000};
};

struct BenchRow {
  BenchCase bench_case;
  std::string device, kernel;
  double median_s = 0;
  double min_s = 0;
  // Rates and ratios come from the fastest repetitions on both sides: what neighbours on the machine disturbed least.
  double tflops = 0;
  double gb_s = 0;  // decode: K and V read once; otherwise all inputs and outputs once
  CeilingKind ceiling_kind{};
  double ceiling = 0;  // TFLOP/s, or GB/s for CeilingKind::read: the best slice measured between this case's repetitions
  double share_of_ceiling = 0;
  double standard_s = 0;  // 0: not measured
  std::string standard_kernel;
  std::string standard_note;  // why not
  double speedup = 0;
  std::size_t extra_bytes = 0;  // workspace
  bool verified = false;
  bool sampled = false;        // a sample of heads and rows was compared
  std::string verify_message;  // of a failure
};

// Measures rows one after the other and learns how fast standard attention is, so as not to wait for it.
class BenchMeter {
 public:
  BenchMeter(BenchSettings settings, Ceilings& ceilings, uint64_t seed);
  Result<BenchRow> measure(const BenchCase& bench_case);

 private:
  struct Timed;
  double ceiling_slice(const CaseData& data, CeilingKind kind, double seconds);
  Status prepare_standard(const CaseData& data, BenchRow& row, std::unique_ptr<Timed>& standard);

  BenchSettings settings_;
  Ceilings& ceilings_;
  NormalPool pool_;
  double standard_flops_s_[3] = {0, 0, 0};  // the best seen so far, by dtype
};

}  // namespace fulmen::tools
