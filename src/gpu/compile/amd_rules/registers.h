// The registers of a wave under one numbering.
#pragma once

#include <bitset>
#include <cstddef>
#include <string_view>

namespace fulmen::gpu {

// Scalar registers have the hardware's numbers.
constexpr int kVccLow = 106, kFirstTrap = 108, kM0 = 125, kExecLow = 126, kScc = 128,
              kScalarRegisters = 129;
// 256 vector registers (VGPRs), then 256 accumulators (AGPRs of CDNA), then single lanes
// (spill_slots.h).
constexpr int kVectors = kScalarRegisters, kAccumulators = kVectors + 256,
              kSlots = kAccumulators + 256, kRegisters = kSlots + 512;

using RegisterSet = std::bitset<kRegisters>;

struct RegisterRange {
  int first = -1, count = 0;

  bool is_vector() const { return first >= kVectors; }
  template <class Call>
  bool any(Call call) const {
    for (int r = first; r < first + count; ++r) {
      if (call(static_cast<std::size_t>(r))) return true;
    }
    return false;
  }
  bool any_in(const RegisterSet& set) const {
    return any([&](std::size_t r) { return set[r]; });
  }
  bool all_in(const RegisterSet& set) const {
    return !any([&](std::size_t r) { return !set[r]; });
  }
  void assign(RegisterSet& set, bool value) const {
    for (int r = first; r < first + count; ++r) set[static_cast<std::size_t>(r)] = value;
  }
};

// "v3", "-|s[4:7]|", "a[0:3]", "vcc_lo", "exec", "m0", "ttmp9", "v1.l". What is no register has
// count 0.
RegisterRange parse_registers(std::string_view operand);

}  // namespace fulmen::gpu
