// The C ABI of appending to a KV cache.
#include "fulmen/kv_cache.h"

#include "api/c/translation.h"

namespace fulmen::c_api {
namespace {

struct NamedTensor {
  const char* name;
  fulmen_tensor fulmen_kv_cache::* tensor;
};
constexpr NamedTensor kTensors[] = {{"k_cache", &fulmen_kv_cache::k_cache},
                                    {"v_cache", &fulmen_kv_cache::v_cache},
                                    {"seqlens_k", &fulmen_kv_cache::seqlens_k},
                                    {"block_table", &fulmen_kv_cache::block_table},
                                    {"k_new", &fulmen_kv_cache::k_new},
                                    {"v_new", &fulmen_kv_cache::v_new},
                                    {"rotary_cos", &fulmen_kv_cache::rotary_cos},
                                    {"rotary_sin", &fulmen_kv_cache::rotary_sin},
                                    {"q", &fulmen_kv_cache::q},
                                    {"q_out", &fulmen_kv_cache::q_out},
                                    {"seqlens_k_out", &fulmen_kv_cache::seqlens_k_out},
                                    {"k_scale", &fulmen_kv_cache::k_scale},
                                    {"v_scale", &fulmen_kv_cache::v_scale}};

// Calls body with the tensors and options.
template <class Body>
int translated(const fulmen_kv_cache* call, const Body& body) {
  return guarded([&]() -> Status {
    if (call == nullptr) return null_argument("call");
    fulmen_kv_cache c;
    fulmen_kv_cache_init(&c);
    if (Status status = read_struct("call", call, c); !status.ok()) return status;
    for (const auto& [name, tensor] : kTensors) {
      if (Status status = check_reserved(name, c.*tensor); !status.ok()) return status;
    }
    const KvCacheTensors tensors{.k_cache = to_cpp(c.k_cache),
                                 .v_cache = to_cpp(c.v_cache),
                                 .seqlens_k = to_cpp(c.seqlens_k),
                                 .block_table = to_cpp(c.block_table),
                                 .k_new = to_cpp(c.k_new),
                                 .v_new = to_cpp(c.v_new),
                                 .rotary_cos = to_cpp(c.rotary_cos),
                                 .rotary_sin = to_cpp(c.rotary_sin),
                                 .q = to_cpp(c.q),
                                 .q_out = to_cpp(c.q_out),
                                 .seqlens_k_out = to_cpp(c.seqlens_k_out),
                                 .k_scale = to_cpp(c.k_scale),
                                 .v_scale = to_cpp(c.v_scale)};
    const KvCacheOptions options{.rotary_interleaved = c.rotary_interleaved,
                                 .queries_advance = c.queries_advance,
                                 .num_threads = c.num_threads,
                                 .parallel_for = {c.parallel_for, c.parallel_for_context},
                                 .validate = c.validate};
    return body(tensors, options);
  });
}

}  // namespace
}  // namespace fulmen::c_api

extern "C" {

void fulmen_kv_cache_init_sized(fulmen_kv_cache* call, size_t struct_size) {
  fulmen_kv_cache defaults{};
  defaults.rotary_interleaved = true;
  defaults.queries_advance = true;
  fulmen::c_api::init_struct(defaults, call, struct_size);
}

int fulmen_append_kv(const fulmen_kv_cache* call, const char* device, void* stream) {
  return fulmen::c_api::translated(
      call, [&](const fulmen::KvCacheTensors& tensors, const fulmen::KvCacheOptions& options) {
        return fulmen::append_kv(tensors, options, device != nullptr ? device : "", stream);
      });
}

int fulmen_append_kv_check(const fulmen_kv_cache* call) {
  return fulmen::c_api::translated(
      call, [&](const fulmen::KvCacheTensors& tensors, const fulmen::KvCacheOptions& options) {
        return fulmen::make_kv_cache_problem(tensors, options).status();
      });
}

}  // extern "C"
