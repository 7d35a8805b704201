// Kernels compiled and loaded on a device, kept as long as the process: planning the same specialisation again finds them here.
#pragma once

#include "gpu/device_list.h"
#include "gpu/driver.h"
#include "gpu/launch/specialisation.h"

namespace fulmen::gpu {

// Compiles (or takes from the cache) and loads. Errors: no compiler and no cached code; the compiler's or the driver's words.
Result<Function> load_kernel(const Driver& driver, const Device& device, const Specialisation& specialisation);

}  // namespace fulmen::gpu
