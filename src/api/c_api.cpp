// The C ABI: structs in, C++ API, status out. Nothing throws across it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"
#include "plan/registry.h"

struct fulmen_plan {  // NOLINT(readability-identifier-naming): the C ABI's name
  explicit fulmen_plan(fulmen::Plan made) : plan(std::move(made)) {}
  fulmen::Plan plan;
  mutable std::once_flag explained;
  mutable std::string explanation;  // made when first asked for: planning formats nothing
};

namespace fulmen {
namespace {

thread_local std::string last_error;
thread_local std::string device_text;
thread_local std::string problem_text;

int fail(const Status& status) noexcept {
  try {
    last_error = status.message();
  } catch (...) {
    last_error = "out of memory";  // short enough to need none
  }
  return static_cast<int>(status.code());
}

// Runs body, which returns a Status, and turns whatever comes out into a code and this thread's message.
template <class Body>
int guarded(const Body& body) noexcept {
  try {
    last_error.clear();
    const Status status = body();
    return status.ok() ? FULMEN_OK : fail(status);
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
    return FULMEN_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    return fail({StatusCode::internal, error.what()});
  } catch (...) {
    return fail({StatusCode::internal, "unknown exception"});
  }
}

Status null_argument(const char* name) {
  return {StatusCode::invalid_argument, fmt::format("{} is null: a pointer is needed", name)};
}

// Whether every tensor with elements has an address; out and lse too, where they are read.
Status check_data(const fulmen::AttentionTensors& t, bool outputs) {
  const struct {
    const char* name;
    const fulmen::Tensor& tensor;
    bool read;
  } all[] = {{"q", t.q, true},
             {"k", t.k, true},
             {"v", t.v, true},
             {"bias", t.bias, true},
             {"keep_mask", t.keep_mask, true},
             {"alibi_slopes", t.alibi_slopes, true},
             {"sinks", t.sinks, true},
             {"out", t.out, outputs},
             {"lse", t.lse, outputs}};
  for (const auto& one : all) {
    const bool has_elements = std::all_of(one.tensor.shape.begin(), one.tensor.shape.end(), [](int64_t n) { return n > 0; });
    if (one.read && has_elements && one.tensor.data == nullptr) return null_argument(fmt::format("{}.data", one.name).c_str());
  }
  return {};
}

// A struct from a caller that may know fewer fields than this library; more is refused, since what they ask for would be ignored.
template <class Struct>
Status read_struct(const char* name, const Struct* from, Struct& to) {
  if (from->struct_size < sizeof(std::size_t) || from->struct_size > sizeof(Struct)) {
    return {StatusCode::invalid_argument,
            fmt::format("{}.struct_size is {}: up to {} bytes are known to version {}; set it with sizeof", name, from->struct_size,
                        sizeof(Struct), version())};
  }
  std::memcpy(static_cast<void*>(&to), from, from->struct_size);
  to.struct_size = sizeof(Struct);
  return {};
}

template <class Struct>
Status write_struct(const char* name, const Struct& from, Struct* to) {
  if (to == nullptr) return null_argument(name);
  const std::size_t size = to->struct_size;
  if (size < sizeof(std::size_t)) {
    return {StatusCode::invalid_argument, fmt::format("{}.struct_size is {}: set it with sizeof", name, size)};
  }
  std::memcpy(static_cast<void*>(to), &from, std::min(size, sizeof(Struct)));
  to->struct_size = size;
  return {};
}

Tensor to_cpp(const fulmen_tensor& t) {
  Tensor tensor{t.data, static_cast<DType>(t.dtype), {}, {}};
  std::copy_n(t.shape, 4, tensor.shape.begin());
  std::copy_n(t.strides, 4, tensor.strides.begin());
  return tensor;
}

fulmen_tensor to_c(const Tensor& t) {
  fulmen_tensor tensor{t.data, static_cast<int32_t>(t.dtype), {}, {}};
  std::copy_n(t.shape.begin(), 4, tensor.shape);
  std::copy_n(t.strides.begin(), 4, tensor.strides);
  return tensor;
}

Result<AttentionTensors> to_cpp(const fulmen_tensors* from) {
  if (from == nullptr) return null_argument("tensors");
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  if (Status status = read_struct("tensors", from, t); !status.ok()) return status;
  return AttentionTensors{
      to_cpp(t.q),     to_cpp(t.k),  to_cpp(t.v), to_cpp(t.out), to_cpp(t.bias), to_cpp(t.keep_mask), to_cpp(t.alibi_slopes),
      to_cpp(t.sinks), to_cpp(t.lse)};
}

Result<AttentionOptions> to_cpp(const fulmen_options* from) {
  AttentionOptions options;
  if (from == nullptr) return options;
  fulmen_options o;
  fulmen_options_init(&o);
  if (Status status = read_struct("options", from, o); !status.ok()) return status;
  if (!std::isnan(o.softmax_scale)) options.softmax_scale = o.softmax_scale;
  options.softcap = o.softcap;
  options.causal = static_cast<Causal>(o.causal);
  options.window_left = o.window_left;
  options.window_right = o.window_right;
  if (o.kernel != nullptr) options.kernel = o.kernel;
  options.num_threads = o.num_threads;
  options.verify = o.verify;
  options.parallel_for = {o.parallel_for, o.parallel_for_context};
  return options;
}

// Tensors, options and device of a call, translated.
struct Call {
  AttentionTensors tensors;
  AttentionOptions options;
  std::string device;
};

Result<Call> to_cpp(const fulmen_tensors* tensors, const fulmen_options* options, const char* device) {
  auto t = to_cpp(tensors);
  if (!t.ok()) return t.status();
  auto o = to_cpp(options);
  if (!o.ok()) return o.status();
  return Call{t.value(), o.value(), device != nullptr ? device : ""};
}

// The device that a caller names, or the default one, with its backend.
struct FoundDevice {
  std::string name;
  std::shared_ptr<const Backend> backend;
};

Result<FoundDevice> find_device(const char* device) {
  FoundDevice found{device != nullptr && *device != '\0' ? device : default_device(), nullptr};
  if (Status status = check_device(found.name); !status.ok()) return status;
  found.backend = backend_of(found.name);
  return found;
}

// A user's callbacks as a backend with one device and one kernel.
class CallbackKernel final : public Kernel {
 public:
  explicit CallbackKernel(const fulmen_backend& callbacks) : callbacks_(callbacks), name_(callbacks.kernel_name) {}

  std::string_view name() const noexcept override { return name_; }
  double rank(const Problem& /*problem*/) const override { return callbacks_.rank; }
  Support supports(const Problem& problem, const std::string& /*device*/) const override {
    if (callbacks_.supports == nullptr) return {};
    char reason[512] = "";
    const fulmen_tensors shapes = tensors_of(problem, {});
    const fulmen_options options = options_of(problem);
    if (callbacks_.supports(callbacks_.context, &shapes, &options, reason, sizeof reason)) return {};
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
    CallbackRunner(const CallbackKernel& kernel, const Problem& problem, const AttentionOptions& asked)
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
      const int code = kernel_.callbacks_.run(kernel_.callbacks_.context, stream, &views, &options_);
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

  // The problem's shapes and strides with the call's pointers.
  static fulmen_tensors tensors_of(const Problem& p, const AttentionTensors& a) {
    const auto view = [](const TensorSpec& spec, const std::array<int64_t, 4>& shape, const Tensor& tensor) {
      return spec.present ? to_c(Tensor{tensor.data, spec.dtype, shape, spec.strides}) : fulmen_tensor{};
    };
    const std::array<int64_t, 4> scores{p.batch, p.num_heads, p.seqlen_q, p.seqlen_k};
    fulmen_tensors t;
    fulmen_tensors_init(&t);
    t.q = view(p.q, {p.batch, p.seqlen_q, p.num_heads, p.head_dim}, a.q);
    t.k = view(p.k, {p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim}, a.k);
    t.v = view(p.v, {p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim_v}, a.v);
    t.out = view(p.out, {p.batch, p.seqlen_q, p.num_heads, p.head_dim_v}, a.out);
    t.bias = view(p.bias, scores, a.bias);
    t.keep_mask = view(p.keep_mask, scores, a.keep_mask);
    t.alibi_slopes = view(p.alibi_slopes, {p.batch, 1, 1, p.num_heads}, a.alibi_slopes);
    t.sinks = view(p.sinks, {1, 1, 1, p.num_heads}, a.sinks);
    t.lse = view(p.lse, {p.batch, p.num_heads, p.seqlen_q, 1}, a.lse);
    return t;
  }
  static fulmen_options options_of(const Problem& p) {
    fulmen_options o;
    fulmen_options_init(&o);
    o.softmax_scale = p.softmax_scale;
    o.softcap = p.softcap;
    o.window_left = p.window_left;
    o.window_right = p.window_right;
    // A causal mask is the window (left, 0); which diagonal it has follows from the alignment.
    const bool top_left = p.diagonal == 0 && p.seqlen_q != p.seqlen_k;
    if (p.window_right == 0) o.causal = top_left ? FULMEN_CAUSAL_TOP_LEFT : FULMEN_CAUSAL_BOTTOM_RIGHT;
    return o;
  }

  fulmen_backend callbacks_;
  std::string name_;
};

class CallbackBackend final : public Backend {
 public:
  explicit CallbackBackend(const fulmen_backend& callbacks) : name_(callbacks.name), kernel_(callbacks), kernels_{&kernel_} {}
  std::string_view name() const noexcept override { return name_; }
  std::vector<DeviceInfo> devices() const override { return {{name_, name_, "registered by the program", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  std::string name_;
  CallbackKernel kernel_;
  std::vector<const Kernel*> kernels_;
};

}  // namespace
}  // namespace fulmen

using fulmen::check_data;
using fulmen::guarded;
using fulmen::null_argument;
using fulmen::Status;
using fulmen::StatusCode;

extern "C" {

void fulmen_tensors_init(fulmen_tensors* tensors) {
  if (tensors == nullptr) return;
  *tensors = {};
  tensors->struct_size = sizeof *tensors;
}

void fulmen_options_init(fulmen_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof *options;
  options->softmax_scale = std::numeric_limits<float>::quiet_NaN();
  options->window_left = -1;
  options->window_right = -1;
}

const char* fulmen_version(void) { return fulmen::version(); }
const char* fulmen_last_error(void) { return fulmen::last_error.c_str(); }
const char* fulmen_status_name(int status) { return fulmen::to_string(static_cast<StatusCode>(status)); }

int fulmen_attention(const fulmen_tensors* tensors, const fulmen_options* options, const char* device) {
  return guarded([&]() -> Status {
    auto call = fulmen::to_cpp(tensors, options, device);
    if (!call.ok()) return call.status();
    return fulmen::attention(call->tensors, call->options, call->device);
  });
}

int fulmen_plan_create(const fulmen_tensors* tensors, const fulmen_options* options, const char* device, fulmen_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    *plan = nullptr;
    auto call = fulmen::to_cpp(tensors, options, device);
    if (!call.ok()) return call.status();
    auto problem = fulmen::make_problem(call->tensors, call->options);
    if (!problem.ok()) return problem.status();
    auto made = fulmen::plan(problem.value(), call->device, call->options);
    if (!made.ok()) return made.status();
    *plan = new fulmen_plan(std::move(made).value());
    return {};
  });
}

void fulmen_plan_destroy(fulmen_plan* plan) { delete plan; }
size_t fulmen_plan_workspace_bytes(const fulmen_plan* plan) { return plan != nullptr ? plan->plan.workspace_bytes() : 0; }
const char* fulmen_plan_explain(const fulmen_plan* plan) {
  const int code = guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    std::call_once(plan->explained, [plan] { plan->explanation = plan->plan.explain(); });
    return {};
  });
  return code == FULMEN_OK ? plan->explanation.c_str() : "";
}
const char* fulmen_plan_device(const fulmen_plan* plan) { return plan != nullptr ? plan->plan.device().c_str() : ""; }

int fulmen_plan_run(const fulmen_plan* plan, void* stream, const fulmen_tensors* tensors, void* workspace, size_t workspace_bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    auto views = fulmen::to_cpp(tensors);
    if (!views.ok()) return views.status();
    return plan->plan.run(stream, views.value(), workspace, workspace_bytes);
  });
}

int fulmen_plan_config(const fulmen_plan* plan, fulmen_kernel_config* config) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    const fulmen::KernelConfig& c = plan->plan.config();
    const fulmen_kernel_config full{sizeof full, c.kernel.c_str(), c.block_m, c.block_n, c.num_splits, c.num_threads};
    return fulmen::write_struct("config", full, config);
  });
}

int fulmen_visit_devices(void (*visit)(void* context, const fulmen_device_info* device), void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    for (const auto& backend : fulmen::backends()) {
      for (const fulmen::DeviceInfo& d : backend->devices()) {
        const fulmen_device_info info{sizeof info,
                                      d.name.c_str(),
                                      d.chip.c_str(),
                                      d.features.c_str(),
                                      d.usable,
                                      d.reason.c_str(),
                                      backend->uses_host_memory()};
        visit(context, &info);
      }
    }
    return {};
  });
}

const char* fulmen_default_device(void) {
  const int code = guarded([]() -> Status {
    fulmen::device_text = fulmen::default_device();
    return {};
  });
  return code == FULMEN_OK ? fulmen::device_text.c_str() : "cpu";
}

int fulmen_set_default_device(const char* device) {
  return guarded([&]() -> Status { return fulmen::set_default_device(device != nullptr ? device : ""); });
}

int fulmen_device_allocate(const char* device, size_t bytes, void** memory) {
  return guarded([&]() -> Status {
    if (memory == nullptr) return null_argument("memory");
    *memory = nullptr;
    auto found = fulmen::find_device(device);
    if (!found.ok()) return found.status();
    *memory = found->backend->allocate(found->name, std::max<size_t>(bytes, 1));
    if (*memory != nullptr) return {};
    return {StatusCode::out_of_memory, fmt::format("no memory for {} bytes on device {}", bytes, found->name)};
  });
}

void fulmen_device_free(const char* device, void* memory) {
  if (memory == nullptr) return;
  const int code = guarded([&]() -> Status {
    auto found = fulmen::find_device(device);
    if (found.ok()) found->backend->free(found->name, memory);
    return found.status();
  });
  static_cast<void>(code);  // of an unknown device there is nothing to free
}

int fulmen_device_copy(const char* device, void* to, const void* from, size_t bytes) {
  return guarded([&]() -> Status {
    if (to == nullptr && bytes > 0) return null_argument("to");
    if (from == nullptr && bytes > 0) return null_argument("from");
    auto found = fulmen::find_device(device);
    if (!found.ok() || bytes == 0) return found.status();
    return found->backend->copy(found->name, to, from, bytes);
  });
}

int fulmen_device_synchronize(const char* device, void* stream) {
  return guarded([&]() -> Status {
    auto found = fulmen::find_device(device);
    return found.ok() ? found->backend->synchronize(found->name, stream) : found.status();
  });
}

int fulmen_visit_kernels(void (*visit)(void* context, const char* backend, const char* kernel, const char* layout), void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    for (const auto& backend : fulmen::backends()) {
      const std::string name(backend->name());
      for (const fulmen::Kernel* kernel : backend->kernels()) {
        visit(context, name.c_str(), std::string(kernel->name()).c_str(), std::string(kernel->layout()).c_str());
      }
    }
    return {};
  });
}

int fulmen_describe(const fulmen_tensors* tensors, const fulmen_options* options, fulmen_problem_info* info) {
  return guarded([&]() -> Status {
    auto call = fulmen::to_cpp(tensors, options, "");
    if (!call.ok()) return call.status();
    auto problem = fulmen::make_problem(call->tensors, call->options);
    if (!problem.ok()) return problem.status();
    fulmen::problem_text = to_string(problem.value());
    const fulmen_problem_info full{sizeof full, hash_value(problem.value()), problem->flops(), problem->bytes(),
                                   fulmen::problem_text.c_str()};
    return fulmen::write_struct("info", full, info);
  });
}

int fulmen_visit_candidates(const fulmen_tensors* tensors, const fulmen_options* options, const char* device,
                            void (*visit)(void* context, const char* kernel, bool supported, const char* reason, double rank),
                            void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    auto call = fulmen::to_cpp(tensors, options, device);
    if (!call.ok()) return call.status();
    auto problem = fulmen::make_problem(call->tensors, call->options);
    if (!problem.ok()) return problem.status();
    auto all = fulmen::candidates(problem.value(), call->device);
    if (!all.ok()) return all.status();
    for (const fulmen::Candidate& c : all.value())
      visit(context, c.kernel.c_str(), c.support.yes, c.support.reason.c_str(), c.rank);
    return {};
  });
}

int fulmen_reference(const fulmen_tensors* tensors, const fulmen_options* options, double* out, double* lse) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    auto call = fulmen::to_cpp(tensors, options, "");
    if (!call.ok()) return call.status();
    auto problem = fulmen::make_problem(call->tensors, call->options);
    if (!problem.ok()) return problem.status();
    if (Status status = check_data(call->tensors, false); !status.ok()) return status;
    fulmen::attention_reference(problem.value(), call->tensors, out, lse);
    return {};
  });
}

int fulmen_verify(const fulmen_tensors* tensors, const fulmen_options* options, fulmen_verify_report* report) {
  return guarded([&]() -> Status {
    auto call = fulmen::to_cpp(tensors, options, "");
    if (!call.ok()) return call.status();
    auto problem = fulmen::make_problem(call->tensors, call->options);
    if (!problem.ok()) return problem.status();
    if (Status status = check_data(call->tensors, true); !status.ok()) return status;
    const fulmen::VerifyReport r = fulmen::verify_result(problem.value(), call->tensors);
    if (report != nullptr) {
      const fulmen_verify_report full{sizeof full, r.ok, r.worst_error, r.baseline_error, r.bound, r.lse_error};
      if (Status status = fulmen::write_struct("report", full, report); !status.ok()) return status;
    }
    return r.ok ? Status() : Status(StatusCode::verification_failed, r.message);
  });
}

int fulmen_register_backend(const fulmen_backend* backend) {
  return guarded([&]() -> Status {
    if (backend == nullptr) return null_argument("backend");
    fulmen_backend callbacks{};
    if (Status status = fulmen::read_struct("backend", backend, callbacks); !status.ok()) return status;
    if (callbacks.name == nullptr) return null_argument("backend.name");
    if (callbacks.kernel_name == nullptr) return null_argument("backend.kernel_name");
    if (callbacks.run == nullptr) return null_argument("backend.run");
    return fulmen::register_backend(std::make_shared<fulmen::CallbackBackend>(callbacks));
  });
}

int flash_attn_forward(const void* q, const void* k, const void* v, void* out, const FlashAttnParams* params) {
  return guarded([&]() -> Status {
    if (params == nullptr) return null_argument("params");
    size_t elements = 1;
    for (const size_t n : {params->batch_size, params->seq_len, params->num_heads, params->head_dim}) {
      if (__builtin_mul_overflow(elements, std::max<size_t>(n, 1), &elements) || elements > (size_t{1} << 60U)) {
        return {StatusCode::invalid_argument,
                fmt::format("params is batch_size {} seq_len {} num_heads {} head_dim {}: more elements than an address can reach",
                            params->batch_size, params->seq_len, params->num_heads, params->head_dim)};
      }
    }
    const auto tensor = [params](const void* data) {
      // Fulmen never writes its inputs: the view's pointer is not const because outputs share the type.
      return fulmen::Tensor::bshd(const_cast<void*>(data), fulmen::DType::fp16, static_cast<int64_t>(params->batch_size),
                                  static_cast<int64_t>(params->seq_len), static_cast<int64_t>(params->num_heads),
                                  static_cast<int64_t>(params->head_dim));
    };
    fulmen::AttentionTensors tensors;
    tensors.q = tensor(q);
    tensors.k = tensor(k);
    tensors.v = tensor(v);
    tensors.out = tensor(out);
    fulmen::AttentionOptions options;
    if (params->softmax_scale != 0.0F) options.softmax_scale = params->softmax_scale;
    if (params->is_causal) options.causal = fulmen::Causal::top_left;
    return fulmen::attention(tensors, options);
  });
}

}  // extern "C"
