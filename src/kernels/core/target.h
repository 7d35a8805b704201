// The target that a kernel is compiled for. The prelude of its source names the header
// (gpu/launch/specialisation.cpp); portable kernels have none. Included by core/matrix.h alone.
#pragma once

#if defined(FULMEN_TARGET_HEADER)
#include FULMEN_TARGET_HEADER
#endif
