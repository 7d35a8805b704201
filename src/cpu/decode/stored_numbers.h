// Numbers of keys and values straight from how they are stored, kBlockNumbers at a time, in
// registers. What is the same for all of them, a factor, is left to the finished products.
#pragma once

#include <cstdint>

#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"
#include "cpu/tile/unpack.h"

namespace fulmen::cpu {

template <class Isa, DType kDType>
struct StoredNumbers {
  using Vec = typename Isa::Vec;
  using Unpack = UnpackBytes<Isa>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kVecs = kBlockNumbers / kLanes;
  static constexpr bool kIsBlock = block_bytes(kDType) != 0;
  static constexpr bool kIsFp8 = kDType == DType::fp8_e4m3 || kDType == DType::fp8_e5m2 ||
                                 kDType == DType::fp8_e4m3fnuz || kDType == DType::fp8_e5m2fnuz;
  // Of kBlockNumbers numbers.
  static constexpr int kBytes =
      kIsBlock ? block_bytes(kDType) : kBlockNumbers * static_cast<int>(size_of(kDType));
  static constexpr float kFactor = kIsFp8 ? Unpack::fp8_factor(kDType) : 1.0F;

  static FULMEN_INLINE void load(const uint8_t* p, Vec (&x)[kVecs]) {
    if constexpr (kIsFp8) {
      load_fp8(p, x);
    } else if constexpr (kIsBlock && kDType != DType::q8_0) {
      load_nibbles(p, x);
    } else if constexpr (kIsBlock) {
      Unpack::template block_numbers<kDType>(
          p, [&](int i, Vec numbers) __attribute__((always_inline)) { x[i / kLanes] = numbers; });
    } else if constexpr (kDType == DType::int8) {
      load_elements(reinterpret_cast<const int8_t*>(p), x);
    } else if constexpr (kDType == DType::fp16) {
      load_elements(reinterpret_cast<const Fp16*>(p), x);
    } else if constexpr (kDType == DType::bf16) {
      load_elements(reinterpret_cast<const Bf16*>(p), x);
    } else {
      load_elements(reinterpret_cast<const float*>(p), x);
    }
  }

 private:
  template <class T>
  static FULMEN_INLINE void load_elements(const T* p, Vec (&x)[kVecs]) {
#pragma GCC unroll 32
    for (int i = 0; i < kVecs; ++i) x[i] = Isa::load_as_float(p + i * kLanes);
  }
  static FULMEN_INLINE void load_fp8(const uint8_t* p, Vec (&x)[kVecs]) {
    Fp8Halves halves;
    Unpack::template fp8_halves<kDType>(p, halves);
    if constexpr (requires { Isa::halves_as_float(halves, x); }) {
      Isa::halves_as_float(halves, x);
    } else {
      Fp16 stored[kBlockNumbers];
      __builtin_memcpy(stored, &halves, sizeof stored);
      load_elements(stored, x);
    }
  }
  // A table of all numbers of the block, where a set looks up 16 at once.
  static FULMEN_INLINE void load_nibbles(const uint8_t* p, Vec (&x)[kVecs]) {
    constexpr bool kFifth = kDType == DType::q5_0 || kDType == DType::q5_1,
                   kMinimum = kDType == DType::q4_1 || kDType == DType::q5_1;
    constexpr int kHead = kMinimum ? 4 : 2;
    if constexpr (requires { Isa::look_up_nibbles(p, Vec{}, x); }) {
      const Vec d = Isa::half_as_float(p);
      const auto numbers = [&](Vec codes) __attribute__((always_inline)) {
        return kMinimum ? Isa::fma(codes, d, Isa::half_as_float(p + 2)) : Isa::mul(codes, d);
      };
      const Vec low =
          numbers(kMinimum ? Isa::iota() : Isa::sub(Isa::iota(), Isa::set1(kFifth ? 16.0F : 8.0F)));
      if constexpr (kFifth) {
        const Vec high = numbers(kMinimum ? Isa::add(Isa::iota(), Isa::set1(16.0F)) : Isa::iota());
        Isa::look_up_nibbles(p + kHead + 4, p + kHead, low, high, x);
      } else {
        Isa::look_up_nibbles(p + kHead, low, x);
      }
    } else {
      Unpack::template block_numbers<kDType>(
          p, [&](int i, Vec numbers) __attribute__((always_inline)) { x[i / kLanes] = numbers; });
    }
  }
};

}  // namespace fulmen::cpu
