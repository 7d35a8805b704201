#include "fulmen/quantize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <new>
#include <vector>

#include "fulmen/problem.h"
#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"
#include "runtime/memory_range.h"
#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

using reference::decode_kv;
using reference::load_float;
using reference::store_float;

MemoryRange range_of(const char* name, const Tensor& t) {
  std::size_t bytes = 0;
  bool empty = false;
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    empty = empty || t.shape[d] == 0;
    const int64_t size = d == 3 ? row_elements(t.dtype, t.shape[d]) : t.shape[d];
    if (size > 1) last += (size - 1) * t.strides[d];
  }
  if (!empty) bytes = static_cast<std::size_t>((last + 1) * size_of(t.dtype));
  return {name, t.data, bytes, t.dtype};
}

Status check(const Tensor& numbers, const Tensor& quantized, const Tensor& scale,
             const char* written, bool scale_is_written) {
  if (!is_float(numbers.dtype)) {
    return invalid(fmt::format("numbers.dtype is {}: fp32, fp16 and bf16 are accepted",
                               name_of(numbers.dtype)));
  }
  if (!is_kv_format(quantized.dtype)) {
    return invalid(
        fmt::format("quantized.dtype is {}: int8, fp8 and the block formats are accepted",
                    name_of(quantized.dtype)));
  }
  if (Status status = check_view("numbers", numbers); !status.ok()) return status;
  if (Status status = check_view("quantized", quantized); !status.ok()) return status;
  if (Status status = check_shape("quantized", quantized, numbers.shape, "the shape of numbers");
      !status.ok())
    return status;
  if (numbers.shape[3] > kMaxHeadDim) {
    return invalid(fmt::format("numbers.shape is {}: its last dim may be up to {}", numbers.shape,
                               kMaxHeadDim));
  }
  const bool output_is_quantized = written[0] == 'q';
  if (Status status = check_output(written, output_is_quantized ? quantized : numbers);
      !status.ok())
    return status;
  std::vector<MemoryRange> ranges{range_of("quantized", quantized), range_of("numbers", numbers)};
  if (!absent(scale)) {
    if (block_bytes(quantized.dtype) > 0) {
      return invalid(fmt::format("scale is given, quantized.dtype is {}: its blocks have their own",
                                 to_string(quantized.dtype)));
    }
    if (scale.dtype != DType::fp32 && scale.dtype != DType::fp16) {
      return invalid(
          fmt::format("scale.dtype is {}: fp32 and fp16 are accepted", name_of(scale.dtype)));
    }
    if (Status status = check_view("scale", scale); !status.ok()) return status;
    for (int d = 0; d < 4; ++d) {
      if (scale.shape[d] != 1 && scale.shape[d] != numbers.shape[d]) {
        return invalid(
            fmt::format("scale.shape is {}: the shape of numbers = {} is needed, where "
                        "each dim may be 1",
                        scale.shape, numbers.shape));
      }
    }
    if (Status status = scale_is_written ? check_output("scale", scale) : Status(); !status.ok())
      return status;
    ranges.push_back(range_of("scale", scale));
  }
  for (const MemoryRange& range : ranges) {
    if (!addressable(range))
      return bad_address(range, fmt::format("{} bytes are needed there", range.bytes));
    for (const MemoryRange& other : ranges) {
      if (&other != &range && overlap(range, other)) return bad_overlap(range, other, "outputs");
    }
  }
  return {};
}

int64_t at(const Tensor& t, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  const int64_t index[] = {a, b, c, d};
  int64_t sum = 0;
  for (int n = 0; n < 4; ++n) sum += t.shape[n] == 1 ? 0 : index[n] * t.strides[n];
  return sum;
}

template <class Row>
void for_each_row(const Tensor& t, const Row& row) {
  for (int64_t a = 0; a < t.shape[0]; ++a) {
    for (int64_t b = 0; b < t.shape[1]; ++b) {
      for (int64_t c = 0; c < t.shape[2]; ++c) row(a, b, c);
    }
  }
}

// Index of the scale of a number among all scales, row-major.
int64_t index_of(const Tensor& scale, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t index[] = {a, b, c, d};
  int64_t sum = 0;
  for (int n = 0; n < 4; ++n) sum = sum * scale.shape[n] + (scale.shape[n] == 1 ? 0 : index[n]);
  return sum;
}

void compute_scales(const Tensor& numbers, DType format, const Tensor& scale) {
  std::vector<float> largest(
      static_cast<std::size_t>(scale.shape[0] * scale.shape[1] * scale.shape[2] * scale.shape[3]));
  for_each_row(numbers, [&](int64_t a, int64_t b, int64_t c) {
    const int64_t row = at(numbers, a, b, c);
    for (int64_t d = 0; d < numbers.shape[3]; ++d) {
      float& most = largest[static_cast<std::size_t>(index_of(scale, a, b, c, d))];
      const float size = std::fabs(load_float(numbers.data, numbers.dtype, row + d));
      if (size > most || std::isnan(size)) most = size;  // a NaN stays
    }
  });
  for_each_row(scale, [&](int64_t a, int64_t b, int64_t c) {
    for (int64_t d = 0; d < scale.shape[3]; ++d) {
      store_float(scale.data, scale.dtype, at(scale, a, b, c, d),
                  reference::scale_of(
                      format, largest[static_cast<std::size_t>(index_of(scale, a, b, c, d))]));
    }
  });
}

}  // namespace

Status quantize_kv(const InputTensor& numbers, const Tensor& quantized, const Tensor& scale,
                   const QuantizeOptions& options) {
  try {
    if (Status status = check(numbers, quantized, scale, "quantized", !options.given_scales);
        !status.ok())
      return status;
    const bool scaled = !absent(scale);
    if (scaled && !options.given_scales) compute_scales(numbers, quantized.dtype, scale);
    const int64_t dim = numbers.shape[3], block = block_bytes(quantized.dtype);
    for_each_row(numbers, [&](int64_t a, int64_t b, int64_t c) {
      float row[kMaxHeadDim];
      decode_kv(numbers.data, numbers.dtype, at(numbers, a, b, c), dim, row);
      auto* to = static_cast<uint8_t*>(quantized.data) + at(quantized, a, b, c);
      if (block > 0) {
        for (int64_t d = 0; d < dim; d += kBlockNumbers, to += block)
          reference::encode_block(quantized.dtype, row + d, to);
        return;
      }
      const bool channels = scaled && scale.shape[3] > 1;
      const auto scale_at = [&](int64_t d) {
        return scaled ? load_float(scale.data, scale.dtype, at(scale, a, b, c, d)) : 1.0F;
      };
      if (!channels) return reference::encode_kv(row, quantized.dtype, scale_at(0), dim, to);
      for (int64_t d = 0; d < dim; ++d)
        reference::encode_kv(row + d, quantized.dtype, scale_at(d), 1, to + d);
    });
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory for the scales of quantize_kv"};
  }
}

Status dequantize_kv(const InputTensor& quantized, const InputTensor& scale,
                     const Tensor& numbers) {
  try {
    if (Status status = check(numbers, quantized, scale, "numbers", false); !status.ok())
      return status;
    const int64_t dim = numbers.shape[3];
    const bool scaled = !absent(scale);
    for_each_row(numbers, [&](int64_t a, int64_t b, int64_t c) {
      float row[kMaxHeadDim];
      decode_kv(quantized.data, quantized.dtype, at(quantized, a, b, c), dim, row);
      const int64_t to = at(numbers, a, b, c);
      for (int64_t d = 0; d < dim; ++d) {
        const float factor =
            scaled ? load_float(scale.data, scale.dtype, at(scale, a, b, c, d)) : 1.0F;
        store_float(numbers.data, numbers.dtype, to + d, row[d] * factor);
      }
    });
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory for the message of dequantize_kv"};
  }
}

}  // namespace fulmen
