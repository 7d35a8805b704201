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
  static constexpr int kBytes =  // that kBlockNumbers numbers take
      kIsBlock ? block_bytes(kDType) : kBlockNumbers * static_cast<int>(size_of(kDType));
  static constexpr float kFactor = kIsFp8<kDType> ? Unpack::fp8_factor(kDType) : 1.0F;

  static FULMEN_INLINE void load(const uint8_t* p, Vec (&x)[kVecs]) {
    if constexpr (kIsFp8<kDType>) {
      load_fp8(p, x);
    } else if constexpr (kIsBlock) {
      load_block(p, x);
    } else {
      load_elements(reinterpret_cast<const StoredElement<kDType>*>(p), x);
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
  // Nibbles by a table of all numbers of the block, where a set looks up 16 at once.
  static FULMEN_INLINE void load_block(const uint8_t* p, Vec (&x)[kVecs]) {
    if constexpr (kDType != DType::q8_0 && requires { Isa::look_up_nibbles(p, Vec{}, x); }) {
      using Format = NibbleBlock<kDType>;
      const Vec d = Isa::half_as_float(p);
      const auto numbers = [&](Vec codes) __attribute__((always_inline)) {
        return Format::kMinimum ? Isa::fma(codes, d, Isa::half_as_float(p + 2))
                                : Isa::mul(Isa::sub(codes, Isa::set1(Format::kZero)), d);
      };
      const Vec low = numbers(Isa::iota());
      if constexpr (Format::kFifth) {
        const Vec high = numbers(Isa::add(Isa::iota(), Isa::set1(16.0F)));
        Isa::look_up_nibbles(p + Format::kHead + 4, p + Format::kHead, low, high, x);
      } else {
        Isa::look_up_nibbles(p + Format::kHead, low, x);
      }
    } else {
      Unpack::template block_numbers<kDType>(
          p, [&](int i, Vec numbers) __attribute__((always_inline)) { x[i / kLanes] = numbers; });
    }
  }
};

}  // namespace fulmen::cpu
