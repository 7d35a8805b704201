// "cpu.backward.<instruction set>": gradients, any problem.
#pragma once

#include <memory>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/backend.h"

namespace fulmen::cpu {

std::unique_ptr<const Kernel> make_backward_kernel(const InstructionSet& isa);

}  // namespace fulmen::cpu
