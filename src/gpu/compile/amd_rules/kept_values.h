// Scalar registers whose value goes away and comes back: compilers keep a register's value in
// another one, or in a spill slot, use the register, and move the value back.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gpu/compile/amd_rules/flow.h"
#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/amd_rules/spill_slots.h"
#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu {

// Values have numbers: an instruction that computes gives a new one, a move passes one on, and
// where two ways meet with different ones a register has none, until the next branch names what it
// holds there.
class KeptValues {
 public:
  static constexpr std::size_t kNowhere = AmdInstruction::kNowhere;

  KeptValues(const std::vector<AmdInstruction>& code, const std::vector<AmdAccess>& access,
             const SpillSlots& slots, const AmdFlow& blocks);

  // Where instruction i has moved to register r (a scalar or a slot) what r held at the branch: the
  // instruction that computed the value, or kNowhere if it was there when the kernel started.
  std::optional<std::size_t> restored(std::size_t i, int r, std::size_t branch) const;

 private:
  // By instruction: of branches before and of moves after it; else empty.
  std::vector<std::vector<int>> at_;
};

}  // namespace fulmen::gpu
