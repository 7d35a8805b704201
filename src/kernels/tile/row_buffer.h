// Rows of memory as a buffer whose hardware knows its end, where there is one.
#pragma once

#include "core/sequence.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/row_buffer.h"
#else
#include "tile/amd/row_buffer.h"
#endif
