// What kernels read for keys of pages that do not exist.
#pragma once

#include "gpu/device_list.h"
#include "gpu/driver.h"

namespace fulmen::gpu {

// kernels::ForwardArguments::missing_row in the device's memory, made at the first call and kept as
// long as the process.
Result<const void*> missing_row(const Driver& driver, const Device& device);

}  // namespace fulmen::gpu
