// Appending to a KV cache.
#pragma once

#include <nanobind/nanobind.h>

namespace fulmen::python {

namespace nb = nanobind;

// tensors: (k_cache, v_cache, seqlens_k, block_table, k, v, rotary_cos, rotary_sin, q), None where absent. Returns (rotated q or
// None, the lengths afterwards).
nb::object append_kv(nb::tuple tensors, nb::handle device, bool rotary_interleaved, bool queries_advance, int num_threads);

}  // namespace fulmen::python
