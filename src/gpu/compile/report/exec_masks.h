// Lane masks of a wave as far as a control-flow analysis knows them.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

namespace fulmen::gpu {

// Names of masks: the same number is the same set of lanes. A mask is all lanes, none, a part of
// another mask, or what a part leaves of one. A part has a condition: the lanes of `whole` for
// which it holds, or for which it does not. The result of an operation is exact or kUnknown.
class ExecMasks {
 public:
  static constexpr int kUnknown = -1, kAllLanes = 0, kNone = 1;

  int part(int whole, int condition, bool holds);
  int rest(int whole, int part);  // whole & ~part; each lane of `part` is in `whole`

  int both(int a, int b);       // a & b
  int either(int a, int b);     // a | b
  int without(int a, int b);    // a & ~b
  int exclusive(int a, int b);  // a ^ b

  bool is_part_of(int part, int whole) const;  // true for the mask itself
  // The mask that a part was taken of.
  int whole_of(int mask) const { return made_of(mask).whole; }
  // The smallest known mask of which both are parts.
  int common_whole(int a, int b) const;
  // Whether the mask is made of that condition.
  bool depends_on(int mask, int condition) const;
  // The name that a mask has once `condition` is computed again: it was made of the former value.
  // kUnknown if it was made of the value before that one.
  int older(int mask, int condition);

 private:
  static constexpr int kNoCondition = INT_MIN, kOlder = 1 << 24;
  struct Part {
    int whole, condition;
    bool holds;
    int missing;  // of a rest: the lanes of `whole` that it is without; else kUnknown
  };
  const Part& made_of(int mask) const { return parts_[static_cast<std::size_t>(mask)]; }
  bool is_side(int mask) const { return mask > kNone; }
  int number_of(const Part& part);
  int other_side(int part);
  bool disjoint(int a, int b);
  int either_by_sides(int a, int b);
  int with_condition(int mask, int from, int to);
  // By number; the first are kAllLanes and kNone.
  std::vector<Part> parts_{{kUnknown, kNoCondition, false, kUnknown},
                           {kUnknown, kNoCondition, false, kUnknown}};
  std::map<std::tuple<int, int, bool, int>, int> numbers_;
};

// The registers that hold masks: SGPRs, the two of VCC among them, and EXEC. A mask of 64 lanes is
// named by its lower register. Code for waves of 32 lanes keeps masks in either half of VCC.
constexpr int kSgprs = 128, kVcc = 106, kExec = kSgprs, kMaskRegisters = kSgprs + 1;
using MaskRegisters = std::array<int, kMaskRegisters>;

}  // namespace fulmen::gpu
