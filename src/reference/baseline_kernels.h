// The single kernels behind baseline_kernels().
#pragma once

#include "fulmen/backend.h"

namespace fulmen::reference {

const Kernel& standard_plain_kernel();
const Kernel& reference_double_kernel();
const Kernel& standard_blas_kernel();
const Kernel& standard_backward_kernel();
const Kernel& reference_backward_kernel();

}  // namespace fulmen::reference
