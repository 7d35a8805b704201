// Backends of CPU kernels over tables of instruction sets that the library does not list.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/backend.h"

namespace fulmen::testing {

inline bool has_avx512() {
  const auto& all = cpu::instruction_sets();
  return std::any_of(all.begin(), all.end(), [](const cpu::InstructionSet& isa) {
    return std::string_view(isa.table->name) == "avx512" && isa.available;
  });
}

// One device with the backend's name. A derived class adds the kernels, and owns their instruction
// sets.
class CpuBackend : public Backend {
 public:
  CpuBackend(std::string name, std::string chip) : name_(std::move(name)), chip_(std::move(chip)) {}
  std::string_view name() const noexcept override { return name_; }
  std::vector<DeviceInfo> devices() const override { return {{name_, chip_, "", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 protected:
  void add(std::unique_ptr<const Kernel> kernel) {
    kernels_.push_back(kernel.get());
    owned_.push_back(std::move(kernel));
  }

 private:
  std::string name_, chip_;
  std::vector<std::unique_ptr<const Kernel>> owned_;
  std::vector<const Kernel*> kernels_;
};

}  // namespace fulmen::testing
