#include "rows.h"

#include <cmath>
#include <cstring>

#include "run.h"

namespace fulmen_ort {

void Rotary::rotate(float* row, int64_t position) const {
  const int64_t half = cosines.dims[1];
  std::vector<float> c(static_cast<std::size_t>(half)), s(c.size());
  const auto at = [&](const Value& table) {
    return static_cast<const std::byte*>(table.data) +
           position * half * static_cast<int64_t>(bytes_of(table.dtype));
  };
  widen(at(cosines), cosines.dtype, half, c.data());
  widen(at(sines), sines.dtype, half, s.data());
  for (std::size_t i = 0; i < c.size(); ++i) {
    float& a = row[interleaved ? 2 * i : i];
    float& b = row[interleaved ? 2 * i + 1 : i + c.size()];
    const float x = a, y = b;
    a = x * c[i] - y * s[i];
    b = y * c[i] + x * s[i];
  }
}

Rotary as_rotary(const Value& cosines, const Value& sines, int64_t head_dim, bool interleaved) {
  if (cosines.dims.size() != 2 || 2 * cosines.dims[1] > head_dim)
    cosines.refuse("[positions, up to " + std::to_string(head_dim / 2) + "]");
  sines.expect(cosines.dims, "cos_cache's dims");
  return {cosines, sines, interleaved};
}

namespace {

void normalize(float* row, const std::vector<float>& weight, float epsilon) {
  float squares = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) squares += row[i] * row[i];
  const float factor = 1.0F / std::sqrt(squares / static_cast<float>(weight.size()) + epsilon);
  for (std::size_t i = 0; i < weight.size(); ++i) row[i] *= factor * weight[i];
}

// To a byte each: e4m3 has no routine here, so Fulmen's own quantizes the scaled row.
void to_fp8(std::vector<float>& row, Scales scales, void* to) {
  const auto dim = static_cast<int64_t>(row.size());
  for (int64_t i = 0; i < dim; ++i) row[static_cast<std::size_t>(i)] /= scales.at(i);
  const fulmen_tensor numbers = fulmen_tensor_bshd(row.data(), FULMEN_FP32, 1, 1, 1, dim);
  const fulmen_tensor quantized = fulmen_tensor_bshd(to, FULMEN_FP8_E4M3, 1, 1, 1, dim);
  if (fulmen_quantize_kv(&numbers, &quantized, nullptr, false) != FULMEN_OK)
    fail(fulmen_last_error());
}

}  // namespace

void write_rows(const fulmen_tensor& from, const Preparation& prepared,
                const std::vector<int64_t>& positions, const fulmen_tensor& to,
                const std::vector<int64_t>& first) {
  const int64_t rows = from.shape[1], heads = from.shape[2], dim = from.shape[3];
  const int64_t bytes = dim * static_cast<int64_t>(bytes_of(from.dtype));
  in_parallel(from.shape[0] * heads, from.shape[0] * heads * rows * bytes, [&](int64_t index) {
    const int64_t b = index / heads, h = index % heads;
    const bool per_channel = prepared.scales.size() > 1;
    const Scales scales{prepared.scales.data() + (per_channel ? h * dim : 0), per_channel};
    std::vector<float> row(static_cast<std::size_t>(dim));
    std::vector<std::byte> rounded(static_cast<std::size_t>(bytes));
    for (int64_t s = 0; s < rows; ++s) {
      const std::byte* source = row_of(from, b, s, h);
      std::byte* at = row_of(to, b, first[static_cast<std::size_t>(b)] + s, h);
      if (prepared.copies()) {
        std::memcpy(at, source, static_cast<std::size_t>(bytes));
        continue;
      }
      widen(source, from.dtype, dim, row.data());
      if (!prepared.norm_weight.empty())
        normalize(row.data(), prepared.norm_weight, prepared.epsilon);
      if (prepared.rotary != nullptr)
        prepared.rotary->rotate(row.data(), positions[static_cast<std::size_t>(b * rows + s)]);
      if (prepared.bits != 0 && prepared.changes()) {
        // Numbers of the tensors' type are what is quantized, as in ONNX Runtime.
        narrow(row.data(), from.dtype, dim, rounded.data());
        widen(rounded.data(), from.dtype, dim, row.data());
      }
      if (prepared.bits == 4)
        to_int4(row.data(), scales, dim, reinterpret_cast<uint8_t*>(at));
      else if (to.dtype == FULMEN_INT8)
        to_int8(row.data(), scales, dim, reinterpret_cast<int8_t*>(at));
      else if (to.dtype == FULMEN_FP8_E4M3)
        to_fp8(row, scales, at);
      else
        narrow(row.data(), to.dtype, dim, at);
    }
  });
}

}  // namespace fulmen_ort
