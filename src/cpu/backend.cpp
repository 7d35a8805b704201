#include "cpu/backend.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "cpu/backward/kernel.h"
#include "cpu/decode/kernel.h"
#include "cpu/isa/instruction_sets.h"
#include "cpu/kv_cache/append.h"
#include "cpu/prefill/kernel.h"
#include "reference/kernels.h"

namespace fulmen::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend() {
    for (const InstructionSet& isa : instruction_sets()) {
      const auto serves = [](const auto& functions) {
        return std::any_of(std::begin(functions), std::end(functions), [](auto f) { return f != nullptr; });
      };
      if (serves(isa.table->prefill_task)) own(make_prefill_kernel(isa));
      if (serves(isa.table->short_task)) own(make_short_kernel(isa));
      if (serves(isa.table->decode_task)) own(make_decode_kernel(isa));
      if (serves(isa.table->backward)) own(make_backward_kernel(isa));
    }
    for (const Kernel* kernel : reference::baseline_kernels()) kernels_.push_back(kernel);
  }

  std::string_view name() const noexcept override { return "cpu"; }

  std::vector<DeviceInfo> devices() const override {
    DeviceInfo device{"cpu", chip_name(), "", true, ""};
    std::string missing;
    for (const InstructionSet& isa : instruction_sets()) {
      std::string& list = isa.available ? device.features : missing;
      list += (list.empty() ? "" : " ") + std::string(isa.table->name);
    }
    if (!missing.empty()) device.features += " (not on this processor: " + missing + ")";
    return {device};
  }

  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

  Status append_kv(const std::string& /*device*/, void* /*stream*/, const KvCacheProblem& problem, const KvCacheTensors& tensors,
                   const KvCacheOptions& options) const override {
    cpu::append_kv(problem, tensors, options);
    return {};
  }

 private:
  void own(std::unique_ptr<const Kernel> kernel) {
    kernels_.push_back(kernel.get());
    owned_.push_back(std::move(kernel));
  }

  std::vector<std::unique_ptr<const Kernel>> owned_;
  std::vector<const Kernel*> kernels_;
};

}  // namespace

std::shared_ptr<const Backend> make_cpu_backend() { return std::make_shared<CpuBackend>(); }

}  // namespace fulmen::cpu
