// Appending to a KV cache on the CPU.
#pragma once

#include "fulmen/kv_cache.h"

namespace fulmen::cpu {

// Throws what run_workers throws, a caller's parallel_for being wrong.
void append_kv(const KvCacheProblem& problem, const KvCacheTensors& tensors,
               const KvCacheOptions& options);

}  // namespace fulmen::cpu
