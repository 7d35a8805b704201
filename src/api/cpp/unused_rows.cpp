#include "fulmen/unused_rows.h"

#include <fmt/format.h>

#include <exception>
#include <new>

#include "fulmen/backend.h"
#include "fulmen/reference.h"
#include "plan/registry.h"
#include "runtime/made_problem.h"
#include "runtime/memory_range.h"
#include "runtime/unused_rows.h"

namespace fulmen {

Status Backend::zero_unused_rows(const std::string& device, void* /*stream*/,
                                 const Problem& problem, const AttentionTensors& tensors) const {
  if (!uses_host_memory()) {
    return {StatusCode::unsupported,
            fmt::format("backend {} cannot zero unused rows (device \"{}\")", name(), device)};
  }
  if (Status status = check_sequences(problem, tensors); !status.ok()) return status;
  zero_rows_of_no_sequence(problem, tensors);
  return {};
}

Status zero_unused_rows(const Problem& problem, const AttentionTensors& tensors,
                        const std::string& asked_device, void* stream) {
  try {
    if (Status status = check_made(problem); !status.ok()) return status;
    const std::string device = asked_device.empty() ? default_device() : asked_device;
    const auto backend = usable_backend_of(device);
    if (!backend.ok()) return backend.status();
    const std::vector<PackedRows> results = packed_results(problem, tensors);
    if (results.empty()) return {};
    for (const PackedRows& result : results) {
      const MemoryRange range{result.name, result.data, 1, result.dtype};
      if (!addressable(range)) return bad_address(range, "a pointer is needed");
    }
    return backend.value()->zero_unused_rows(device, stream, problem, tensors);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to zero unused rows"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, fmt::format("zeroing unused rows failed: {}", error.what())};
  } catch (...) {
    return {StatusCode::internal, "zeroing unused rows failed: a backend threw"};
  }
}

}  // namespace fulmen
