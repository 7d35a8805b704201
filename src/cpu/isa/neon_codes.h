// What NEON's products of int8 share. By assembly: around their intrinsics g++ 12 copies each sum
// twice.
#pragma once

#include "cpu/isa/neon.h"
#include "cpu/isa/numbers_for.h"
#include "cpu/tile/key_codes.h"

namespace fulmen::cpu {

// Set: the instruction set's, so that these functions are its own.
template <class Set>
struct NeonCodes : NumbersFor<Set, Neon> {
  using Numbers = NumbersFor<Set, Neon>;
  using Vec = Neon::Vec;
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 0;

  static Vec number(Vec sum) { return vcvtq_f32_s32(vreinterpretq_s32_f32(sum)); }
  static Vec code(Vec rounded) { return Neon::sub(rounded, Neon::set1(kCodeOrigin)); }
  // The lowest byte of a rounded number is its code.
  static void store_codes(float* to, Vec rounded) {
    const int16x4_t halves = vmovn_s32(vreinterpretq_s32_f32(rounded));
    const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
    vst1_lane_f32(to, vreinterpret_f32_s8(bytes), 0);
  }
  static void store_key_codes(float* to, Vec rounded) { store_codes(to, rounded); }
};

}  // namespace fulmen::cpu
