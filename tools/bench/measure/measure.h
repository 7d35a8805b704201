// One row of the benchmark: a case timed, verified, and set beside the ceiling and standard
// attention.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "fulmen/status.h"
#include "tools/bench/case_data.h"
#include "tools/bench/cases.h"
#include "tools/bench/ceilings/ceilings.h"
#include "tools/bench/measure/timed_passes.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {

struct BenchSettings {
  std::string device = "cpu";
  std::string kernel;         // forced by name; empty: the plan's choice
  bool deterministic = true;  // false: also kernels that add gradients by atomics
  int num_threads = 0;        // 0: OMP_NUM_THREADS, else all processors
  double seconds = 1.0;       // for a case, standard attention included
  // One call of standard attention that is expected to take longer is left out.
  double max_standard_seconds = 1.5;
  std::size_t max_bytes = std::size_t{3'000'000'000};
};

struct BenchRow {
  BenchCase bench_case;
  std::string device, kernel;
  std::string backward_kernel;  // training; times, rates and bytes then count both passes together
  double median_s = 0;          // times and rates are 0 on an emulated device
  double min_s = 0;
  // Rates and ratios come from the fastest repetitions on both sides: what neighbours on the
  // machine disturbed least.
  double tflops = 0;
  double gb_s = 0;        // decode: K and V read once; otherwise all inputs and outputs once
  bool by_bytes = false;  // GB/s is the rate that counts, else TFLOP/s
  // That rate's: the CPU's best slice between this case's repetitions, a GPU's copies; 0: none.
  double ceiling = 0;
  double share_of_ceiling = 0;
  double backward_s = 0;  // the backward pass alone
  double backward_tflops = 0;
  double standard_s = 0;         // 0: not measured
  std::string standard_kernel;   // the forward pass's
  std::string standard_refused;  // why not the kernel that is asked first
  std::string standard_note;     // why there is none
  double speedup = 0;
  std::size_t extra_bytes = 0;           // workspace; training: and outputs
  std::size_t standard_extra_bytes = 0;  // training: standard attention's; 0: not known
  bool verified = false;
  std::string verified_how;    // "all", "sample" (of heads and rows), "sample, dk and dv at S512"
                               // or "..., on 64 boards" (a smaller problem)
  std::string verify_message;  // what failed
  std::string problem;         // --problem in full, and the kernel's configuration
};

// What rows are compared with: the CPU's ceilings, or how fast the device copies in GB/s, read and
// written (0: not known).
struct Yardsticks {
  Ceilings* cpu = nullptr;
  double copy_gb_s = 0;
};

// Measures rows one after the other and learns how fast standard attention is, so as not to wait
// for it.
class BenchMeter {
 public:
  BenchMeter(BenchSettings settings, Yardsticks yardsticks, uint64_t seed);
  Result<BenchRow> measure(const BenchCase& bench_case);

 private:
  double ceiling_slice(const CaseData& data, CeilingKind kind, double seconds);
  Status prepare_standard(const CaseData& data, const DeviceTensors& there, const TimedPasses& ours,
                          BenchRow& row, std::unique_ptr<TimedPasses>& standard);
  Status verify(const CaseData& data, const TimedPasses& ours, BenchRow& row);
  Status time_row(const CaseData& data, const DeviceTensors& there, TimedPasses& ours,
                  BenchRow& row);

  BenchSettings settings_;
  Yardsticks yardsticks_;
  NormalPool pool_;
  double standard_flops_s_[3] = {0, 0, 0};  // the best seen so far, by dtype
};

// Returns true if a device's kernel of that name computes gradients.
bool is_backward_kernel(const std::string& device, const std::string& name);

}  // namespace fulmen::tools
