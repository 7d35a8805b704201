// The prefill and short-sequence kernels as candidates: one of each per instruction set.
#pragma once

#include <memory>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/backend.h"

namespace fulmen::cpu {

std::unique_ptr<const Kernel> make_prefill_kernel(const InstructionSet& isa);
std::unique_ptr<const Kernel> make_short_kernel(const InstructionSet& isa);

}  // namespace fulmen::cpu
