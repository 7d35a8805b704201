#include "gpu/missing_row.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace fulmen::gpu {
namespace {

constexpr std::size_t kBytes = 256 * sizeof(float);  // the most dims of the widest dtype

Result<void*> make_row(const Driver& driver, const Device& device) {
  Result<void*> row = driver.allocate(device.ordinal, kBytes);
  if (!row.ok()) return row;
  const Status filled = driver.fill(device.ordinal, row.value(), 0xFF, kBytes);
  if (filled.ok()) return row;
  driver.free(device.ordinal, row.value());
  return filled;
}

}  // namespace

Result<const void*> missing_row(const Driver& driver, const Device& device) {
  static std::mutex mutex;
  static auto* const kRows = new std::map<std::pair<const Driver*, int>, void*>;
  const std::scoped_lock lock(mutex);
  void*& kept = (*kRows)[{&driver, device.ordinal}];
  if (kept != nullptr) return static_cast<const void*>(kept);
  Result<void*> row(nullptr);
  driver.beside_captures([&] { row = make_row(driver, device); });
  if (!row.ok()) return Status(row.status().code(), fmt::format("{}: {}", device.info.name, row.status().message()));
  kept = row.value();
  return static_cast<const void*>(kept);
}

}  // namespace fulmen::gpu
