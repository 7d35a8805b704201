#include "support/deferred_device.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen::testing {
namespace {

// Added to an address of the host: no process has memory there.
constexpr std::uintptr_t kShift = std::uintptr_t{1} << 52U;
constexpr std::size_t kMostBytes = std::size_t{1} << 28U;

bool is_of_device(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) >= kShift; }
void* to_device(void* memory) { return static_cast<std::byte*>(memory) + kShift; }
void* to_host(const void* memory) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(memory)) -
         (is_of_device(memory) ? kShift : 0);
}

std::atomic<int> allocations{0};

// Queued work, in order.
class Queue {
 public:
  void push(std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
  }
  void finish() {
    const std::scoped_lock lock(mutex_);
    for (const auto& work : work_) work();
    work_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;
};

Queue& queue() {
  static Queue queue;
  return queue;
}

class DeferredRunner final : public Runner {
 public:
  DeferredRunner(Plan plan, std::string_view name)
      : plan_(std::move(plan)), config_(plan_.config()) {
    config_.kernel = name;
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override { return plan_.workspace_bytes(); }
  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    AttentionTensors host = tensors;
    for (Tensor* t : std::initializer_list<Tensor*>{
             &host.q, &host.k, &host.v, &host.out, &host.bias, &host.keep_mask, &host.alibi_slopes,
             &host.sinks, &host.lse, &host.dout, &host.dlse, &host.dq, &host.dk, &host.dv,
             &host.dbias, &host.dsinks}) {
      if (t->data == nullptr) continue;
      if (!is_of_device(t->data))
        return {StatusCode::invalid_argument, "a tensor is in the host's memory"};
      t->data = to_host(t->data);
    }
    if (workspace != nullptr && !is_of_device(workspace))
      return {StatusCode::invalid_argument, "workspace is in the host's memory"};
    queue().push([plan = plan_, host, scratch = to_host(workspace)] {
      const Status status = plan.run(nullptr, host, scratch, plan.workspace_bytes());
      if (!status.ok()) throw std::runtime_error(status.message());
    });
    return {};
  }

 private:
  Plan plan_;
  KernelConfig config_;
};

class DeferredKernel final : public Kernel {
 public:
  explicit DeferredKernel(Pass pass) : pass_(pass) {}
  std::string_view name() const noexcept override {
    return pass_ == Pass::forward ? "deferred.prefill" : "deferred.backward";
  }
  Pass pass() const noexcept override { return pass_; }
  bool dropout() const noexcept override { return pass_ == Pass::backward; }
  Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
    return {};
  }
  double rank(const Problem& /*problem*/) const override { return 1; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    AttentionOptions inner;
    inner.kernel = pass_ == Pass::forward ? "cpu.prefill.scalar" : "cpu.reference.backward";
    inner.num_threads = options.num_threads;
    Result<Plan> planned = plan(problem, "cpu", inner);
    if (!planned.ok()) return planned.status();
    return std::unique_ptr<Runner>(
        std::make_unique<DeferredRunner>(std::move(planned).value(), name()));
  }

 private:
  Pass pass_;
};

class DeferredBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "deferred"; }
  std::vector<DeviceInfo> devices() const override {
    return {{"deferred:0", "a test", "", true, ""}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }
  bool uses_host_memory() const noexcept override { return false; }
  void* allocate(const std::string& device, std::size_t bytes) const noexcept override {
    if (bytes > kMostBytes) return nullptr;
    ++allocations;
    return to_device(Backend::allocate(device, bytes));
  }
  void free(const std::string& device, void* memory) const noexcept override {
    if (memory == nullptr) return;
    queue().finish();
    --allocations;
    Backend::free(device, to_host(memory));
  }
  Status copy(const std::string& device, void* to, const void* from,
              std::size_t bytes) const override {
    queue().finish();
    return Backend::copy(device, to_host(to), to_host(from), bytes);
  }
  Status synchronize(const std::string& /*device*/, void* /*stream*/) const override {
    queue().finish();
    return {};
  }

 private:
  DeferredKernel forward_{Pass::forward}, backward_{Pass::backward};
  std::vector<const Kernel*> kernels_{&forward_, &backward_};
};

}  // namespace

void register_deferred_device() {
  static const Status registered = register_backend(std::make_shared<DeferredBackend>());
  if (!registered.ok()) throw std::runtime_error(registered.message());
}

int deferred_allocations() { return allocations; }

}  // namespace fulmen::testing
