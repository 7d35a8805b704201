// Cases whose keys and values are quantized.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"
#include "support/attention_case.h"

namespace fulmen::testing {
namespace {

// What most numbers of a normal distribution lie below.
constexpr float kUsualSize = 4;

float usual_scale(DType dtype, float size) {
  return size_of(dtype) > 1 ? 1.0F : reference::scale_of(dtype, kUsualSize * size);
}

}  // namespace

void draw_quantized(CaseSpec& s, Random& random) {
  const auto format = [&] {
    return random.pick({DType::int8, DType::int8, DType::fp8_e4m3, DType::fp8_e5m2,
                        DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz, DType::q8_0, DType::q4_0,
                        DType::q4_1, DType::q5_0, DType::q5_1, s.dtype});
  };
  const auto share = [&](DType dtype) {
    if (block_bytes(dtype) > 0) return ScaleOf::none;
    return random.pick({ScaleOf::none, ScaleOf::tensor, ScaleOf::head, ScaleOf::batch_and_head,
                        ScaleOf::token, ScaleOf::token});
  };
  s.quantized = true;
  s.k_dtype = format();
  s.v_dtype = random.chance(0.5) ? s.k_dtype : format();
  s.k_scale = share(s.k_dtype);
  s.v_scale = share(s.v_dtype);
  if (block_bytes(s.k_dtype) == 0 && random.chance(0.15)) s.k_scale = ScaleOf::channel;
  s.scale_dtype = random.pick({DType::fp32, DType::fp16});
  s.q_scale = random.chance(0.2);
  const auto whole_blocks = [](int64_t dim) { return (dim + 31) / 32 * 32; };
  if (block_bytes(s.k_dtype) > 0) s.head_dim = whole_blocks(s.head_dim);
  if (block_bytes(s.v_dtype) > 0) s.head_dim_v = whole_blocks(s.head_dim_v);
}

Tensor Case::quantized(const Tensor& from, DType dtype) {
  const int64_t dim = from.shape[3], block = block_bytes(dtype);
  Tensor to = strided(dtype, from.shape[0], from.shape[1], from.shape[2], row_elements(dtype, dim));
  to.shape[3] = dim;
  const float scale = usual_scale(dtype, spec.kv_size);
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (int64_t a = 0; a < from.shape[0]; ++a) {
    for (int64_t b = 0; b < from.shape[1]; ++b) {
      for (int64_t c = 0; c < from.shape[2]; ++c) {
        for (int64_t d = 0; d < dim; ++d)
          row[static_cast<std::size_t>(d)] = get(from, {a, b, c, d});
        const int64_t first = a * to.strides[0] + b * to.strides[1] + c * to.strides[2];
        if (size_of(dtype) > 1) {
          for (int64_t d = 0; d < dim; ++d)
            reference::store_float(to.data, dtype, first + d, row[static_cast<std::size_t>(d)]);
          continue;
        }
        auto* bytes = static_cast<uint8_t*>(to.data) + first;
        if (block == 0) {
          reference::encode_kv(row.data(), dtype, scale, dim, bytes);
        } else {
          for (int64_t d = 0; d < dim; d += kBlockNumbers, bytes += block)
            reference::encode_block(dtype, row.data() + d, bytes);
        }
      }
    }
  }
  return to;
}

Tensor Case::scales(const Tensor& of, DType of_dtype, ScaleOf share, Random& random) {
  // Of pages of one row the scales go by batch.
  if (share == ScaleOf::token && spec.page_size == 1) share = ScaleOf::head;
  std::array<int64_t, 4> shape{1, 1, 1, 1};
  if (share == ScaleOf::batch_and_head) shape[0] = spec.batch;
  if (share != ScaleOf::tensor) shape[2] = spec.num_kv_heads;
  if (share == ScaleOf::token) shape = {of.shape[0], of.shape[1], of.shape[2], 1};
  if (share == ScaleOf::channel) shape[3] = of.shape[3];
  const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
  const Tensor scale{allocate(static_cast<std::size_t>(count * size_of(spec.scale_dtype))),
                     spec.scale_dtype,
                     shape,
                     {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
  const float usual = usual_scale(of_dtype, spec.kv_size);
  for (int64_t n = 0; n < count; ++n) {
    const float factor = 0.75F + 0.01F * static_cast<float>(random.between(0, 50));
    reference::store_float(scale.data, spec.scale_dtype, n, usual * factor);
  }
  if (share != ScaleOf::token) return scale;
  // An integer has no NaN: its scale has.
  for (int64_t a = 0; a < shape[0]; ++a) {
    for (int64_t b = 0; b < shape[1]; ++b) {
      for (int64_t c = 0; c < shape[2]; ++c) {
        if (std::isnan(get(of, {a, b, c, 0}))) set(scale, {a, b, c, 0}, NAN);
      }
    }
  }
  return scale;
}

void Case::quantize_keys_and_values(Random& random) {
  const Tensor k = tensors.k, v = tensors.v;
  tensors.k = quantized(k, spec.k_dtype);
  tensors.v = quantized(v, spec.v_dtype);
  if (spec.k_scale != ScaleOf::none)
    tensors.k_scale = scales(k, spec.k_dtype, spec.k_scale, random);
  if (spec.v_scale != ScaleOf::none)
    tensors.v_scale = scales(v, spec.v_dtype, spec.v_scale, random);
  if (!spec.q_scale) return;
  const ScaleOf share = random.pick({ScaleOf::tensor, ScaleOf::head, ScaleOf::batch_and_head});
  tensors.q_scale = scales(k, spec.dtype, share, random);
}

}  // namespace fulmen::testing
