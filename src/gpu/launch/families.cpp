#include "gpu/launch/family.h"

namespace fulmen::gpu {

const std::vector<const Family*>& families() {
  static const auto* const kFamilies = [] {
    auto* list = new std::vector<const Family*>(forward_families());
    list->push_back(portable_family());
    return list;
  }();
  return *kFamilies;
}

Support grid_fits(int64_t workgroups) {
  constexpr int64_t kMost = 2147483647;
  if (workgroups <= kMost) return {};
  return Support::no("it needs " + std::to_string(workgroups) + " workgroups, a launch takes " + std::to_string(kMost));
}

}  // namespace fulmen::gpu
