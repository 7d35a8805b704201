// Appending to a KV cache.
#pragma once

#include <nanobind/nanobind.h>

#include "arguments/array.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::python {

// The order of the tensors in the tuples that Python hands over.
struct CacheTensor {
  const char* name;
  fulmen_tensor fulmen_kv_cache::* member;
  int ndim;
  const char* accepted;
};
enum CachePlace : int {
  kCacheK,
  kCacheV,
  kCacheSeqlens,
  kCacheTable,
  kNewK,
  kNewV,
  kCos,
  kSin,
  kQueries,
  kCacheKScale,
  kCacheVScale,
  kCachePlaces
};
extern const CacheTensor kCacheTensors[kCachePlaces];

fulmen_tensor in_four_dims(const View& view);

// fulmen_append_kv of arrays of the host; on an emulated device on copies in its memory.
int append_on_host(const fulmen_kv_cache& call, const char* device);

// tensors: (k_cache, v_cache, seqlens_k, block_table, k, v, rotary_cos, rotary_sin, q, k_scale,
// v_scale), None where absent; the caches as read_keys() takes them; the scales may be left out.
// Returns (rotated q or None, the lengths afterwards).
nb::object append_kv(nb::tuple tensors, nb::handle device, nb::handle rotary_interleaved,
                     nb::handle queries_advance, nb::handle num_threads, nb::handle validate);
// Throws what append_kv throws before it looks at pointers.
void check_append_kv(nb::tuple tensors, nb::handle device, nb::handle rotary_interleaved,
                     nb::handle queries_advance, nb::handle num_threads, nb::handle validate);

}  // namespace fulmen::python
