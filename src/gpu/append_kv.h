// append_kv() on a GPU.
#pragma once

#include "fulmen/kv_cache.h"
#include "gpu/device_list.h"
#include "gpu/driver.h"

namespace fulmen::gpu {

Status append_kv(const Driver& driver, const Device& device, void* stream,
                 const KvCacheProblem& problem, const KvCacheTensors& tensors);

}  // namespace fulmen::gpu
