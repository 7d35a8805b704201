// Rows of k and v of any dtype as fp32 numbers: what is stored, times its scales. A tile of one
// head is brought to L1 so, and the products read it there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu/tile/call.h"
#include "cpu/tile/key_rows.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// For rows that nothing is fetched beside.
struct NoLinesAhead {
  template <class Isa>
  FULMEN_INLINE void lines(int /*count*/) const {}
};

// The compiler's vectors, of more than one instruction where a set's are narrower.
using Fp8Chunk = uint8_t __attribute__((vector_size(32)));
using Fp8Halves = uint16_t __attribute__((vector_size(64)));
using Fp8SignedChunk = int8_t __attribute__((vector_size(32)));
using Fp8SignedHalves = int16_t __attribute__((vector_size(64)));

template <DType kDType>
constexpr bool kIsFp8 = kDType == DType::fp8_e4m3 || kDType == DType::fp8_e5m2 ||
                        kDType == DType::fp8_e4m3fnuz || kDType == DType::fp8_e5m2fnuz;
// An element, where that has a type.
template <DType kDType>
using StoredElement =
    std::conditional_t<kDType == DType::fp32, float,
                       std::conditional_t<kDType == DType::fp16, Fp16,
                                          std::conditional_t<kDType == DType::bf16, Bf16, int8_t>>>;
// A block of nibbles: [d] [m] [fifth bits] [16 bytes].
template <DType kDType>
struct NibbleBlock {
  static constexpr bool kFifth = kDType == DType::q5_0 || kDType == DType::q5_1,
                        kMinimum = kDType == DType::q4_1 || kDType == DType::q5_1;
  static constexpr int kHead = kMinimum ? 4 : 2;   // bytes before the fifth bits
  static constexpr float kZero = kFifth ? 16 : 8;  // the code of 0, without a minimum
};

// Bytes become numbers a vector at a time.
template <class Isa>
struct UnpackBytes {
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kChunk = sizeof(Fp8Chunk);
  using Vec = typename Isa::Vec;
  // kChunk numbers of fp8 as fp16 with the same digits, but for a power of two: fp8_factor.
  template <DType kDType>
  static FULMEN_INLINE void fp8_halves(const uint8_t* p, Fp8Halves& half) {
    using Halves = Fp8Halves;
    if constexpr (kDType == DType::fp8_e4m3) {
      // The sign in both highest bits; the exponent is fp16's without its highest one.
      Fp8SignedChunk bytes;
      __builtin_memcpy(&bytes, p, sizeof bytes);
      const Fp8SignedHalves wide = __builtin_convertvector(bytes, Fp8SignedHalves);
      half = (reinterpret_cast<Halves>(wide) << 7) & 0xBFFF;
      half |= reinterpret_cast<Halves>((half & 0x3F80) == 0x3F80) & 0x7E00;
    } else {
      Fp8Chunk bytes;
      __builtin_memcpy(&bytes, p, sizeof bytes);
      const Halves x = __builtin_convertvector(bytes, Halves);
      const Halves size = x & 0x7F, sign = (x & 0x80) << 8;
      if constexpr (kDType == DType::fp8_e5m2) {
        half = x << 8;
      } else if constexpr (kDType == DType::fp8_e5m2fnuz) {
        // Half of what fp16 says; the two lowest exponents are its subnormal numbers.
        const Halves low = reinterpret_cast<Halves>(size < 8);
        half = sign | (low & (size << 7)) | (~low & ((size << 8) - 0x400));
      } else {
        half = sign | size << 7;
      }
      if constexpr (kDType != DType::fp8_e5m2) half |= reinterpret_cast<Halves>(x == 0x80) & 0x7E00;
    }
  }
  static constexpr float fp8_factor(DType dtype) {
    return dtype == DType::fp8_e4m3 ? 0x1p8F : dtype == DType::fp8_e4m3fnuz ? 0x1p7F : 1.0F;
  }

  // The numbers of a block: kLanes at a time to put(index, numbers).
  template <DType kDType, class Put>
  static FULMEN_INLINE void block_numbers(const uint8_t* block, const Put& put) {
    const Vec d = half_at(block);
    if constexpr (kDType == DType::q8_0) {
      const auto* codes = reinterpret_cast<const int8_t*>(block + 2);
#pragma GCC unroll 8
      for (int i = 0; i < kBlockNumbers; i += kLanes)
        put(i, Isa::mul(Isa::load_as_float(codes + i), d));
    } else {
      using Format = NibbleBlock<kDType>;
      uint8_t codes[kBlockNumbers];
      spread_nibbles<Format::kFifth>(block + Format::kHead, codes);
      const Vec minimum = Format::kMinimum ? half_at(block + 2) : Isa::zero();
#pragma GCC unroll 8
      for (int i = 0; i < kBlockNumbers; i += kLanes) {
        const Vec code = Isa::load_as_float(codes + i);
        // The product is exact.
        put(i, Format::kMinimum ? Isa::fma(code, d, minimum)
                                : Isa::mul(Isa::sub(code, Isa::set1(Format::kZero)), d));
      }
    }
  }
  // 16 bytes of nibbles, after 4 of fifth bits where there are some, to a byte a number.
  template <bool kFifth>
  static FULMEN_INLINE void spread_nibbles(const uint8_t* from, uint8_t* codes) {
    using Half = uint8_t __attribute__((vector_size(16)));
    const uint8_t* nibbles = from + (kFifth ? 4 : 0);
    Half both;
    __builtin_memcpy(&both, nibbles, sizeof both);
    Half halves[2] = {both & 15, both >> 4};
    if constexpr (kFifth) {
      // Each of the 4 bytes eight times, of which every place keeps another bit.
      constexpr Half kBits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
      for (int n = 0; n < 2; ++n) {
        const uint64_t eight[2] = {from[2 * n] * 0x0101010101010101U,
                                   from[2 * n + 1] * 0x0101010101010101U};
        Half bits;
        __builtin_memcpy(&bits, eight, sizeof bits);
        halves[n] |= reinterpret_cast<Half>((bits & kBits) != 0) & 16;
      }
    }
    __builtin_memcpy(codes, halves, sizeof halves);
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

// body(std::integral_constant of the dtype).
template <class Body>
FULMEN_INLINE void with_stored_dtype(DType dtype, const Body& body) {
  const auto take = [&]<DType kDType>() __attribute__((always_inline)) {
    body(std::integral_constant<DType, kDType>());
  };
  switch (dtype) {
    case DType::fp32:
      return take.template operator()<DType::fp32>();
    case DType::fp16:
      return take.template operator()<DType::fp16>();
    case DType::bf16:
      return take.template operator()<DType::bf16>();
    case DType::int8:
      return take.template operator()<DType::int8>();
    case DType::fp8_e4m3:
      return take.template operator()<DType::fp8_e4m3>();
    case DType::fp8_e5m2:
      return take.template operator()<DType::fp8_e5m2>();
    case DType::fp8_e4m3fnuz:
      return take.template operator()<DType::fp8_e4m3fnuz>();
    case DType::fp8_e5m2fnuz:
      return take.template operator()<DType::fp8_e5m2fnuz>();
    case DType::q8_0:
      return take.template operator()<DType::q8_0>();
    case DType::q4_0:
      return take.template operator()<DType::q4_0>();
    case DType::q4_1:
      return take.template operator()<DType::q4_1>();
    case DType::q5_0:
      return take.template operator()<DType::q5_0>();
    case DType::q5_1:
      return take.template operator()<DType::q5_1>();
    default:
      return;
  }
}

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
    if (!of_channel_) return;
    for (int64_t d = 0; d < dim_; ++d)
      channels_[d] = number(scales_, scale_spec_.dtype, scale_ + d) * factor_;
    for (int64_t d = dim_; d % kLanes != 0; ++d) channels_[d] = 0;
  }

  // [dim] where each channel has a scale, else null.
  FULMEN_INLINE const float* channels() const { return of_channel_ ? channels_ : nullptr; }

  // Whether a row's numbers have something in common, but for channels' scales.
  FULMEN_INLINE bool has_row_scales() const {
    return !of_channel_ && (scales_ != nullptr || factor_ != 1.0F);
  }
  // That of rows [first, first + count), times `factor`. Returns whether each is ordinary, so that
  // a product of codes may be multiplied with it afterwards.
  __attribute__((noinline)) bool scales_of_rows(int64_t first, int count, float factor,
                                                float* out) const {
    if (!of_channel_) factor *= factor_;
    if (scales_ == nullptr || !of_token_) {
      if (scales_ != nullptr && !of_channel_) factor *= number(scales_, scale_spec_.dtype, scale_);
      for (int i = 0; i < count; ++i) out[i] = factor;
      return is_ordinary(factor);
    }
    bool ordinary = true;
    const auto put = [&](int i, int64_t index) __attribute__((always_inline)) {
      const float scale = number(scales_, scale_spec_.dtype, index) * factor;
      out[i] = scale;
      ordinary &= is_ordinary(scale);
    };
    if (call_.pages.pages == nullptr) {
      const int64_t stride = scale_spec_.strides[1];
      for (int i = 0; i < count; ++i) put(i, scale_ + (first + i) * stride);
      return ordinary;
    }
    PageWalk walk(call_.pages, scale_spec_, first);
    for (int i = 0;; walk.next()) {
      put(i, scale_ + walk.offset());
      if (++i == count) return ordinary;
    }
  }
  // Neither so large nor so small that sums of codes times numbers of the same kind leave fp32.
  static FULMEN_INLINE bool is_ordinary(float x) {
    constexpr unsigned kBias = 127, kMost = 40;
    const unsigned exponent = __builtin_bit_cast(uint32_t, x) >> 23 & 0xFF;
    return exponent - (kBias - kMost) <= 2 * kMost;
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
    with_stored_dtype(dtype_, [&](auto dtype) __attribute__((always_inline)) {
      constexpr DType kDType = dtype();
      if constexpr (block_bytes(kDType) != 0) {
        unpack_blocks<kDType>(row, scale, out);
      } else if constexpr (kIsFp8<kDType>) {
        unpack_fp8<kDType>(row, scale, out);
      } else if constexpr (kDType == DType::int8) {
        unpack_int8(row, scale, out);
      } else {
        unpack_elements<StoredElement<kDType>>(row, scale, out);
      }
    });
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
    const auto* from = reinterpret_cast<const int8_t*>(row);
    int64_t d = 0;
    for (; d + kLanes <= dim_; d += kLanes) put(d, Isa::load_as_float(from + d), scale, out);
    if (d == dim_) return;
    int8_t rest[kLanes] = {};
    for (int64_t i = d; i < dim_; ++i) rest[i - d] = from[i];
    put(d, Isa::load_as_float(rest), scale, out);
    clear_rest(out);
  }
  template <DType kDType>
  __attribute__((noinline)) void unpack_fp8(const uint8_t* row, float scale, float* out) const {
    constexpr int kChunk = Unpack::kChunk;
    constexpr float kFactor = Unpack::fp8_factor(kDType);
    Fp16 halves[kChunk];
    for (int64_t d = 0; d < dim_; d += kChunk) {
      Fp8Halves chunk;
      if (d + kChunk <= dim_) {
        Unpack::template fp8_halves<kDType>(row + d, chunk);
      } else {
        uint8_t rest[kChunk] = {};
        for (int64_t i = d; i < dim_; ++i) rest[i - d] = row[i];
        Unpack::template fp8_halves<kDType>(rest, chunk);
      }
      __builtin_memcpy(halves, &chunk, sizeof halves);
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
  alignas(64) float channels_[round_up(kMaxHeadDim, kLanes)];
};

}  // namespace fulmen::cpu
