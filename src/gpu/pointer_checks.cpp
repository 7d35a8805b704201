// What a run looks at before its launches: whether pointers are multiples of 16, and whose memory
// they point to.
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "gpu/gpu_runner.h"
#include "runtime/log_once.h"
#include "runtime/tensor_table.h"

namespace fulmen::gpu {

bool GpuRunner::pointers_are_whole(const AttentionTensors& t) const {
  constexpr std::uintptr_t kPiece = 16;
  using T = AttentionTensors;
  using P = Problem;
  std::uintptr_t bits = 0;
  for (const auto& [tensor, spec] : {std::pair{TensorMember<T>(&T::q), &P::q},
                                     {&T::k, &P::k},
                                     {&T::v, &P::v},
                                     {&T::out, &P::out},
                                     {&T::bias, &P::bias},
                                     {&T::dout, &P::dout},
                                     {&T::dq, &P::dq},
                                     {&T::dk, &P::dk},
                                     {&T::dv, &P::dv}}) {
    // A forward call may carry pointers of the backward pass.
    if ((problem_.*spec).present) bits |= reinterpret_cast<std::uintptr_t>((t->*tensor).data);
  }
  return bits % kPiece == 0;
}

bool GpuRunner::usual_launches_serve(const AttentionTensors& t) const {
  if (plan_.launches.front().specialisation.whole_rows != 0 && !pointers_are_whole(t)) return false;
  if (!plan_.values_in_keys || t.v.data == t.k.data) return true;
  if (!said_.exchange(true, std::memory_order_relaxed)) {
    log_line_once(fmt::format(
        "{} on {}: v was k's memory when the plan was made, and is not in a "
        "run: {} serves, compiled for pointers of any address",
        config_.kernel, device_.info.name, plan_for(false).launches.front().specialisation.entry));
  }
  return false;
}

Status GpuRunner::check_memory(const AttentionTensors& t, const void* workspace) const {
  const auto check = [&](const char* name, const char* member, const void* data) -> Status {
    if (data == nullptr) return {};
    Status status = driver_.check_memory(device_.ordinal, data);
    if (status.ok()) return {};
    return {StatusCode::invalid_argument,
            fmt::format("{}{} is {}: memory of {} is needed ({})", name, member, data,
                        device_.info.name, status.message())};
  };
  for (const TensorField& field : kTensorTable) {
    if (!(problem_.*field.spec).present) continue;
    if (Status status = check(field.name, ".data", (t->*field.tensor).data); !status.ok())
      return status;
  }
  for (const FunctionTensor& one : t.function_tensors) {
    const std::string name = fmt::format("function_tensors \"{}\"", one.name);
    if (Status status = check(name.c_str(), ".tensor.data", one.tensor.data); !status.ok())
      return status;
    if (Status status = check(name.c_str(), ".gradient.data", one.gradient.data); !status.ok())
      return status;
  }
  return check("workspace", "", workspace);
}

}  // namespace fulmen::gpu
