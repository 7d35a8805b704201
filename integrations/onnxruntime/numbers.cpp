#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../rounding.h"
#include "fulmen/fulmen_c.h"

namespace fulmen_ort {

using fulmen_integrations::round_row;
using fulmen_integrations::widen_row;

namespace {

float rounded(float number, Scales scales, int64_t i, float least, float most) {
  const float scale = scales.at(i), inverse = scale == 0 ? 1.0F : 1.0F / scale;
  return std::clamp(std::nearbyint(number * inverse), least, most);
}

}  // namespace

void widen(const void* from, int32_t dtype, int64_t count, float* to) {
  if (dtype == FULMEN_FP32)
    std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
  else
    widen_row(static_cast<const uint16_t*>(from), count, dtype, to);
}

void narrow(const float* from, int32_t dtype, int64_t count, void* to) {
  if (dtype == FULMEN_FP32)
    std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
  else
    round_row(from, count, dtype, static_cast<uint16_t*>(to));
}

void to_int8(const float* from, Scales scales, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = static_cast<int8_t>(rounded(from[i], scales, i, -128, 127));
}

void to_int4(const float* from, Scales scales, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; i += 2) {
    const int low = static_cast<int>(rounded(from[i], scales, i, -8, 7)) + 8;
    const int high =
        i + 1 < count ? static_cast<int>(rounded(from[i + 1], scales, i + 1, -8, 7)) + 8 : 8;
    to[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

void int4_to_int8(const uint8_t* from, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = static_cast<int8_t>((from[i / 2] >> (i % 2 == 0 ? 0 : 4) & 15) - 8);
}

}  // namespace fulmen_ort
