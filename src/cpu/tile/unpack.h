// Rows of k and v of any dtype as fp32 numbers: what is stored, times its scales. A tile of one
// head is brought to L1 so, and the products read it there.
#pragma once

#include <cstdint>

#include "cpu/tile/call.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// For rows that nothing is fetched beside.
struct NoLinesAhead {
  template <class Isa>
  FULMEN_INLINE void lines(int /*count*/) const {}
};

// The compiler's vectors of so many lanes. g++ takes no size that depends on a template's parameter.
template <int kLanes>
struct ByteVectors;
template <>
struct ByteVectors<4> {
  using Bytes = uint8_t __attribute__((vector_size(4)));
  using Signed = int8_t __attribute__((vector_size(4)));
  using Words = uint32_t __attribute__((vector_size(16)));
  using Ints = int32_t __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(16)));
};
template <>
struct ByteVectors<8> {
  using Bytes = uint8_t __attribute__((vector_size(8)));
  using Signed = int8_t __attribute__((vector_size(8)));
  using Words = uint32_t __attribute__((vector_size(32)));
  using Ints = int32_t __attribute__((vector_size(32)));
  using Floats = float __attribute__((vector_size(32)));
};
template <>
struct ByteVectors<16> {
  using Bytes = uint8_t __attribute__((vector_size(16)));
  using Signed = int8_t __attribute__((vector_size(16)));
  using Words = uint32_t __attribute__((vector_size(64)));
  using Ints = int32_t __attribute__((vector_size(64)));
  using Floats = float __attribute__((vector_size(64)));
};
using Fp8Chunk = uint8_t __attribute__((vector_size(32)));
using Fp8Halves = uint16_t __attribute__((vector_size(64)));

// Bytes become numbers a vector at a time.
template <class Isa>
struct UnpackBytes {
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kChunk = sizeof(Fp8Chunk);
  using Vec = typename Isa::Vec;
  using Bytes = typename ByteVectors<kLanes>::Bytes;
  using Signed = typename ByteVectors<kLanes>::Signed;
  using Words = typename ByteVectors<kLanes>::Words;
  using Ints = typename ByteVectors<kLanes>::Ints;
  using Floats = typename ByteVectors<kLanes>::Floats;

  template <class Vector>
  static FULMEN_INLINE Vector load(const uint8_t* p) {
    Vector x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static FULMEN_INLINE Vec floats(Ints x) {
    return __builtin_bit_cast(Vec, __builtin_convertvector(x, Floats));
  }
  static FULMEN_INLINE Vec int8_numbers(const uint8_t* p) {
    return floats(__builtin_convertvector(load<Signed>(p), Ints));
  }

  // kChunk numbers of fp8 as fp16 with the same digits, but for a power of two: fp8_factor.
  template <DType kDType>
  static FULMEN_INLINE void fp8_halves(const uint8_t* p, Fp16* to) {
    using Halves = Fp8Halves;
    Fp8Chunk bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    const Halves x = __builtin_convertvector(bytes, Halves);
    const Halves size = x & 0x7F, sign = (x & 0x80) << 8;
    Halves half;
    if constexpr (kDType == DType::fp8_e5m2) {
      half = x << 8;
    } else if constexpr (kDType == DType::fp8_e5m2fnuz) {
      // Half of what fp16 says; the two lowest exponents are its subnormal numbers.
      const Halves low = reinterpret_cast<Halves>(size < 8);
      half = sign | (low & (size << 7)) | (~low & ((size << 8) - 0x400));
    } else {
      half = sign | size << 7;
    }
    if constexpr (kDType != DType::fp8_e5m2) {
      const Halves nan = kDType == DType::fp8_e4m3 ? reinterpret_cast<Halves>(size == 0x7F)
                                                   : reinterpret_cast<Halves>(x == 0x80);
      half |= nan & 0x7E00;
    }
    __builtin_memcpy(to, &half, sizeof half);
  }
  static constexpr float fp8_factor(DType dtype) {
    return dtype == DType::fp8_e4m3 ? 0x1p8F : dtype == DType::fp8_e4m3fnuz ? 0x1p7F : 1.0F;
  }

  // The numbers of a block: kLanes at a time to put(index, numbers).
  template <DType kDType, class Put>
  static FULMEN_INLINE void block_numbers(const uint8_t* block, const Put& put) {
    const Vec d = half_at(block);
    if constexpr (kDType == DType::q8_0) {
#pragma GCC unroll 8
      for (int i = 0; i < kBlockNumbers; i += kLanes)
        put(i, Isa::mul(int8_numbers(block + 2 + i), d));
    } else {
      constexpr bool kFifth = kDType == DType::q5_0 || kDType == DType::q5_1,
                     kMinimum = kDType == DType::q4_1 || kDType == DType::q5_1;
      constexpr int kHead = kMinimum ? 4 : 2, kZero = kMinimum ? 0 : kFifth ? 16 : 8;
      const Vec minimum = kMinimum ? half_at(block + 2) : Isa::zero();
      uint32_t fifth = 0;
      if constexpr (kFifth) __builtin_memcpy(&fifth, block + kHead, sizeof fifth);
      const uint8_t* codes = block + kHead + (kFifth ? 4 : 0);
      Words lane;
      for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<uint32_t>(i);
#pragma GCC unroll 8
      for (int i = 0; i < kBlockNumbers; i += kLanes) {
        const Words both = __builtin_convertvector(load<Bytes>(codes + i % 16), Words);
        Words code = i < 16 ? both & 15U : both >> 4;
        if constexpr (kFifth) code |= ((Words{} + (fifth >> i)) >> lane & 1U) << 4;
        const Vec product = Isa::mul(floats(reinterpret_cast<Ints>(code) - kZero), d);  // exact
        put(i, kMinimum ? Isa::add(product, minimum) : product);
      }
    }
  }
  static FULMEN_INLINE Vec half_at(const uint8_t* p) { return Isa::set1(half_number(p)); }
  // One fp16, at any address.
  static FULMEN_INLINE float half_number(const void* p) {
    uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    const uint32_t sign = (half & 0x8000U) << 16, magnitude = (half & 0x7FFFU) << 13;
    // The exponent is 112 too small; the product is exact, for subnormals too.
    const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112F;
    const uint32_t bits =
        magnitude >= 0x0F800000U ? magnitude | 0x7F800000U : __builtin_bit_cast(uint32_t, scaled);
    return __builtin_bit_cast(float, bits | sign);
  }
};

// One KV head's rows of k or of v, of one task.
template <class Isa>
class UnpackedRows {
  using Vec = typename Isa::Vec;
  using Unpack = UnpackBytes<Isa>;
  static constexpr int kLanes = Isa::kLanes;

 public:
  enum class Of { k, v };
  __attribute__((noinline)) UnpackedRows(const ForwardCall& call, Of of, int64_t batch,
                                         int64_t kv_head)
      : call_(call),
        spec_(of == Of::k ? call.problem->k : call.problem->v),
        scale_spec_(of == Of::k ? call.problem->k_scale : call.problem->v_scale),
        dtype_(of == Of::k ? call.problem->k_dtype : call.problem->v_dtype),
        dim_(of == Of::k ? call.problem->head_dim : call.problem->head_dim_v),
        row_bytes_(row_elements(dtype_, dim_) * size_of(dtype_)) {
    const AttentionTensors& t = *call.tensors;
    const bool paged = call.pages.pages != nullptr;
    data_ = element_address(of == Of::k ? t.k : t.v, spec_, size_of(dtype_), paged ? 0 : batch, 0,
                            kv_head);
    const Problem& p = *call.problem;
    if (of == Of::k && p.q_scale.present)
      factor_ = number(t.q_scale.data, p.q_scale.dtype,
                       batch * p.q_scale.strides[0] + kv_head * p.q_scale.strides[2]);
    if (!scale_spec_.present) return;
    scales_ = of == Of::k ? t.k_scale.data : t.v_scale.data;
    of_token_ = scale_spec_.strides[1] != 0;
    scale_ = (paged && of_token_ ? 0 : batch * scale_spec_.strides[0]) +
             kv_head * scale_spec_.strides[2];
    of_channel_ = scale_spec_.strides[3] != 0;
    for (int64_t d = 0; of_channel_ && d < dim_; ++d)
      channels_[d] = number(scales_, scale_spec_.dtype, scale_ + d) * factor_;
  }

  // Rows [first, first + count), count > 0, to out, `stride` floats apart, with zeros to the end of
  // the last vector. Rows whose alive is 0 become zeros; null: all are there. ahead fetches a line
  // for each that is read.
  template <class Ahead>
  __attribute__((noinline)) void load(int64_t first, int count, float* out, int64_t stride,
                                      const uint8_t* alive, Ahead& ahead) const {
    const bool paged = call_.pages.pages != nullptr, paged_scale = paged && of_token_;
    const PageTable table = call_.pages;
    const int64_t bytes = size_of(dtype_);
    int64_t at = paged ? 0 : first * spec_.strides[1],
            scale = scale_ + (of_token_ && !paged ? first * scale_spec_.strides[1] : 0);
    float of_all = factor_;
    if (scales_ != nullptr && !of_token_ && !of_channel_)
      of_all *= number(scales_, scale_spec_.dtype, scale);
    int64_t page = 0, row = 0;
    if (paged) {
      page = (table.first_row + first) / table.page_size;
      row = (table.first_row + first) % table.page_size;
    }
    int64_t due = 0;
    for (int i = 0; i < count; ++i, out += stride) {
      if (paged) {
        at = table.pages[page] * spec_.strides[0] + row * spec_.strides[1];
        if (paged_scale)
          scale =
              scale_ + table.pages[page] * scale_spec_.strides[0] + row * scale_spec_.strides[1];
        if (++row == table.page_size) {
          row = 0;
          ++page;
        }
      }
      const float of_row = of_token_ ? number(scales_, scale_spec_.dtype, scale) * factor_ : of_all;
      const auto* from = reinterpret_cast<const uint8_t*>(data_ + at * bytes);
      if (alive != nullptr && alive[i] == 0) {
        for (int64_t d = 0; d < dim_; d += kLanes) Isa::store(out + d, Isa::zero());
      } else {
        unpack(from, of_row, out);
      }
      due += row_bytes_;
      ahead.template lines<Isa>(static_cast<int>(due / 64));
      due %= 64;
      if (!paged) {
        at += spec_.strides[1];
        if (of_token_) scale += scale_spec_.strides[1];
      }
    }
  }

 private:
  static FULMEN_INLINE float number(const void* data, DType dtype, int64_t index) {
    if (dtype == DType::fp32) return static_cast<const float*>(data)[index];
    return Unpack::half_number(static_cast<const Fp16*>(data) + index);
  }

  FULMEN_INLINE void unpack(const uint8_t* row, float scale, float* out) const {
    switch (dtype_) {
      case DType::fp32:
        return unpack_elements<float>(row, scale, out);
      case DType::fp16:
        return unpack_elements<Fp16>(row, scale, out);
      case DType::bf16:
        return unpack_elements<Bf16>(row, scale, out);
      case DType::int8:
        return unpack_int8(row, scale, out);
      case DType::fp8_e4m3:
        return unpack_fp8<DType::fp8_e4m3>(row, scale, out);
      case DType::fp8_e5m2:
        return unpack_fp8<DType::fp8_e5m2>(row, scale, out);
      case DType::fp8_e4m3fnuz:
        return unpack_fp8<DType::fp8_e4m3fnuz>(row, scale, out);
      case DType::fp8_e5m2fnuz:
        return unpack_fp8<DType::fp8_e5m2fnuz>(row, scale, out);
      case DType::q8_0:
        return unpack_blocks<DType::q8_0>(row, scale, out);
      case DType::q4_0:
        return unpack_blocks<DType::q4_0>(row, scale, out);
      case DType::q4_1:
        return unpack_blocks<DType::q4_1>(row, scale, out);
      case DType::q5_0:
        return unpack_blocks<DType::q5_0>(row, scale, out);
      case DType::q5_1:
        return unpack_blocks<DType::q5_1>(row, scale, out);
      default:
        return;
    }
  }
  // kLanes numbers from the d-th on, times their scale.
  FULMEN_INLINE void put(int64_t d, Vec numbers, float scale, float* out) const {
    Isa::store(out + d,
               Isa::mul(numbers, of_channel_ ? Isa::load(channels_ + d) : Isa::set1(scale)));
  }
  // What a scale of NaN or infinity makes of lanes past the last number.
  FULMEN_INLINE void clear_rest(float* out) const {
    for (int64_t d = dim_; d % kLanes != 0; ++d) out[d] = 0.0F;
  }

  template <class T>
  __attribute__((noinline)) void unpack_elements(const uint8_t* row, float scale,
                                                 float* out) const {
    const T* from = reinterpret_cast<const T*>(row);
    int64_t d = 0;
    for (; d + kLanes <= dim_; d += kLanes) put(d, Isa::load_as_float(from + d), scale, out);
    if (d == dim_) return;
    put(d, Isa::load_as_float(from + d, static_cast<int>(dim_ - d)), scale, out);
    clear_rest(out);
  }
  __attribute__((noinline)) void unpack_int8(const uint8_t* row, float scale, float* out) const {
    int64_t d = 0;
    for (; d + kLanes <= dim_; d += kLanes) put(d, Unpack::int8_numbers(row + d), scale, out);
    if (d == dim_) return;
    uint8_t rest[kLanes] = {};
    for (int64_t i = d; i < dim_; ++i) rest[i - d] = row[i];
    put(d, Unpack::int8_numbers(rest), scale, out);
    clear_rest(out);
  }
  template <DType kDType>
  __attribute__((noinline)) void unpack_fp8(const uint8_t* row, float scale, float* out) const {
    constexpr int kChunk = Unpack::kChunk;
    constexpr float kFactor = Unpack::fp8_factor(kDType);
    Fp16 halves[kChunk];
    for (int64_t d = 0; d < dim_; d += kChunk) {
      if (d + kChunk <= dim_) {
        Unpack::template fp8_halves<kDType>(row + d, halves);
      } else {
        uint8_t rest[kChunk] = {};
        for (int64_t i = d; i < dim_; ++i) rest[i - d] = row[i];
        Unpack::template fp8_halves<kDType>(rest, halves);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i += kLanes) {
        if (d + i >= dim_) break;
        Vec numbers = Isa::load_as_float(halves + i);
        if constexpr (kFactor != 1.0F) numbers = Isa::mul(numbers, Isa::set1(kFactor));  // exact
        put(d + i, numbers, scale, out);
      }
    }
    clear_rest(out);
  }
  template <DType kDType>
  __attribute__((noinline)) void unpack_blocks(const uint8_t* row, float scale, float* out) const {
    for (int64_t d = 0; d < dim_; d += kBlockNumbers, row += block_bytes(kDType)) {
      Unpack::template block_numbers<kDType>(
          row, [&](int i, Vec numbers)
                   __attribute__((always_inline)) { put(d + i, numbers, scale, out); });
    }
  }

  const ForwardCall& call_;
  const TensorSpec& spec_;
  const TensorSpec& scale_spec_;
  DType dtype_;
  int64_t dim_;
  int64_t row_bytes_;
  const char* data_ = nullptr;  // of the head's first row
  const void* scales_ = nullptr;
  int64_t scale_ = 0;  // of the head's first scale
  bool of_token_ = false;
  bool of_channel_ = false;
  float factor_ = 1;  // q_scale
  alignas(64) float channels_[round_up(kMaxHeadDim, kLanes)] = {};
};

}  // namespace fulmen::cpu
