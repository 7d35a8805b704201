// Reading the elements of a function's tensors.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "fulmen/tensor.h"
#include "runtime/float_formats.h"
#include "score/apply.h"
#include "score/node.h"

namespace fulmen::score {

// A tensor as the evaluators see it.
struct Elements {
  const void* data = nullptr;
  DType dtype = DType::fp32;
  int dims = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};

  // Where an element is, in elements; -1 where an index is out of range (and "outside" is true: a
  // stride may be negative).
  bool inside(const int32_t* indices, int64_t& offset) const noexcept {
    offset = 0;
    for (int d = 0; d < dims; ++d) {
      if (indices[d] < 0 || indices[d] >= shape[d]) return false;
      offset += indices[d] * strides[d];
    }
    return true;
  }
};

constexpr Type type_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp32:
    case DType::fp16:
    case DType::bf16:
      return Type::real;
    case DType::boolean:
      return Type::boolean;
    default:
      return Type::integer;
  }
}

template <class Stored>
Stored stored_at(const void* data, int64_t offset) noexcept {
  Stored value;
  std::memcpy(&value, static_cast<const char*>(data) + offset * static_cast<int64_t>(sizeof value),
              sizeof value);
  return value;
}

inline float real_at(const void* data, DType dtype, int64_t offset) noexcept {
  if (dtype == DType::fp32) return stored_at<float>(data, offset);
  const auto bits = stored_at<uint16_t>(data, offset);
  return dtype == DType::fp16 ? reference::from_fp16(bits) : reference::from_bf16(bits);
}

inline int32_t integer_at(const void* data, DType dtype, int64_t offset) noexcept {
  switch (dtype) {
    case DType::int64:
      return saturate(stored_at<int64_t>(data, offset));
    case DType::int8:
      return stored_at<int8_t>(data, offset);
    case DType::uint8:
      return stored_at<uint8_t>(data, offset);
    case DType::boolean:
      return stored_at<uint8_t>(data, offset) != 0 ? 1 : 0;
    default:
      return stored_at<int32_t>(data, offset);
  }
}

template <class Real>
BasicValue<Real> element_at(const Elements& tensor, const int32_t* indices) noexcept {
  int64_t offset = 0;
  if (!tensor.inside(indices, offset)) return {};
  if (type_of(tensor.dtype) == Type::real)
    return {static_cast<Real>(real_at(tensor.data, tensor.dtype, offset)), 0};
  return {0, integer_at(tensor.data, tensor.dtype, offset)};
}

}  // namespace fulmen::score
