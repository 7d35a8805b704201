#include "gpu/launch/quantized.h"

#include <fmt/format.h>

#include <utility>

namespace fulmen::gpu {
namespace {

// kernels/core/stored_number.h has these numbers.
static_assert(static_cast<int>(DType::int8) == 5 && static_cast<int>(DType::fp8_e4m3) == 6 &&
              static_cast<int>(DType::fp8_e5m2) == 7 &&
              static_cast<int>(DType::fp8_e4m3fnuz) == 8 &&
              static_cast<int>(DType::fp8_e5m2fnuz) == 9 && static_cast<int>(DType::q8_0) == 10 &&
              static_cast<int>(DType::q4_0) == 11 && static_cast<int>(DType::q4_1) == 12 &&
              static_cast<int>(DType::q5_0) == 13 && static_cast<int>(DType::q5_1) == 14);

constexpr int kOfToken = 1, kOfChannel = 3, kHalf = 1;

}  // namespace

bool has_token_scales(const TensorSpec& scale) { return scale.present && scale.strides[1] != 0; }

int row_scales(const TensorSpec& scale) {
  const int kind = !scale.present            ? 0
                   : has_token_scales(scale) ? kOfToken
                   : scale.strides[3] != 0   ? kOfChannel
                                             : 0;
  return kind == 0 || scale.dtype == DType::fp32 ? kind : kind + kHalf;
}

void set_bytes(DType dtype, kernels::View& view) {
  view.batch *= size_of(dtype);
  view.row *= size_of(dtype);
  view.head *= size_of(dtype);
}

int half_scales(const TensorSpec& k, const TensorSpec& v, const TensorSpec& q) {
  const auto half = [](const TensorSpec& scale) { return scale.dtype == DType::fp16 ? 1 : 0; };
  return half(k) + 2 * half(v) + 4 * half(q);
}

Support multiplies_stored(const Problem& p, const Target& target) {
  if (!p.quantized_kv()) return {};
  for (const auto& [name, dtype] : {std::pair{"k", p.k_dtype}, {"v", p.v_dtype}}) {
    if (block_bytes(dtype) > 0) {
      return Support::no(
          fmt::format("{}.dtype is {}: products of 16 bits take int8 and fp8, blocks "
                      "would have to be rounded",
                      name, to_string(dtype)));
    }
    const bool wide = dtype == DType::fp8_e5m2 || dtype == DType::fp8_e5m2fnuz;
    if (wide && p.dtype == DType::fp16 && target.flushes_subnormals) {
      return Support::no(
          fmt::format("{}.dtype is {}: its smallest numbers are subnormal in fp16, "
                      "which these products take for 0",
                      name, to_string(dtype)));
    }
  }
  if (p.k_scale.present && p.k_scale.strides[1] == 0 && p.k_scale.strides[3] != 0)
    return Support::no("k_scale is one for each channel, scores have one for each key");
  if (has_token_scales(p.v_scale) && p.dtype == DType::fp16) {
    return Support::no(
        "v_scale is one for each token, and probabilities times these may be beyond fp16's range: "
        "bf16 has it");
  }
  return {};
}

void specialise_kv(const Problem& p, Specialisation& s) {
  s.kv_dtype = static_cast<int>(p.k_dtype);
  s.v_dtype = static_cast<int>(p.v_dtype);
  s.quantized = p.quantized_kv();
  s.key_scales = row_scales(p.k_scale);
  s.value_scales = row_scales(p.v_scale);
}

// As StepScales::kOne of kernels/tile/stored_scales.h: keys without a page have a scale of NaN.
int row_scales_of_tiles(const Specialisation& s) {
  if (s.quantized == 0) return 0;
  const bool keys =
                 s.key_scales == kOfToken || s.key_scales == kOfToken + kHalf || s.page_size != 0,
             values = s.value_scales != 0;
  return int{keys} + int{values};
}

std::string kv_text(const Specialisation& s) {
  std::string text = fmt::format(" k={} v={}", to_string(static_cast<DType>(s.kv_dtype)),
                                 to_string(static_cast<DType>(s.v_dtype)));
  if (s.key_scales >= kOfChannel) {
    text += " channel scales";
  } else if (s.key_scales > 0 || s.value_scales > 0) {
    text += " token scales";
  }
  return text;
}

void set_kv_strides(const Problem& p, kernels::ForwardArguments& a) {
  if (!p.quantized_kv()) return;
  set_bytes(p.k_dtype, a.k);
  set_bytes(p.v_dtype, a.v);
  a.k_scale = view_of(p.k_scale);
  a.v_scale = view_of(p.v_scale);
  a.q_scale = view_of(p.q_scale);
  a.half_scales = half_scales(p.k_scale, p.v_scale, p.q_scale);
}

void set_scale_pointers(const Problem& p, const AttentionTensors& t, kernels::ForwardArguments& a) {
  if (p.k_scale.present) a.k_scale.data = t.k_scale.data;
  if (p.v_scale.present) a.v_scale.data = t.v_scale.data;
  if (p.q_scale.present) a.q_scale.data = t.q_scale.data;
}

}  // namespace fulmen::gpu
