#include "gpu/compile/report/exec_masks.h"

#include <cstddef>

namespace fulmen::gpu {

int ExecMasks::number_of(const Part& part) {
  const auto [found, added] = numbers_.try_emplace(
      {part.whole, part.condition, part.holds, part.missing}, static_cast<int>(parts_.size()));
  if (added) parts_.push_back(part);
  return found->second;
}

int ExecMasks::part(int whole, int condition, bool holds) {
  if (whole == kUnknown || whole == kNone) return whole;
  return number_of({whole, condition, holds, kUnknown});
}

int ExecMasks::rest(int whole, int part) {
  if (whole == kUnknown || part == kUnknown) return kUnknown;
  if (part == whole) return kNone;
  if (part == kNone) return whole;
  if (whole_of(part) == whole) return other_side(part);
  return number_of({whole, kNoCondition, false, part});
}

int ExecMasks::other_side(int part) {
  const Part p = made_of(part);
  return p.missing == kUnknown ? this->part(p.whole, p.condition, !p.holds) : p.missing;
}

bool ExecMasks::is_part_of(int part, int whole) const {
  if (part == kUnknown || whole == kUnknown) return false;
  if (part == kNone) return true;
  while (part != kUnknown && part != whole) part = whole_of(part);
  return part == whole;
}

int ExecMasks::common_whole(int a, int b) const {
  if (b == kNone) return a;
  while (a != kUnknown && !is_part_of(b, a)) a = a == kNone ? b : whole_of(a);
  return a;
}

bool ExecMasks::depends_on(int mask, int condition) const {
  for (; mask > kNone; mask = whole_of(mask)) {
    const Part& p = made_of(mask);
    if (p.condition == condition || depends_on(p.missing, condition)) return true;
  }
  return false;
}

int ExecMasks::with_condition(int mask, int from, int to) {
  if (!depends_on(mask, from)) return mask;
  const Part p = made_of(mask);
  const int whole = with_condition(p.whole, from, to);
  if (p.missing != kUnknown) return rest(whole, with_condition(p.missing, from, to));
  return part(whole, p.condition == from ? to : p.condition, p.holds);
}

int ExecMasks::older(int mask, int condition) {
  const int earlier = condition + kOlder;
  return depends_on(mask, earlier) ? kUnknown : with_condition(mask, condition, earlier);
}

// Whether no lane is known to be in both.
bool ExecMasks::disjoint(int a, int b) {
  if (a == kNone || b == kNone) return true;
  for (int side = a; is_side(side); side = whole_of(side)) {
    if (is_part_of(b, other_side(side))) return true;
  }
  for (int side = b; is_side(side); side = whole_of(side)) {
    if (is_part_of(a, other_side(side))) return true;
  }
  return false;
}

int ExecMasks::both(int a, int b) {
  if (is_part_of(a, b)) return a;
  if (is_part_of(b, a)) return b;
  if (a == kUnknown || b == kUnknown) return kUnknown;
  if (disjoint(a, b)) return kNone;
  return kUnknown;
}

// b adds lanes that `a` is missing of its whole, or all of them.
int ExecMasks::either_by_sides(int a, int b) {
  if (!is_side(a)) return kUnknown;
  const int whole = whole_of(a), missing = other_side(a);
  if (is_part_of(b, missing)) return rest(whole, rest(missing, b));
  return is_part_of(missing, b) && is_part_of(b, whole) ? whole : kUnknown;
}

int ExecMasks::either(int a, int b) {
  if (a == kAllLanes || b == kAllLanes) return kAllLanes;
  if (is_part_of(a, b)) return b;
  if (is_part_of(b, a)) return a;
  if (a == kUnknown || b == kUnknown) return kUnknown;
  const int mask = either_by_sides(a, b);
  return mask != kUnknown ? mask : either_by_sides(b, a);
}

int ExecMasks::without(int a, int b) {
  if (is_part_of(a, b)) return kNone;
  if (is_part_of(b, a)) return rest(a, b);
  if (a == kUnknown || b == kUnknown) return kUnknown;
  if (disjoint(a, b)) return a;
  const int missing = other_side(b);  // b is a side: all lanes and none are dealt with
  return is_part_of(a, whole_of(b)) && is_part_of(missing, a) ? missing : kUnknown;
}

int ExecMasks::exclusive(int a, int b) {
  if (is_part_of(b, a)) return rest(a, b);
  if (is_part_of(a, b)) return rest(b, a);
  if (a == kUnknown || b == kUnknown) return kUnknown;
  return disjoint(a, b) ? either(a, b) : kUnknown;
}

}  // namespace fulmen::gpu
