#include "api/cpp/latent_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

// b's memory begins where a's does, and rows that they both have are in the same place.
bool begins_alike(const Tensor& a, const TensorSpec& a_spec, const Tensor& b,
                  const TensorSpec& b_spec) {
  return a.data == b.data && a.dtype == b.dtype &&
         std::equal(a_spec.strides.begin(), a_spec.strides.end() - 1, b_spec.strides.begin());
}

}  // namespace

Status check_latent_cache(const KvCacheTensors& a, KvCacheProblem& p) {
  p.values_in_keys = a.k_cache.data != nullptr && p.head_dim_v <= p.head_dim &&
                     begins_alike(a.k_cache, p.k_cache, a.v_cache, p.v_cache);
  if (!p.values_in_keys || !p.k_new.present) return {};
  constexpr const char* kWhy = "v_cache is the first dims of k_cache";
  const bool rows = p.batch > 0 && p.seqlen_new > 0 && p.num_kv_heads > 0;
  if (rows && !begins_alike(a.k_new, p.k_new, a.v_new, p.v_new)) {
    return invalid(
        fmt::format("v_new at {} is other memory than k_new at {}, or has other "
                    "strides: {}, so the first dims of k_new are needed",
                    a.v_new.data, a.k_new.data, kWhy));
  }
  if (p.k_scale.present != p.v_scale.present ||
      (p.k_scale.present && !begins_alike(a.k_scale, p.k_scale, a.v_scale, p.v_scale))) {
    return invalid(fmt::format("v_scale at {} is not k_scale at {}: {}, so they have one scale",
                               a.v_scale.data, a.k_scale.data, kWhy));
  }
  if (p.rotary_dim > 0) {
    return invalid(
        fmt::format("rotary_cos is given: {}, so it would rotate values. Rotate the "
                    "last dims of k_new before",
                    kWhy));
  }
  return {};
}

}  // namespace fulmen
