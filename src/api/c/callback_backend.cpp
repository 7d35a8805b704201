// A C program's callbacks as a backend with one device, a kernel for the forward pass and perhaps
// one for the gradients.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/c/translation.h"
#include "runtime/tensor_checks.h"
#include "runtime/tensor_table.h"

namespace fulmen::c_api {
namespace {

// The problem's shapes and strides with the call's pointers.
fulmen_tensors tensors_of(const Problem& p, const AttentionTensors& a) {
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  const std::array<Problem::Shape, kTensorFields> shapes = shapes_of(p);
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorSpec& spec = p.*kTensorTable[i].spec;
    if (spec.present)
      t.*kCTensors[i].tensor =
          to_c(Tensor{(a->*kTensorTable[i].tensor).data, spec.dtype, shapes[i], spec.strides});
  }
  t.dropout_seed = a.dropout_seed;
  t.dropout_offset = a.dropout_offset;
  return t;
}

fulmen_options options_of(const Problem& p) {
  fulmen_options o;
  fulmen_options_init(&o);
  o.softmax_scale = p.softmax_scale;
  o.softcap = p.softcap;
  o.window_left = p.window_left;
  o.window_right = p.window_right;
  o.dropout = static_cast<float>(p.dropout) / 65536.0F;
  o.deterministic = p.deterministic;
  // A causal mask is the window (left, 0).
  if (p.variable_lengths()) {
    o.max_seqlen_q = p.seqlen_q;
    o.max_seqlen_k = p.seqlen_k;
  }
  if (p.window_right == 0)
    o.causal = p.top_left ? FULMEN_CAUSAL_TOP_LEFT : FULMEN_CAUSAL_BOTTOM_RIGHT;
  return o;
}

class CallbackKernel final : public Kernel {
 public:
  CallbackKernel(const fulmen_backend& callbacks, Pass pass)
      : callbacks_(callbacks),
        pass_(pass),
        name_(pass == Pass::forward ? callbacks.kernel_name : callbacks.backward_kernel_name),
        run_(pass == Pass::forward ? callbacks.run : callbacks.run_backward) {}

  std::string_view name() const noexcept override { return name_; }
  Pass pass() const noexcept override { return pass_; }
  bool dropout() const noexcept override { return callbacks_.dropout; }
  bool variable_lengths() const noexcept override {
    return (callbacks_.features & FULMEN_FEATURE_VARIABLE_LENGTHS) != 0;
  }
  bool paged() const noexcept override { return (callbacks_.features & FULMEN_FEATURE_PAGED) != 0; }
  bool deterministic() const noexcept override {
    return pass_ == Pass::forward || !callbacks_.atomics;
  }
  double rank(const Problem& /*problem*/) const override { return callbacks_.rank; }
  Support supports(const Problem& problem, const std::string& /*device*/) const override {
    // The band of a mask_mod (plan/function_options.h) may be one.
    const bool windows = problem.window_left >= 0 || problem.window_right > 0;
    if (problem.top_left && windows && problem.window_right != 0)
      return Support::no("its options have no window by a top-left diagonal but a causal mask's");
    if (callbacks_.supports == nullptr) return {};
    char reason[512] = "";
    const fulmen_tensors shapes = tensors_of(problem, {});
    const fulmen_options options = options_of(problem);
    if (callbacks_.supports(callbacks_.context, &shapes, &options, reason, sizeof reason))
      return {};
    reason[sizeof reason - 1] = '\0';
    return Support::no(reason[0] != '\0' ? reason : "the backend gave no reason");
  }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<CallbackRunner>(*this, problem, options));
  }

 private:
  class CallbackRunner final : public Runner {
   public:
    CallbackRunner(const CallbackKernel& kernel, const Problem& problem,
                   const AttentionOptions& asked)
        : kernel_(kernel), problem_(problem), options_(options_of(problem)) {
      config_.kernel = kernel.name_;
      config_.num_threads = asked.num_threads;
      options_.num_threads = asked.num_threads;
      options_.parallel_for = asked.parallel_for.run;
      options_.parallel_for_context = asked.parallel_for.context;
    }
    const KernelConfig& config() const noexcept override { return config_; }
    std::size_t workspace_bytes() const noexcept override { return 0; }
    Status run(void* stream, const AttentionTensors& tensors, void* /*workspace*/) const override {
      const fulmen_tensors views = tensors_of(problem_, tensors);
      const int code = kernel_.run_(kernel_.callbacks_.context, stream, &views, &options_);
      if (code == FULMEN_OK) return {};
      const bool known = code > FULMEN_OK && code <= FULMEN_INTERNAL;
      return {known ? static_cast<StatusCode>(code) : StatusCode::internal,
              fmt::format("kernel {} returned {}", kernel_.name_, code)};
    }

   private:
    const CallbackKernel& kernel_;
    Problem problem_;
    fulmen_options options_;
    KernelConfig config_;
  };

  fulmen_backend callbacks_;
  Pass pass_;
  std::string name_;
  decltype(fulmen_backend::run) run_;
};

class CallbackBackend final : public Backend {
 public:
  explicit CallbackBackend(const fulmen_backend& callbacks)
      : name_(callbacks.name), forward_(callbacks, Pass::forward), kernels_{&forward_} {
    if (callbacks.backward_kernel_name != nullptr)
      kernels_.push_back(&backward_.emplace(callbacks, Pass::backward));
  }
  std::string_view name() const noexcept override { return name_; }
  std::vector<DeviceInfo> devices() const override {
    return {{name_, name_, "registered by the program", true, ""}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  std::string name_;
  CallbackKernel forward_;
  std::optional<CallbackKernel> backward_;
  std::vector<const Kernel*> kernels_;
};

}  // namespace
}  // namespace fulmen::c_api

int fulmen_unregister_backend(const char* name) {
  return fulmen::c_api::guarded([&]() -> fulmen::Status {
    if (name == nullptr) return fulmen::c_api::null_argument("name");
    return fulmen::unregister_backend(name);
  });
}

int fulmen_register_backend(const fulmen_backend* backend) {
  using fulmen::c_api::guarded, fulmen::c_api::null_argument;
  return guarded([&]() -> fulmen::Status {
    if (backend == nullptr) return null_argument("backend");
    fulmen_backend callbacks{};
    if (fulmen::Status status = fulmen::c_api::read_struct("backend", backend, callbacks);
        !status.ok())
      return status;
    if (callbacks.name == nullptr) return null_argument("backend.name");
    if (callbacks.kernel_name == nullptr) return null_argument("backend.kernel_name");
    if (callbacks.run == nullptr) return null_argument("backend.run");
    if (std::isnan(callbacks.rank))
      return fulmen::invalid("backend.rank is nan: a number is needed");
    if (const uint64_t known = FULMEN_FEATURE_VARIABLE_LENGTHS | FULMEN_FEATURE_PAGED;
        (callbacks.features & ~known) != 0) {
      return fulmen::invalid(fmt::format(
          "backend.features is {}: the sum of fulmen_feature values, up to {}, is accepted",
          callbacks.features, known));
    }
    // Both or neither: half a kernel for gradients is a mistake.
    if (callbacks.backward_kernel_name != nullptr && callbacks.run_backward == nullptr)
      return null_argument("backend.run_backward");
    if (callbacks.run_backward != nullptr && callbacks.backward_kernel_name == nullptr) {
      return null_argument("backend.backward_kernel_name");
    }
    return fulmen::register_backend(std::make_shared<fulmen::c_api::CallbackBackend>(callbacks));
  });
}
