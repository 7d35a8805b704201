// CDNA1: v_mfma_f32_16x16x16 of fp16, two of 16x16x8 for bf16, wave64. Subnormal operands count
// as 0.
#pragma once

#include "core/base.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/cdna1/emulated.h"
#else
#include "targets/cdna1/instruction.h"
#endif

namespace fulmen::kernels {

constexpr bool kFlushesSubnormals = true;

}  // namespace fulmen::kernels

#include "targets/mfma.h"
#include "targets/mfma_i32_16x16x16.h"
