// kernels/sequences/unused_rows.h: rows of packed results that belong to no sequence.
#pragma once

#include "fulmen/attention.h"
#include "gpu/launch/family.h"
#include "kernels/sequences/unused_rows_arguments.h"

namespace fulmen::gpu {

// One kernel for all problems: shapes and strides are arguments, and 0 is 0 in every dtype.
Specialisation unused_rows_kernel();
kernels::UnusedRowsArguments unused_rows_arguments(const Problem& problem,
                                                   const AttentionTensors& tensors);

}  // namespace fulmen::gpu
