// CDNA3: v_mfma_f32_16x16x16, wave64.
#pragma once

#include "core/base.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/cdna3/emulated.h"
#else
#include "targets/mfma_instruction.h"
#endif

namespace fulmen::kernels {

constexpr bool kFlushesSubnormals = false;

}  // namespace fulmen::kernels

#include "targets/mfma.h"
#include "targets/mfma_f32_16x16x32_fp8.h"
#include "targets/mfma_i32_16x16x32.h"
