#include "gpu/append_kv.h"

#include <fmt/format.h>

#include <utility>

#include "gpu/launch/append_kv.h"
#include "gpu/loaded_kernels.h"
#include "runtime/kv_cache_fields.h"

namespace fulmen::gpu {
namespace {

Status check_memory(const Driver& driver, const Device& device, const KvCacheProblem& p,
                    const KvCacheTensors& t) {
  for (const KvCacheField& field : kKvCacheFields) {
    const void* data = (t->*field.tensor).data;
    if (!(p.*field.spec).present || data == nullptr) continue;
    if (Status status = driver.check_memory(device.ordinal, data); !status.ok()) {
      return {StatusCode::invalid_argument,
              fmt::format("{}.data is {}: memory of {} is needed ({})", field.name, data,
                          device.info.name, status.message())};
    }
  }
  return {};
}

}  // namespace

Status append_kv(const Driver& driver, const Device& device, void* stream, const KvCacheProblem& p,
                 const KvCacheTensors& tensors) {
  for (const auto& [name, dtype] : {std::pair{"k_cache", p.k_dtype}, {"v_cache", p.v_dtype}}) {
    if (!p.quantized() || size_of(dtype) == 1) continue;
    return {StatusCode::unsupported,
            fmt::format("{}.dtype is {}: on GPUs int8, fp8 and the block formats are accepted, or "
                        "the new rows' dtype, {}, of both",
                        name, to_string(dtype), to_string(p.dtype))};
  }
  const int64_t workgroups = append_workgroups(p);
  if (workgroups == 0) return {};
  if (const Support fits = grid_fits(workgroups); !fits.yes)
    return {StatusCode::unsupported, fits.reason};
  if (Status status = check_memory(driver, device, p, tensors); !status.ok()) return status;
  const Specialisation s = append_kernel(p);
  const Result<KernelOnDevice> kernel = load_kernel(driver, device, s);
  if (!kernel.ok()) return kernel.status();
  const kernels::AppendArguments arguments = append_arguments(p, tensors);
  const Launch launch{workgroups, s.workgroup,       s.lds_bytes, stream,
                      &arguments, sizeof(arguments), false,       kernel->name};
  Status status = driver.launch(device.ordinal, kernel->function, launch);
  if (status.ok()) return status;
  return {status.code(), fmt::format("append_kv on {}: {}", device.info.name, status.message())};
}

}  // namespace fulmen::gpu
