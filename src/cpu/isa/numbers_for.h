// A vocabulary for a set that has another's vectors: functions over it are compiled for this set,
// and none of them is the other's (docs/kernels_cpu.md, "Instruction sets").
#pragma once

namespace fulmen::cpu {

template <class Set, class Base>
struct NumbersFor : Base {};

}  // namespace fulmen::cpu
