#include "gpu/unused_rows.h"

#include <fmt/format.h>

#include "gpu/launch/unused_rows.h"
#include "gpu/loaded_kernels.h"
#include "runtime/unused_rows.h"

namespace fulmen::gpu {
namespace {

Status check_memory(const Driver& driver, const Device& device, const char* name,
                    const void* data) {
  Status status = driver.check_memory(device.ordinal, data);
  if (status.ok()) return status;
  return {StatusCode::invalid_argument,
          fmt::format("{}.data is {}: memory of {} is needed ({})", name, data, device.info.name,
                      status.message())};
}

}  // namespace

Status zero_unused_rows(const Driver& driver, const Device& device, void* stream,
                        const Problem& problem, const AttentionTensors& tensors) {
  for (const PackedRows& result : packed_results(problem, tensors)) {
    if (Status status = check_memory(driver, device, result.name, result.data); !status.ok())
      return status;
    const bool keys = result.of_keys;
    Status status = check_memory(driver, device, keys ? "cu_seqlens_k" : "cu_seqlens_q",
                                 keys ? tensors.cu_seqlens_k.data : tensors.cu_seqlens_q.data);
    if (!status.ok()) return status;
  }
  const Specialisation s = unused_rows_kernel();
  const Result<KernelOnDevice> kernel = load_kernel(driver, device, s);
  if (!kernel.ok()) return kernel.status();
  const kernels::UnusedRowsArguments arguments = unused_rows_arguments(problem, tensors);
  const Launch launch{arguments.workgroups, s.workgroup,       s.lds_bytes, stream,
                      &arguments,           sizeof(arguments), false,       kernel->name};
  Status status = driver.launch(device.ordinal, kernel->function, launch);
  if (status.ok()) return status;
  return {status.code(),
          fmt::format("zero_unused_rows on {}: {}", device.info.name, status.message())};
}

}  // namespace fulmen::gpu
