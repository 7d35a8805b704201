// Tensor: a view of memory that Fulmen reads or writes. Views own nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "fulmen/export.h"

namespace fulmen {

// boolean: one byte an element, 0 is false. int64, int8 and uint8: of tensors of score functions
// alone.
enum class DType : int {
  fp32 = 0,
  fp16 = 1,
  bf16 = 2,
  boolean = 3,
  int32 = 4,
  int64 = 10,
  int8 = 11,
  uint8 = 12
};
// "fp16", and the bytes of an element.
FULMEN_API const char* to_string(DType dtype) noexcept;
constexpr int64_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::int64:
      return 8;
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::boolean:
    case DType::int8:
    case DType::uint8:
      return 1;
    default:
      return 2;
  }
}

// A view of memory that is only read, made of a pointer to const. It serves as an input; as an
// output it does not compile.
struct ConstTensor {
  const void* data = nullptr;
  DType dtype = DType::fp32;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};
};

// Four logical dims with strides counted in elements. q, k, v and out use the order
// [batch, seqlen, head, head_dim] whatever their order in memory; bias and keep_mask use
// [batch, head, seqlen_q, seqlen_k]. The last dim is contiguous (stride 1).
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};

  // What a view of a Data, which is a pointer, is: of one to const a ConstTensor.
  template <class Data>
  using Of = std::conditional_t<std::is_const_v<std::remove_pointer_t<Data>>, ConstTensor, Tensor>;

  // The usual views.
  // Memory order [batch, seqlen, head, head_dim]: also the interleaved
  // [batch, seqlen, head * head_dim] of chess engines.
  template <class Data>
  static Of<Data> bshd(Data data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads,
                       int64_t head_dim) noexcept {
    return {data, dtype, {batch, seqlen, heads, head_dim}, bshd_strides(seqlen, heads, head_dim)};
  }
  // Memory order [batch, head, seqlen, head_dim], still viewed as [batch, seqlen, head, head_dim].
  template <class Data>
  static Of<Data> bhsd(Data data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads,
                       int64_t head_dim) noexcept {
    return {data, dtype, {batch, seqlen, heads, head_dim}, bhsd_strides(seqlen, heads, head_dim)};
  }
  // Row-major bias or mask [batch, head, seqlen_q, seqlen_k]. A dim given as 1 is broadcast (its
  // stride becomes 0). lse and dlse have seqlen_k 1.
  template <class Data>
  static Of<Data> bhqk(Data data, DType dtype, int64_t batch, int64_t heads, int64_t seqlen_q,
                       int64_t seqlen_k) noexcept {
    return {data,
            dtype,
            {batch, heads, seqlen_q, seqlen_k},
            bhqk_strides(batch, heads, seqlen_q, seqlen_k)};
  }
  // [n]: sinks and alibi_slopes (n heads), cu_seqlens (batch + 1), seqlens_k and leftpad_k (batch).
  template <class Data>
  static Of<Data> vector(Data data, DType dtype, int64_t n) noexcept {
    return bhqk(data, dtype, 1, 1, 1, n);
  }
  // Row-major [rows, columns]: block_table (batch, max_pages), rotary_cos and rotary_sin
  // (positions, rotary_dim / 2).
  template <class Data>
  static Of<Data> matrix(Data data, DType dtype, int64_t rows, int64_t columns) noexcept {
    return bhqk(data, dtype, 1, 1, rows, columns);
  }

 private:
  using Strides = std::array<int64_t, 4>;
  static FULMEN_API Strides bshd_strides(int64_t seqlen, int64_t heads, int64_t head_dim) noexcept;
  static FULMEN_API Strides bhsd_strides(int64_t seqlen, int64_t heads, int64_t head_dim) noexcept;
  static FULMEN_API Strides bhqk_strides(int64_t batch, int64_t heads, int64_t seqlen_q,
                                         int64_t seqlen_k) noexcept;
};

// A call's input: any view. The library reads its data and never writes it.
struct InputTensor : Tensor {
  InputTensor() = default;  // NOLINTBEGIN(google-explicit-constructor): an input is any view
  InputTensor(const Tensor& tensor) noexcept : Tensor(tensor) {}
  InputTensor(const ConstTensor& tensor) noexcept
      : InputTensor(tensor.data, tensor.dtype, tensor.shape, tensor.strides) {}
  InputTensor(const void* data, DType dtype, const std::array<int64_t, 4>& shape,
              const std::array<int64_t, 4>& strides) noexcept
      : Tensor{const_cast<void*>(data), dtype, shape, strides} {}
  // NOLINTEND(google-explicit-constructor)
};

// "fp16 [2, 64, 24, 32] strides [49152, 768, 32, 1]"
FULMEN_API std::string to_string(const Tensor& tensor);

}  // namespace fulmen
