#include "gpu/gpu_runner.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "gpu/loaded_kernels.h"
#include "runtime/tensor_table.h"

namespace fulmen::gpu {

GpuRunner::GpuRunner(const Driver& driver, const Device& device, const Problem& problem, LaunchPlan plan, KernelConfig config,
                     bool trust_pointers)
    : driver_(driver),
      device_(device),
      problem_(problem),
      plan_(std::move(plan)),
      config_(std::move(config)),
      trust_pointers_(trust_pointers) {}

Status GpuRunner::load(bool whole_rows, std::vector<LoadedLaunch>& launches) const {
  const bool others = !whole_rows && !plan_.unaligned_launches.empty();
  for (const KernelLaunch& launch : others ? plan_.unaligned_launches : plan_.launches) {
    Specialisation s = launch.specialisation;
    s.whole_rows = s.whole_rows != 0 && whole_rows ? 1 : 0;
    s.whole_bias = s.whole_bias != 0 && whole_rows ? 1 : 0;
    Result<KernelOnDevice> kernel = load_kernel(driver_, device_, s);
    if (!kernel.ok()) return kernel.status();
    const bool maps = s.tensor_maps != 0;
    const std::size_t bytes = s.backward ? maps ? sizeof(kernels::TmaBackwardArguments) : sizeof(kernels::BackwardArguments)
                              : maps ? sizeof(kernels::TmaForwardArguments)
                                         : sizeof(kernels::ForwardArguments);
    launches.push_back({kernel->function, launch.workgroups, s.workgroup, s.lds_bytes, bytes, launch.programmatic_launch,
                        std::move(kernel->code)});
  }
  return {};
}

Status GpuRunner::load() { return load(true, aligned_); }

std::size_t GpuRunner::workspace_bytes() const noexcept {
  const int64_t floats = plan_.partial_out_floats + 2 * plan_.partial_row_floats + plan_.row_statistics_floats +
                         plan_.bias_partial_floats + plan_.query_sum_floats;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

std::string GpuRunner::code_identity() const {
  std::string text;
  for (const LoadedLaunch& launch : aligned_) text += launch.code + "\n";
  return text;
}

Status GpuRunner::run(void* stream, const AttentionTensors& tensors, void* workspace) const {
  if (plan_.launches.empty()) return {};
  if (!trust_pointers_) {
    if (Status status = check_memory(tensors, workspace); !status.ok()) return status;
  }
  const std::vector<LoadedLaunch>* launches = &aligned_;
  if (plan_.launches.front().specialisation.whole_rows && !pointers_are_whole(tensors)) {
    const std::scoped_lock lock(mutex_);
    if (unaligned_.empty()) {
      if (Status status = load(false, unaligned_); !status.ok()) return status;
    }
    launches = &unaligned_;
  }
  kernels::BackwardArguments arguments = plan_.arguments;
  set_pointers(problem_, tensors, arguments);
  arguments.partial_out = static_cast<float*>(workspace);
  arguments.partial_max = arguments.partial_out + plan_.partial_out_floats;
  arguments.partial_sum = arguments.partial_max + plan_.partial_row_floats;
  arguments.row_statistics = arguments.partial_sum + plan_.partial_row_floats;
  float* const bias_partials = arguments.row_statistics + plan_.row_statistics_floats;
  arguments.bias_partials = plan_.bias_partial_floats > 0 ? bias_partials : nullptr;
  arguments.query_sums = plan_.query_sum_floats > 0 ? bias_partials + plan_.bias_partial_floats : nullptr;
  arguments.query_sum_floats = plan_.query_sum_floats;
  kernels::TmaForwardArguments forward;
  kernels::TmaBackwardArguments backward;
  const void* first = &arguments;
  const bool others = launches == &unaligned_ && !plan_.unaligned_launches.empty();
  if (others && plan_.unaligned_row_tiles > 0) arguments.row_tiles = plan_.unaligned_row_tiles;
  if (const Specialisation* s = others ? nullptr : with_tensor_maps(); s != nullptr) {
    Status status;
    if (s->backward) {
      static_cast<kernels::BackwardArguments&>(backward) = arguments;
      status = encode_tensor_maps(backward, *s);
      first = &backward;
    } else {
      static_cast<kernels::ForwardArguments&>(forward) = arguments;
      status = encode_tensor_maps(forward, *s);
      first = &forward;
    }
    if (!status.ok()) return status;
  }
  for (const LoadedLaunch& l : *launches) {
    Launch launch{l.workgroups, l.workgroup_size, l.lds_bytes, stream, first, l.argument_bytes, l.programmatic_launch};
    if (Status status = driver_.launch(device_.ordinal, l.function, launch); !status.ok()) {
      return {status.code(), fmt::format("kernel {} on {}: {}", config_.kernel, device_.info.name, status.message())};
    }
  }
  return {};
}

const Specialisation* GpuRunner::with_tensor_maps() const {
  for (const KernelLaunch& launch : plan_.launches) {
    if (launch.specialisation.tensor_maps != 0) return &launch.specialisation;
  }
  return nullptr;
}

Status GpuRunner::encode_tensor_map(const kernels::View& view, int dims, int64_t rows, int heads, int batch,
                                    const Specialisation& s, int box_rows, kernels::TensorMap& map) const {
  constexpr int64_t kBytes = 2, kUnused = 16;  // a stride that nothing is reached by
  const auto stride = [](int64_t elements, int64_t extent) { return extent > 1 ? elements * kBytes : kUnused; };
  const TensorMapShape shape{view.data,
                             s.tensor_dtype() == DType::fp16,
                             {dims, rows, heads, batch},
                             {stride(view.row, rows), stride(view.head, heads), stride(view.batch, batch)},
                             box_rows};
  return driver_.encode_tensor_map(device_.ordinal, shape, map);
}

template <class Arguments>
Status GpuRunner::encode_inputs(Arguments& a, const Specialisation& s) const {
  const int queries = s.backward ? s.block_n : s.block_m, keys = s.backward ? s.block_m : s.block_n;
  Status status = encode_tensor_map(a.q, a.head_dim, a.seqlen_q, a.num_heads, a.batch, s, queries, a.q_map);
  if (status.ok()) status = encode_tensor_map(a.k, a.head_dim, a.seqlen_k, a.num_kv_heads, a.batch, s, keys, a.k_map);
  if (status.ok()) status = encode_tensor_map(a.v, a.head_dim_v, a.seqlen_k, a.num_kv_heads, a.batch, s, keys, a.v_map);
  return status;
}

Status GpuRunner::encode_tensor_maps(kernels::TmaForwardArguments& a, const Specialisation& s) const { return encode_inputs(a, s); }

Status GpuRunner::encode_tensor_maps(kernels::TmaBackwardArguments& a, const Specialisation& s) const {
  if (Status status = encode_inputs(a, s); !status.ok()) return status;
  return encode_tensor_map(a.dout, a.head_dim_v, a.seqlen_q, a.num_heads, a.batch, s, s.block_n, a.dout_map);
}

bool GpuRunner::pointers_are_whole(const AttentionTensors& t) const {
  constexpr std::uintptr_t kPiece = 16;
  using T = AttentionTensors;
  using P = Problem;
  std::uintptr_t bits = 0;
  for (const auto& [tensor, spec] : {std::pair{&T::q, &P::q},
                                     {&T::k, &P::k},
                                     {&T::v, &P::v},
                                     {&T::out, &P::out},
                                     {&T::bias, &P::bias},
                                     {&T::dout, &P::dout},
                                     {&T::dq, &P::dq},
                                     {&T::dk, &P::dk},
                                     {&T::dv, &P::dv}}) {
    // A forward call may carry pointers of the backward pass.
    if ((problem_.*spec).present) bits |= reinterpret_cast<std::uintptr_t>((t.*tensor).data);
  }
  return bits % kPiece == 0;
}

Status GpuRunner::check_memory(const AttentionTensors& t, const void* workspace) const {
  const auto check = [&](const char* name, const char* member, const void* data) -> Status {
    if (data == nullptr) return {};
    Status status = driver_.check_memory(device_.ordinal, data);
    if (status.ok()) return {};
    return {StatusCode::invalid_argument,
            fmt::format("{}{} is {}: memory of {} is needed ({})", name, member, data, device_.info.name, status.message())};
  };
  for (const TensorField& field : kTensorTable) {
    if (!(problem_.*field.spec).present) continue;
    if (Status status = check(field.name, ".data", (t.*field.tensor).data); !status.ok()) return status;
  }
  return check("workspace", "", workspace);
}

}  // namespace fulmen::gpu
