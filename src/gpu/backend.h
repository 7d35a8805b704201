// GPUs as backends: one for each driver. Devices are "<driver>:<selector>", kernels
// "<driver>.<family>.<target>".
#pragma once

#include <memory>

#include "fulmen/backend.h"
#include "gpu/driver.h"

namespace fulmen::gpu {

std::shared_ptr<const Backend> make_gpu_backend(const Driver& driver);

}  // namespace fulmen::gpu
