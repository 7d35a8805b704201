// kernels/kv_cache/append_kv.h: new keys and values behind those of a KV cache, rotary embedding.
#pragma once

#include "fulmen/kv_cache.h"
#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Lengths, heads, pages and the rotary embedding are arguments: a kernel a dtype.
// quantized: a cache of formats of their own, and its scales.
Specialisation append_kernel(const KvCacheProblem& problem);
Specialisation append_kernel(DType dtype);
// 0 where there is nothing to do.
int64_t append_workgroups(const KvCacheProblem& problem);
kernels::AppendArguments append_arguments(const KvCacheProblem& problem,
                                          const KvCacheTensors& tensors);

}  // namespace fulmen::gpu
