// The vocabulary of NEON on AArch64 (armv8-a): vectors of 4 floats, 32 registers.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "algorithm/exp2_polynomial.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

struct Neon {
  using Vec = float32x4_t;
  static constexpr const char* kName = "neon";
  static constexpr int kLanes = 4;
  static constexpr int kGroup = 1;   // operand elements that share a 32-bit word: one fp32
  static constexpr int kQkVecs = 4;  // query vectors x key rows of the score product's register
                                     // block: 16 sums, 5 operands
  static constexpr int kQkKeys = 4;
  static constexpr int kPvVecs = 4;  // most output vectors of the second product's register block
  static constexpr int kPvRows = 4;  // its query rows; 8 where fewer than 3 vectors leave registers
                                     // free
  static constexpr int kPvRowsNarrow = 8;
  static constexpr int kSoftmaxVecs = 4;  // query vectors whose exponentials are computed together
  static constexpr int kExp2Degree = 5;

  static Vec zero() { return vdupq_n_f32(0); }
  static Vec set1(float x) { return vdupq_n_f32(x); }
  static Vec load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Vec x) { vst1q_f32(p, x); }
  static Vec broadcast(const float* p) { return vld1q_dup_f32(p); }
  static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }  // a b + c, rounded once
  static Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }        // a NaN in either is kept
  static Vec min(Vec a, Vec b) { return vminq_f32(a, b); }        // a NaN in either is kept
  static Vec abs(Vec a) { return vabsq_f32(a); }
  static Vec iota() { return Vec{0, 1, 2, 3}; }
  // x < y ? a : b, lane by lane; false on NaN.
  static Vec select_less(Vec x, Vec y, Vec a, Vec b) { return vbslq_f32(vcltq_f32(x, y), a, b); }
  // test == -inf ? a : b.
  static Vec select_minus_infinity(Vec test, Vec a, Vec b) {
    return vbslq_f32(vceqq_f32(test, set1(-__builtin_inff())), a, b);
  }
  static Vec replace_minus_infinity(Vec x, Vec by) { return select_minus_infinity(x, by, x); }
  static bool all_equal(Vec a, Vec b) { return vminvq_u32(vceqq_f32(a, b)) != 0; }
  static float reduce_add(Vec x) { return vaddvq_f32(x); }
  static float reduce_max(Vec x) { return vmaxvq_f32(x); }

  // 2^x; 0 for -inf and all below -127. x = n + f with n the nearest integer, which is added to the
  // exponent of 2^f. The integer of a NaN is 0. x stays under 128: scores come here less their
  // row's maximum.
  // Several vectors go through each step together: their chains of dependent instructions hide each
  // other's latency.
  template <int kDegree = kExp2Degree, int kCount>
  static __attribute__((always_inline)) void exp2(Vec (&x)[kCount]) {
    constexpr const float* kC = algorithm::Exp2Centered<kDegree>::kCoefficients;
    int32x4_t n[kCount];
    Vec p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = max(set1(-127.0F), x[i]);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) n[i] = vcvtnq_s32_f32(x[i]);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = sub(x[i], vcvtq_f32_s32(n[i]));
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) p[i] = fma(set1(kC[kDegree]), x[i], set1(kC[kDegree - 1]));
#pragma GCC unroll 8
    for (int power = kDegree - 2; power >= 0; --power) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) p[i] = fma(p[i], x[i], set1(kC[power]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i)
      x[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p[i]), vshlq_n_s32(n[i], 23)));
  }
  template <int kDegree = kExp2Degree>
  static __attribute__((always_inline)) Vec exp2(Vec x) {
    Vec one[1] = {x};
    exp2<kDegree>(one);
    return one[0];
  }

  // sum + the products of the words' elements.
  static Vec dot(Vec sum, Vec a, Vec b) { return vfmaq_f32(sum, a, b); }

  // n elements from p as floats, the rest of the lanes 0; reads nothing beyond them.
  static Vec load_as_float(const float* p) { return load(p); }
  static Vec load_as_float(const Fp16* p) { return widen_fp16(load_half(p)); }
  static Vec load_as_float(const Bf16* p) { return widen_bf16(load_half(p)); }
  static Vec load_as_float(const uint8_t* p) {  // booleans: 0 for false, above 0 for true
    return widen_bytes(load_as<uint32_t>(p));
  }
  static Vec load_as_float(const int8_t* p) {
    const int16x8_t halves = vmovl_s8(vcreate_s8(load_as<uint32_t>(p)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves)));
  }
  static Vec load_as_float(const float* p, int n) {
    if (n >= kLanes) return load(p);
    const float32x2_t none = vdup_n_f32(0);
    if (n < 2) return n < 1 ? zero() : vcombine_f32(vld1_lane_f32(p, none, 0), none);
    return vcombine_f32(vld1_f32(p), n < 3 ? none : vld1_lane_f32(p + 2, none, 0));
  }
  static Vec load_as_float(const Fp16* p, int n) { return widen_fp16(load_half(p, n)); }
  static Vec load_as_float(const Bf16* p, int n) { return widen_bf16(load_half(p, n)); }
  static Vec load_as_float(const uint8_t* p, int n) {
    uint32_t x = 0;
    if (n >= 4) return load_as_float(p);
    if (n >= 2) x = load_as<uint16_t>(p);
    if ((n & 1) != 0) x |= static_cast<uint32_t>(p[n - 1]) << (8 * (n - 1));
    return widen_bytes(x);
  }

  static void store_from_float(float* p, Vec x) { store(p, x); }
  static void store_from_float(Fp16* p, Vec x) { store_half(p, narrow_fp16(x)); }
  static void store_from_float(Bf16* p, Vec x) { store_half(p, narrow_bf16(x)); }
  static void store_from_float(float* p, Vec x, int n) {
    if (n >= kLanes) return store(p, x);
    if (n >= 2) vst1_f32(p, vget_low_f32(x));
    if (n == 1) vst1q_lane_f32(p, x, 0);
    if (n == 3) vst1q_lane_f32(p + 2, x, 2);
  }
  static void store_from_float(Fp16* p, Vec x, int n) { store_half(p, narrow_fp16(x), n); }
  static void store_from_float(Bf16* p, Vec x, int n) { store_half(p, narrow_bf16(x), n); }

  // rows[i] lane j <-> rows[j] lane i.
  static __attribute__((always_inline)) void transpose(Vec (&rows)[4]) {
    const Vec ab_even = vtrn1q_f32(rows[0], rows[1]), ab_odd = vtrn2q_f32(rows[0], rows[1]);
    const Vec cd_even = vtrn1q_f32(rows[2], rows[3]), cd_odd = vtrn2q_f32(rows[2], rows[3]);
    rows[0] = low_pairs(ab_even, cd_even);
    rows[1] = low_pairs(ab_odd, cd_odd);
    rows[2] = high_pairs(ab_even, cd_even);
    rows[3] = high_pairs(ab_odd, cd_odd);
  }

  // Four vectors -> one that holds the four sums (maxima) across lanes.
  static Vec quad_add(const Vec (&x)[4]) {
    return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
  }
  static Vec quad_max(const Vec (&x)[4]) {
    return vpmaxq_f32(vpmaxq_f32(x[0], x[1]), vpmaxq_f32(x[2], x[3]));
  }
  static Vec load_quad(const float* p) { return load(p); }
  static void store_quad(float* p, Vec x) { store(p, x); }

  // An instruction of its own: g++ takes a function that only prefetches for one without effect,
  // and drops the call.
  static void prefetch(const void* p) {
    asm volatile("prfm pldl1keep, %0" : : "Q"(*static_cast<const char*>(p)));
  }

  // Four 16-bit elements, or the first n of them.
  static uint16x4_t load_half(const void* p) { return vcreate_u16(load_as<uint64_t>(p)); }
  static uint16x4_t load_half(const void* p, int n) {
    if (n >= kLanes) return load_half(p);
    const auto* from = static_cast<const char*>(p);
    uint64_t x = n >= 2 ? load_as<uint32_t>(from) : 0;
    if ((n & 1) != 0)
      x |= static_cast<uint64_t>(load_as<uint16_t>(from + 2 * (n - 1))) << (16 * (n - 1));
    return vcreate_u16(x);
  }
  static void store_half(void* p, uint16x4_t x) { std::memcpy(p, &x, sizeof(x)); }
  static void store_half(void* p, uint16x4_t x, int n) {
    if (n >= kLanes) return store_half(p, x);
    auto* to = static_cast<char*>(p);
    uint64_t bits = vget_lane_u64(vreinterpret_u64_u16(x), 0);
    if (n >= 2) {
      std::memcpy(to, &bits, 4);
      to += 4;
      bits >>= 32;
    }
    if ((n & 1) != 0) std::memcpy(to, &bits, 2);
  }
  template <class T>
  static T load_as(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }

  static Vec low_pairs(Vec a, Vec b) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static Vec high_pairs(Vec a, Vec b) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static Vec widen_bytes(uint32_t four) {
    const uint16x8_t halves = vmovl_u8(vcreate_u8(four));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves)));
  }
  static Vec widen_fp16(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
  static uint16x4_t narrow_fp16(Vec x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
  static Vec widen_bf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
  static uint16x4_t narrow_bf16(Vec x) {  // round to nearest even; a NaN stays one
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
  }
};

}  // namespace fulmen::cpu
