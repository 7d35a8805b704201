#include "api/cpp/scale_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "runtime/tensor_checks.h"

namespace fulmen {

Status check_scales(const AttentionTensors& a, const Problem& p) {
  for (const auto& [name, dtype] : {std::pair{"k", p.k_dtype}, {"v", p.v_dtype}}) {
    if (dtype == p.dtype || is_kv_format(dtype)) continue;
    return invalid(
        fmt::format("{}.dtype is {}, q.dtype is {}: q's dtype, int8, fp8 and the block formats are "
                    "accepted",
                    name, to_string(dtype), to_string(p.dtype)));
  }
  struct Scale {
    const char *name, *of;
    const Tensor& tensor;
    const TensorSpec& spec;
    DType dtype;
  };
  for (const Scale& scale : {Scale{"k_scale", "k", a.k_scale, p.k_scale, p.k_dtype},
                             {"v_scale", "v", a.v_scale, p.v_scale, p.v_dtype}}) {
    if (!scale.spec.present) continue;
    if (block_bytes(scale.dtype) > 0) {
      return invalid(fmt::format("{} is given, {}.dtype is {}: its blocks have their own scales",
                                 scale.name, scale.of, to_string(scale.dtype)));
    }
    if (scale.tensor.shape[1] > 1 && scale.tensor.shape[3] > 1) {
      return invalid(
          fmt::format("{}.shape is {}: scales of each token and of each channel are not "
                      "accepted together",
                      scale.name, scale.tensor.shape));
    }
    if (scale.tensor.shape[1] > 1 && scale.spec.strides[1] == 0) {
      return invalid(
          fmt::format("{}.shape is {} with strides {}: one scale for all tokens has "
                      "dim 1 of size 1",
                      scale.name, scale.tensor.shape, scale.tensor.strides));
    }
  }
  return {};
}

Status check_unquantized(const Problem& p) {
  for (const auto& [name, dtype] : {std::pair{"k", p.k_dtype}, {"v", p.v_dtype}}) {
    if (dtype == p.dtype) continue;
    return {StatusCode::unsupported,
            fmt::format("{}.dtype is {}, q.dtype is {}: gradients are of k and v of q's dtype",
                        name, to_string(dtype), to_string(p.dtype))};
  }
  for (const auto& [name, scale] :
       {std::pair{"k_scale", &p.k_scale}, {"v_scale", &p.v_scale}, {"q_scale", &p.q_scale}}) {
    if (!scale->present) continue;
    return {StatusCode::unsupported,
            fmt::format("{} is given: gradients are of k and v without scales", name)};
  }
  return {};
}

}  // namespace fulmen
