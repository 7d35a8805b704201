// Appending to a KV cache on the CPU.
#pragma once

#include "fulmen/kv_cache.h"

namespace fulmen::cpu {

void append_kv(const KvCacheProblem& problem, const KvCacheTensors& tensors, const KvCacheOptions& options) noexcept;

}  // namespace fulmen::cpu
