// Scalar registers that a kernel keeps in lanes of vector registers: v_writelane with a constant
// lane, and v_readlane back. Each such lane is a register of its own, numbered behind the others.
#pragma once

#include <vector>

#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/amd_rules/registers.h"
#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

class SpillSlots {
 public:
  SpillSlots(const std::vector<AmdInstruction>& code, const std::vector<AmdAccess>& access);

  // The lane that instruction i writes or reads; -1 where it is none of these two, its lane is no
  // constant, or there are too many.
  int of(std::size_t i) const { return slot_of_[i]; }
  bool is_store(std::size_t i) const { return of(i) >= 0 && stores_[i]; }
  bool is_load(std::size_t i) const { return of(i) >= 0 && !stores_[i]; }
  // Sets the lanes of a vector register that another instruction writes.
  void assign_lanes(const RegisterRange& range, RegisterSet& set, bool value) const {
    for_each_lane(range, [&](int slot) { set[static_cast<std::size_t>(slot)] = value; });
  }
  template <class Visit>
  void for_each_lane(const RegisterRange& range, const Visit& visit) const {
    if (!range.is_vector()) return;
    for (int r = range.first; r < range.first + range.count; ++r) {
      for (const int slot : of_register_[static_cast<std::size_t>(r - kVectors)]) visit(slot);
    }
  }

 private:
  std::vector<int> slot_of_;
  std::vector<bool> stores_;
  std::vector<std::vector<int>> of_register_;  // by vector register
};

}  // namespace fulmen::gpu
