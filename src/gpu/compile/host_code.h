// HostCodeMaker by the host's compiler and the cache of compiled kernels.
#pragma once

#include "runtime/host_code.h"

namespace fulmen::gpu {

Result<HostCode> make_host_code(const HostSource& source);

}  // namespace fulmen::gpu
