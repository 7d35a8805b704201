// NEON with the dot products of Armv8.2: sdot adds the products of four signed bytes.
#pragma once

#include "cpu/isa/neon.h"
#include "cpu/isa/numbers_for.h"
#include "cpu/tile/key_codes.h"

namespace fulmen::cpu {

struct NeonDotprod : NumbersFor<struct NeonDotprodSet, Neon> {
  using Numbers = NumbersFor<NeonDotprodSet, Neon>;
  static constexpr const char* kName = "neon_dotprod";
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 0;

  static Vec dot(Vec sum, Vec a, Vec b) {
    return vreinterpretq_f32_s32(
        vdotq_s32(vreinterpretq_s32_f32(sum), vreinterpretq_s8_f32(a), vreinterpretq_s8_f32(b)));
  }
  static Vec number(Vec sum) { return vcvtq_f32_s32(vreinterpretq_s32_f32(sum)); }
  static Vec code(Vec rounded) { return sub(rounded, set1(kCodeOrigin)); }
  // The lowest byte of a rounded number is its code.
  static void store_codes(float* to, Vec rounded) {
    const int16x4_t halves = vmovn_s32(vreinterpretq_s32_f32(rounded));
    const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
    vst1_lane_f32(to, vreinterpret_f32_s8(bytes), 0);
  }
  static void store_key_codes(float* to, Vec rounded) { store_codes(to, rounded); }
};

}  // namespace fulmen::cpu
