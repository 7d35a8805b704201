// Operands of a tile that come from LDS ahead of their products, for forward/parts/prefill_ahead.h:
//   kReadsAhead               whether
//   kKeysHeld kValuesHeld     how many operands of keys, and of values in prefill_pipeline.h
//   ValuesAhead               the operands of values, and O += P V
#pragma once

#include "tile/wave_step.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/read_ahead.h"
#else
#include "tile/amd/read_ahead.h"
#endif
