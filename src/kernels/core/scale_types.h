// Which scales the rows of quantized keys and values have, as constants and types.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

constexpr bool kKeyScaleOfToken = kConfig.key_scales == 1 || kConfig.key_scales == 2,
               kKeyScaleOfChannel = kConfig.key_scales > 2,
               kValueScaleOfToken = kConfig.value_scales != 0;
using KeyScale = Either<kConfig.key_scales % 2 == 0, Half, float>;
using ValueScale = Either<kConfig.value_scales % 2 == 0, Half, float>;

}  // namespace fulmen::kernels
