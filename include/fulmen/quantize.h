// Between fp32, fp16 or bf16 numbers and the formats of k and v; docs/guide/quantized_kv.md has
// them. In the host's memory, on the calling thread.
#pragma once

#include "fulmen/export.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

struct QuantizeOptions {
  // The scales are inputs. Else they are computed: the largest |number| that shares a scale becomes
  // the format's largest (int8 127, fp8_e4m3 448, fp8_e5m2 57344, fp8_e4m3fnuz 240, fp8_e5m2fnuz
  // 57344).
  bool given_scales = false;
};

// numbers: fp32, fp16 or bf16 [a, b, c, dim]. quantized: an output of its shape, int8, fp8 or a
// block format, with the strides that k and v may have. scale: fp32 or fp16, [1 or a, 1 or b, 1 or
// c, 1 or dim], an output, or with given_scales an input; absent for block formats, which have
// their own, and it may be absent else: then it is 1.
// int8 and fp8: number / scale, rounded to the nearest, ties to even, up to the format's largest;
// where the scale is 0 it is 0. Blocks: as llama.cpp's reference quantizes a row. Numbers that are
// NaN or infinite make what shares their scale NaN; with given scales fp8 keeps a NaN, and int8,
// which has none, takes 0 for it. Errors: an argument's dtype, shape or pointer, an output that
// overlaps another tensor; then nothing is written. out_of_memory: 4 bytes a scale are needed.
FULMEN_API Status quantize_kv(const InputTensor& numbers, const Tensor& quantized,
                              const Tensor& scale = {}, const QuantizeOptions& options = {});

// The way back: what is stored, times its scale in fp32, rounded to the dtype of `numbers`.
FULMEN_API Status dequantize_kv(const InputTensor& quantized, const InputTensor& scale,
                                const Tensor& numbers);

}  // namespace fulmen
