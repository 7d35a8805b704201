// What prefill.cpp, prefill_int8.cpp and prefill_fp32.cpp share: a tile shape's place in a kernel
// and in the tuner's space.
#pragma once

#include <functional>

#include "gpu/launch/family.h"
#include "gpu/launch/prefill_tiles.h"

namespace fulmen::gpu {

// The shape that a space's values give, in the space's order: block_m, block_n, waves, buffers,
// queries_in_lds, and min_waves on AMD, else min_workgroups.
PrefillShape prefill_shape_of(std::span<const int> values, const Chip& chip);
// What static_asserts of the kernels demand of a wave's rows, and of the rows that a workgroup
// copies at once.
Support takes_wave_rows(const PrefillShape& shape, int sharing = 1);
Support takes_copied_rows(const PrefillShape& shape, const Chip& chip);
void set_shape(const PrefillShape& shape, const Chip& chip, Specialisation& s);

// Both of forward/prefill.h's kernel. The space about its usual shape; takes: what other shapes may
// be.
tuning::Space prefill_space(const Specialisation& usual, const Chip& chip,
                            const std::function<Support(const PrefillShape&)>& takes);
// Fills in its LDS. key_bytes: of a number of K and Q there; value_codes: values have 8 bits, too.
void set_prefill_lds(Specialisation& s, int key_bytes = 2, bool value_codes = false);

}  // namespace fulmen::gpu
