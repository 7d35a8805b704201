#include "gpu/append_kv.h"

#include <fmt/format.h>

#include <utility>

#include "gpu/launch/append_kv.h"
#include "gpu/loaded_kernels.h"

namespace fulmen::gpu {
namespace {

Status check_memory(const Driver& driver, const Device& device, const KvCacheProblem& p, const KvCacheTensors& t) {
  using P = KvCacheProblem;
  using T = KvCacheTensors;
  struct Field {
    const char* name;
    TensorSpec P::* spec;
    Tensor T::* tensor;
  };
  for (const Field& field : {Field{"k_cache", &P::k_cache, &T::k_cache},
                             {"v_cache", &P::v_cache, &T::v_cache},
                             {"seqlens_k", &P::seqlens_k, &T::seqlens_k},
                             {"block_table", &P::block_table, &T::block_table},
                             {"k_new", &P::k_new, &T::k_new},
                             {"v_new", &P::v_new, &T::v_new},
                             {"rotary_cos", &P::rotary_cos, &T::rotary_cos},
                             {"rotary_sin", &P::rotary_sin, &T::rotary_sin},
                             {"q", &P::q, &T::q},
                             {"q_out", &P::q_out, &T::q_out},
                             {"seqlens_k_out", &P::seqlens_k_out, &T::seqlens_k_out}}) {
    const void* data = (t.*field.tensor).data;
    if (!(p.*field.spec).present || data == nullptr) continue;
    if (Status status = driver.check_memory(device.ordinal, data); !status.ok()) {
      return {StatusCode::invalid_argument,
              fmt::format("{}.data is {}: memory of {} is needed ({})", field.name, data, device.info.name, status.message())};
    }
  }
  return {};
}

}  // namespace

Status append_kv(const Driver& driver, const Device& device, void* stream, const KvCacheProblem& p, const KvCacheTensors& tensors) {
  const int64_t workgroups = append_workgroups(p);
  if (workgroups == 0) return {};
  if (const Support fits = grid_fits(workgroups); !fits.yes) return {StatusCode::unsupported, fits.reason};
  if (Status status = check_memory(driver, device, p, tensors); !status.ok()) return status;
  const Specialisation s = append_kernel(p.dtype);
  const Result<Function> function = load_kernel(driver, device, s);
  if (!function.ok()) return function.status();
  const kernels::AppendArguments arguments = append_arguments(p, tensors);
  const Launch launch{workgroups, s.workgroup, s.lds_bytes, stream, &arguments, sizeof(arguments)};
  Status status = driver.launch(device.ordinal, function.value(), launch);
  if (status.ok()) return status;
  return {status.code(), fmt::format("append_kv on {}: {}", device.info.name, status.message())};
}

}  // namespace fulmen::gpu
