// The C ABI of appending to a KV cache.
#include "api/c_translation.h"
#include "fulmen/kv_cache.h"

extern "C" {

void fulmen_kv_cache_init_sized(fulmen_kv_cache* call, size_t struct_size) {
  fulmen_kv_cache defaults{};
  defaults.rotary_interleaved = true;
  defaults.queries_advance = true;
  fulmen::c_api::init_struct(defaults, call, struct_size);
}

int fulmen_append_kv(const fulmen_kv_cache* call, const char* device, void* stream) {
  using fulmen::c_api::to_cpp;
  return fulmen::c_api::guarded([&]() -> fulmen::Status {
    if (call == nullptr) return fulmen::c_api::null_argument("call");
    fulmen_kv_cache c;
    fulmen_kv_cache_init(&c);
    if (fulmen::Status status = fulmen::c_api::read_struct("call", call, c); !status.ok()) return status;
    const fulmen::KvCacheTensors tensors{.k_cache = to_cpp(c.k_cache),
                                         .v_cache = to_cpp(c.v_cache),
                                         .seqlens_k = to_cpp(c.seqlens_k),
                                         .block_table = to_cpp(c.block_table),
                                         .k_new = to_cpp(c.k_new),
                                         .v_new = to_cpp(c.v_new),
                                         .rotary_cos = to_cpp(c.rotary_cos),
                                         .rotary_sin = to_cpp(c.rotary_sin),
                                         .q = to_cpp(c.q),
                                         .q_out = to_cpp(c.q_out),
                                         .seqlens_k_out = to_cpp(c.seqlens_k_out)};
    const fulmen::KvCacheOptions options{.rotary_interleaved = c.rotary_interleaved,
                                         .queries_advance = c.queries_advance,
                                         .num_threads = c.num_threads,
                                         .parallel_for = {c.parallel_for, c.parallel_for_context}};
    return fulmen::append_kv(tensors, options, device != nullptr ? device : "", stream);
  });
}

}  // extern "C"
