#include "gpu/missing_row.h"

#include <fmt/format.h>

#include <atomic>
#include <cstddef>

#include "fulmen/problem.h"

namespace fulmen::gpu {
namespace {

constexpr std::size_t kBytes = kMaxHeadDim * sizeof(float);  // of the widest dtype

Result<void*> make_row(const Driver& driver, const Device& device) {
  Result<void*> row = driver.allocate(device.ordinal, kBytes);
  if (!row.ok()) return row;
  const Status filled = driver.fill(device.ordinal, row.value(), 0xFF, kBytes);
  if (filled.ok()) return row;
  driver.free(device.ordinal, row.value());
  return filled;
}

// The rows that there are. No lock guards them, which a process that forks might hold: a list only
// grows, at its front.
struct MissingRow {
  const Driver* driver;
  int ordinal;
  void* memory;
  const MissingRow* next;
};
constinit std::atomic<const MissingRow*> newest{nullptr};

const MissingRow* find(const MissingRow* row, const Driver& driver, int ordinal) {
  while (row != nullptr && (row->driver != &driver || row->ordinal != ordinal)) row = row->next;
  return row;
}

}  // namespace

Result<const void*> missing_row(const Driver& driver, const Device& device) {
  if (const MissingRow* row = find(newest, driver, device.ordinal); row != nullptr)
    return static_cast<const void*>(row->memory);
  Result<void*> made(nullptr);
  driver.beside_captures([&] { made = make_row(driver, device); });
  if (!made.ok())
    return Status(made.status().code(),
                  fmt::format("{}: {}", device.info.name, made.status().message()));
  auto* const mine = new MissingRow{&driver, device.ordinal, made.value(), newest};
  while (true) {
    // Two threads may make one: the first is kept.
    if (const MissingRow* row = find(mine->next, driver, device.ordinal); row != nullptr) {
      driver.free(device.ordinal, mine->memory);
      delete mine;
      return static_cast<const void*>(row->memory);
    }
    if (newest.compare_exchange_weak(mine->next, mine))
      return static_cast<const void*>(mine->memory);
  }
}

}  // namespace fulmen::gpu
