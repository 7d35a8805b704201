// The tiles that prefill_portable.h and backward_portable.h of the kernels share: tile/square.h.
#pragma once

#include "gpu/launch/specialisation.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu {

// Returns true if fp16 numbers are multiplied in pairs: tile/words.h.
bool multiplies_pairs(const Problem& problem, const Chip& chip);

// Rows of a workgroup: of wide heads half as many, whose sums have room in registers.
int square_rows(const Problem& problem);

// Columns of a tile.
int square_columns();

// Fills in all of a specialisation but its entry. second_rows: the workgroup's rows are of two
// tensors; weights: tiles of them in LDS; numbers: floats of each pair there.
void specialise_square(const Problem& problem, const Chip& chip, bool second_rows, int weights,
                       Specialisation& s, int numbers = 0);

}  // namespace fulmen::gpu
