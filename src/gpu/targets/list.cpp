#include <array>

#include "gpu/targets/cdna3.h"
#include "gpu/targets/gfx11.h"
#include "gpu/targets/gfx12.h"
#include "gpu/targets/sm80.h"
#include "gpu/targets/sm90.h"

namespace fulmen::gpu {

std::span<const Target* const> targets() {
  static constexpr std::array<const Target*, 5> kTargets{&kGfx11, &kGfx12, &kCdna3, &kSm80, &kSm90};
  return kTargets;
}

}  // namespace fulmen::gpu
