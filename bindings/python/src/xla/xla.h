// Attention, and appending to a KV cache, as custom calls of XLA, for JAX arrays. They run on XLA's
// threads and know no Python. On a GPU they put their work into the call's stream and do not wait.
#pragma once

#include "xla/xla_ffi.h"

namespace fulmen::python::xla {

// Where XLA's buffers are: XLA has a handler for each.
enum class Platform { host, cuda, rocm };

// Arguments and results are the tensors whose places (call.h) are the set bits of the attributes
// "arguments" and "results", in the order of the places, and after the arguments, where there is
// dropout, uint32 [4]: seed and offset, low halves first. All of them may have more dims in front,
// as many as q, of one size or of size 1: that many calls (vmap). The other attributes are options
// of the C ABI by their names, "device" and "bhsd". On a GPU a call with dropout waits for seed and
// offset, which kernels take as numbers of the host. A call with functions of scores and masks has
// neither dropout nor dims in front; it has arrays and attributes of xla_functions.h.
template <Platform platform>
Error* forward(CallFrame* frame);
template <Platform platform>
Error* backward(CallFrame* frame);
// The same for the tensors of fulmen/kv_cache.h; results are the two caches, which alias the
// arguments, the lengths and, with queries, these.
template <Platform platform>
Error* append_kv(CallFrame* frame);

}  // namespace fulmen::python::xla
