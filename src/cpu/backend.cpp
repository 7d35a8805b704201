#include "cpu/backend.h"

#include <string>
#include <vector>

#include "cpu/compiled_functions.h"
#include "cpu/families.h"
#include "cpu/isa/instruction_sets.h"
#include "cpu/kv_cache/append.h"
#include "reference/kernels.h"

namespace fulmen::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend() {
    for (const InstructionSet& isa : instruction_sets()) {
      for (const Family& family : families()) {
        bool serves = false;
        for (int dtype = 0; dtype < kNumFloatTypes; ++dtype)
          serves = serves || family.serves(*isa.table, dtype);
        if (serves) own(family.make(family, isa));
      }
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
    if (!sets_left_out().empty())
      device.features += " (not in this build: " + sets_left_out() + ")";
    return {device};
  }

  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

  Status append_kv(const std::string& /*device*/, void* /*stream*/, const KvCacheProblem& problem,
                   const KvCacheTensors& tensors, const KvCacheOptions& options) const override {
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

std::shared_ptr<const Backend> make_cpu_backend(HostCodeMaker maker) {
  set_host_code_maker(maker);
  return std::make_shared<CpuBackend>();
}

}  // namespace fulmen::cpu
