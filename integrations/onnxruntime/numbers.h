// Rows of numbers as fp32 and back: what this folder computes itself (biases, norms, rotations,
// quantization) is computed in fp32.
#pragma once

#include <cstdint>

namespace fulmen_ort {

// dtype: fp32, fp16 or bf16.
void widen(const void* from, int32_t dtype, int64_t count, float* to);
// To the nearest, ties to even.
void narrow(const float* from, int32_t dtype, int64_t count, void* to);

// Numbers by their scales: one scale, or one for each number.
struct Scales {
  const float* scale;
  bool per_channel;
  float at(int64_t i) const { return per_channel ? scale[i] : *scale; }
};
// round(x / scale) within -128 and 127; a scale of 0 counts as 1, both as in ONNX Runtime.
void to_int8(const float* from, Scales scales, int64_t count, int8_t* to);
// The same within -8 and 7, plus 8: two a byte, the first one in the low nibble.
void to_int4(const float* from, Scales scales, int64_t count, uint8_t* to);
// Such nibbles as int8, -8 to 7.
void int4_to_int8(const uint8_t* from, int64_t count, int8_t* to);

}  // namespace fulmen_ort
