// zero_unused_rows() on a GPU.
#pragma once

#include "fulmen/attention.h"
#include "gpu/device_list.h"
#include "gpu/driver.h"

namespace fulmen::gpu {

Status zero_unused_rows(const Driver& driver, const Device& device, void* stream,
                        const Problem& problem, const AttentionTensors& tensors);

}  // namespace fulmen::gpu
