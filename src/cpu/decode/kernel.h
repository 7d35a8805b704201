// The decode kernel as a candidate: one per instruction set.
#pragma once

#include <memory>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/backend.h"

namespace fulmen::cpu {

std::unique_ptr<const Kernel> make_decode_kernel(const InstructionSet& isa);

}  // namespace fulmen::cpu
