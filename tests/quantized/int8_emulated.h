// A device whose products of int8 are emulated: cpu.prefill_int8 of processors that this one is
// not.
#pragma once

#include <array>
#include <memory>

#include "cpu/families.h"
#include "support/cpu_backend.h"

namespace fulmen::testing {

const cpu::IsaTable& emulated_vnni_table();
const cpu::IsaTable& emulated_sdot_table();
const cpu::IsaTable& emulated_smmla_table();
const cpu::IsaTable& emulated_amx_int8_table();

constexpr const char* kEmulated = "int8_emulated";

class EmulatedInt8Backend final : public CpuBackend {
 public:
  EmulatedInt8Backend()
      : CpuBackend(kEmulated, "emulated products of int8"),
        sets_{{{&emulated_vnni_table(), 1, true, ""},
               {&emulated_sdot_table(), 1, true, ""},
               {&emulated_smmla_table(), 1, true, ""},
               {&emulated_amx_int8_table(), 1, true, ""}}} {  // bf16
    for (const cpu::InstructionSet& set : sets_) add(cpu::make_kernel("prefill_int8", set));
  }

 private:
  std::array<cpu::InstructionSet, 4> sets_;
};

// Once a process.
inline bool register_emulated_int8() {
  static const bool registered = register_backend(std::make_shared<EmulatedInt8Backend>()).ok();
  return registered;
}

}  // namespace fulmen::testing
