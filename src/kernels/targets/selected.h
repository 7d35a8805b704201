// The target that a kernel is compiled for. Included by core/matrix.h alone.
#pragma once

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/emulated_elements.h"
#endif

#if defined(FULMEN_TARGET_GFX11)
#include "targets/gfx11/target.h"
#elif defined(FULMEN_TARGET_GFX12)
#include "targets/gfx12/target.h"
#elif defined(FULMEN_TARGET_CDNA3)
#include "targets/cdna3/target.h"
#elif defined(FULMEN_TARGET_SM80)
#include "targets/sm80/target.h"
#endif
#if defined(FULMEN_TARGET_SM90)
#include "targets/sm90/target.h"
#endif
