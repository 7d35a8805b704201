// The formats of k and v beside those of q, number by number: what their bits mean, and the
// nearest that a float becomes. Plain code, for the reference and for what is converted once;
// kernels have their own (cpu/tile/unpack.h).
#pragma once

#include <cstdint>

#include "fulmen/tensor.h"

namespace fulmen::reference {

// dtype: one of the fp8 formats.
float from_fp8(DType dtype, uint8_t bits) noexcept;
// Round to nearest even. Numbers beyond the largest, infinity too, become the largest; a NaN stays
// one.
uint8_t to_fp8(DType dtype, float value) noexcept;
// The scale by which the largest |number| becomes the largest of int8, or of fp8. NaN for numbers
// that are not finite.
float scale_of(DType dtype, float largest_number) noexcept;

// dtype: a block format. numbers: kBlockNumbers; block: block_bytes(dtype) bytes, at any address.
void decode_block(DType dtype, const void* block, float* numbers) noexcept;
// Rounds as llama.cpp does: its reference quantization of a row. A NaN or an infinity makes every
// number of the block NaN.
void encode_block(DType dtype, const float* numbers, void* block) noexcept;

// `dim` numbers of a row that starts at `first` in elements (bytes in a block format), as floats:
// exact, without a scale. Any float dtype or format of k and v.
void decode_kv(const void* data, DType dtype, int64_t first, int64_t dim, float* out) noexcept;
// The nearest to x / scale in int8 or fp8, up to the largest: of int8 127, on both sides. 0 where
// the scale is 0 or, in int8, the quotient is NaN.
void encode_kv(const float* x, DType dtype, float scale, int64_t dim, void* out) noexcept;

}  // namespace fulmen::reference
