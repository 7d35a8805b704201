#include "tools/bench/ceilings/device_copy_rate.h"

#include <algorithm>

#include "tools/bench/measure/clock.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

// A call's 10 us of waiting are 2 % of it at 4 TB/s.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::size_t kLeastBytes = std::size_t{1} << 28;  // less would be measured in the cache
constexpr int kCopies = 12;                                // the first ones wake the clocks

}  // namespace

double device_copy_rate(const std::string& device) {
  const auto backend = backend_of(device);
  if (backend == nullptr) return 0;
  for (std::size_t bytes = kMostBytes; bytes >= kLeastBytes; bytes /= 2) {
    const DeviceMemory from(backend, device, bytes), to(backend, device, bytes);
    if (from.data() == nullptr || to.data() == nullptr || !from.poison().ok()) continue;
    double best = 0;
    for (int i = 0; i < kCopies; ++i) {
      const auto start = Clock::now();
      if (!backend->copy(device, to.data(), from.data(), bytes).ok()) return 0;
      const double seconds = seconds_since(start);
      best = std::max(best, 2 * static_cast<double>(bytes) / seconds / 1e9);
    }
    return best;
  }
  return 0;
}

}  // namespace fulmen::tools
