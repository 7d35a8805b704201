// The platform that a kernel is compiled for. Included by core/base.h alone.
#pragma once

#if defined(FULMEN_PLATFORM_AMD)
#include "platforms/amd.h"
#elif defined(FULMEN_PLATFORM_NVIDIA)
#include "platforms/nvidia.h"
#else
#include "platforms/emulated.h"
#endif
