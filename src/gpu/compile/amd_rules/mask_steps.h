// What instructions make of the lane masks of a wave.
#pragma once

#include <string_view>

#include "gpu/compile/report/amd_disassembly.h"
#include "gpu/compile/report/exec_masks.h"

namespace fulmen::gpu {

class MaskSteps {
 public:
  // pairs: a mask has 64 lanes.
  MaskSteps(ExecMasks& names, bool pairs) : names_(names), pairs_(pairs) {}

  // Goes over instruction `number`. A mask that it makes is named by that number. What the same
  // instruction made before gets another name.
  void step(const AmdInstruction& instruction, std::size_t number, MaskRegisters& masks);

 private:
  void set(MaskRegisters& masks, std::string_view operand, int mask) const;
  int part(MaskRegisters& masks, int whole, int condition);
  int both(MaskRegisters& masks, int a, int b, int condition);
  int without(MaskRegisters& masks, int a, int b, int condition);
  void save_exec(const AmdInstruction& instruction, int condition, MaskRegisters& masks);
  int logic(const AmdInstruction& instruction, int condition, MaskRegisters& masks);

  ExecMasks& names_;
  bool pairs_;
};

}  // namespace fulmen::gpu
