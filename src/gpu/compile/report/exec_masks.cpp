#include "gpu/compile/report/exec_masks.h"

namespace fulmen::gpu {

int ExecMasks::part(int whole, int condition, bool holds) {
  if (whole <= kUnknown) return kUnknown;
  const auto [found, added] =
      numbers_.try_emplace({whole, condition, holds}, static_cast<int>(parts_.size()));
  if (added) parts_.push_back({whole, condition, holds});
  return found->second;
}

bool ExecMasks::is_part_of(int part, int whole) const {
  if (whole <= kUnknown || part <= kUnknown) return part == whole && part != kUnknown;
  while (part != kUnknown && part != whole)
    part = part == kAllLanes ? kUnknown : parts_[static_cast<std::size_t>(part)].whole;
  return part == whole;
}

int ExecMasks::other_side(int part) {
  const Part p = parts_[static_cast<std::size_t>(part)];
  return this->part(p.whole, p.condition, !p.holds);
}

int ExecMasks::both(int a, int b) const {
  if (is_part_of(a, b)) return a;
  return is_part_of(b, a) ? b : kUnknown;
}

int ExecMasks::turned_on(int exec, int more) const {
  // What a compiler turns on again holds what is on: of unknown lanes, too.
  if (exec == kUnknown && more >= kAllLanes) return more;
  const int mask = either(exec, more);
  return mask <= kFirstLeft ? kFirstLeft - mask : mask;
}

int ExecMasks::either(int a, int b) const {
  if (a == kAllLanes || b == kAllLanes) return kAllLanes;
  if (is_part_of(a, b)) return b;
  if (is_part_of(b, a)) return a;
  if (a <= kFirstLeft) return a;
  if (b <= kFirstLeft) return b;
  if (a <= kAllLanes || b <= kAllLanes) return kUnknown;
  const Part& p = parts_[static_cast<std::size_t>(a)];
  const Part& q = parts_[static_cast<std::size_t>(b)];
  return p.whole == q.whole && p.condition == q.condition ? p.whole : kUnknown;
}

int ExecMasks::without(int whole, int part) {
  if (part <= kAllLanes || whole <= kUnknown) return kUnknown;
  const int rest = other_side(part);
  return whole == rest || parts_[static_cast<std::size_t>(part)].whole == whole ? rest : kUnknown;
}

int ExecMasks::exclusive(int a, int b) {
  const int difference = without(a, b);
  return difference != kUnknown ? difference : without(b, a);
}

}  // namespace fulmen::gpu
