// A family of kernels on a driver's devices, as a candidate of the registry.
#pragma once

#include <memory>

#include "fulmen/backend.h"
#include "gpu/driver.h"
#include "gpu/launch/family.h"

namespace fulmen::gpu {

std::unique_ptr<const Kernel> make_gpu_kernel(const Driver& driver, const Family& family);

}  // namespace fulmen::gpu
