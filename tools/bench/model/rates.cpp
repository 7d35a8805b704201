#include "tools/bench/model/rates.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fulmen::tools {
namespace {

// The makers' figures, without sparsity. Hopper's warps do 0.63 of what its warpgroups do (measured
// by others and by the lab's runs). A compute unit of RDNA has two SIMDs of 32 lanes, one of CDNA
// four of 16 for waves of 64.
constexpr ChipRates kChips[] = {
    {"gfx1100", "RX 7900 XTX", 96, 2.5, 122.8, 960, 16, 2},
    {"gfx1201", "RX 9070 XT", 64, 2.97, 194.6, 640, 16, 2},
    {"gfx908", "Instinct MI100", 120, 1.502, 184.6, 1228.8, 16, 1, 0.5},
    {"gfx90a", "Instinct MI210", 104, 1.7, 181, 1638.4, 16, 1},
    {"gfx942", "Instinct MI300X", 304, 2.1, 1307.4, 5300, 16, 1},
    {"gfx950", "Instinct MI355X", 256, 2.4, 2516.6, 8000, 16, 1},
    {"sm_80", "A100 SXM 80GB", 108, 1.41, 312, 2039, 16, 0},
    {"sm_90", "H200 SXM, by warps", 132, 1.83, 623, 4800, 16, 0},
    {"sm_90a", "H200 SXM", 132, 1.83, 989.4, 4800, 16, 0},
};
constexpr double kCacheBytes = 64;  // L2's, a cycle and compute unit
// A launch with next to no work: a board on an H200, in a graph.
constexpr double kLaunchSeconds = 1.7e-6;

}  // namespace

const ChipRates* chip_rates(const std::string& arch) {
  const auto* const found = std::find_if(std::begin(kChips), std::end(kChips),
                                         [&](const ChipRates& c) { return arch == c.arch; });
  return found == std::end(kChips) ? nullptr : found;
}

std::vector<std::string> modelled_chips() {
  std::vector<std::string> names;
  for (const ChipRates& chip : kChips) names.emplace_back(chip.arch);
  return names;
}

UnitTimes unit_times(const UnitWork& work, const ChipRates& chip, DType dtype) {
  const double cycles = chip.compute_units * chip.ghz * 1e9;  // a second, all units
  const double rate = dtype == DType::bf16 ? chip.bf16_rate : 1;
  UnitTimes times{.matrix_s = work.matrix_flops / (rate * chip.matrix_tflops * 1e12),
                  .exponential_s = work.exponentials / (chip.exponentials * cycles),
                  .vector_s = chip.vector > 0 ? work.vector / (chip.vector * cycles) : -1,
                  .lds_s = work.lds_cycles / cycles,
                  .cache_s = work.global_bytes / (kCacheBytes * cycles),
                  .memory_s = work.memory_bytes / (chip.memory_gb_s * 1e9),
                  .launch_s = work.launches * kLaunchSeconds,
                  .limit = {}};
  // A wave's products, exponentials and other vector instructions follow each other; copies go on
  // beside them.
  const std::pair<double, const char*> limits[] = {
      {times.matrix_s + times.exponential_s + std::max(0.0, times.vector_s), "arithmetic"},
      {times.lds_s, "LDS"},
      {times.cache_s, "caches"},
      {times.memory_s, "memory"}};
  const auto& largest = *std::max_element(std::begin(limits), std::end(limits));
  times.seconds = largest.first + times.launch_s;
  times.limit = times.launch_s > largest.first ? "launches" : largest.second;
  return times;
}

}  // namespace fulmen::tools
