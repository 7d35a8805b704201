#include "reference/standard/eight_bits.h"

#include <algorithm>
#include <cmath>

#include "runtime/kv_formats.h"

namespace fulmen::reference {

void round_with_one_scale(DType format, float* numbers, int64_t count) noexcept {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(numbers[i])) return;
    largest = std::fmax(largest, std::fabs(numbers[i]));
  }
  const float scale = scale_of(format, largest);
  if (!(scale > 0)) return;
  for (int64_t i = 0; i < count; ++i) {
    uint8_t stored = 0;
    encode_kv(numbers + i, format, scale, 1, &stored);
    decode_kv(&stored, format, 0, 1, numbers + i);
    numbers[i] *= scale;
  }
}

void subtract_mean(float* rows, int64_t dim, int64_t count, float* mean) noexcept {
  for (int64_t d = 0; d < dim; ++d, rows += count) {
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += rows[j];
    mean[d] = count > 0 && std::isfinite(sum) ? static_cast<float>(sum / static_cast<double>(count))
                                              : 0.0F;
    for (int64_t j = 0; j < count; ++j) rows[j] -= mean[d];
  }
}

void round_probabilities(float* probabilities, int64_t count) noexcept {
  float largest = 0;
  for (int64_t j = 0; j < count; ++j) largest = std::fmax(largest, probabilities[j]);
  if (!(largest > 0) || !std::isfinite(largest)) return;
  constexpr float kLargest = 256;
  for (int64_t j = 0; j < count; ++j) {
    const float x = probabilities[j] / largest * kLargest;
    probabilities[j] = from_fp8(DType::fp8_e4m3, to_fp8(DType::fp8_e4m3, x)) / kLargest * largest;
  }
}

}  // namespace fulmen::reference
