// Lane masks of a wave as far as a control-flow analysis knows them.
#pragma once

#include <array>
#include <map>
#include <tuple>
#include <vector>

namespace fulmen::gpu {

// Names of masks: the same number is the same set of lanes. kAllLanes, kUnknown, or a part of
// another mask: the lanes of `whole` for which condition number `condition` holds, or for which it
// does not.
class ExecMasks {
 public:
  static constexpr int kUnknown = -1, kAllLanes = 0;

  // The lanes that have left a loop, which begins with the lanes of `whole` on. A compiler keeps
  // them in a register that is 0 before the loop, adds to it each round, and after the loop turns
  // them on again: `whole` is on then. Taken as such wherever it is or-ed to EXEC.
  static int left_of(int whole) { return whole == kUnknown ? kUnknown : kFirstLeft - whole; }

  int part(int whole, int condition, bool holds);
  int both(int a, int b) const;                // a & b
  int either(int a, int b) const;              // a | b
  int turned_on(int exec, int more) const;     // exec | more as the new EXEC
  int without(int whole, int part);            // whole & ~part
  int exclusive(int a, int b);                 // a ^ b
  bool is_part_of(int part, int whole) const;  // true for the mask itself
 private:
  static constexpr int kFirstLeft = -2;
  struct Part {
    int whole, condition;
    bool holds;
  };
  int other_side(int part);
  std::vector<Part> parts_{{kUnknown, 0, false}};  // by number; the first is kAllLanes
  std::map<std::tuple<int, int, bool>, int> numbers_;
};

// The registers that hold masks: SGPRs, VCC and EXEC. A mask of 64 lanes is named by its lower
// register.
constexpr int kSgprs = 128, kVcc = kSgprs, kExec = kSgprs + 1, kMaskRegisters = kSgprs + 2;
using MaskRegisters = std::array<int, kMaskRegisters>;

}  // namespace fulmen::gpu
