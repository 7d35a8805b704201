// CDNA's matrix instructions for the host, from AMD's documented layouts. Products are exact in
// fp32; they are added in the order of k (the hardware's order is not documented).
#pragma once

#include "core/base.h"
#include "targets/emulated_elements.h"

namespace fulmen::kernels {

// kFlushes: subnormal numbers count as 0, in operands and in sums.
template <bool kFlushes>
FULMEN_DEVICE float mfma_sum(float sum) {
  return kFlushes && absolute(sum) < 0x1p-126F ? 0.0F : sum;
}
template <class T, bool kFlushes, int kWords>
FULMEN_DEVICE float mfma_element(const Words<kWords>& operand, int k) {
  const float x = element<T>(operand, k);
  return kFlushes && absolute(x) < (kIsHalf<T> ? 0x1p-14F : 0x1p-126F) ? 0.0F : x;
}

// Lanes form blocks of kSize. A[i][k]: i = l % kSize, k = kElements (l / kSize) + e; B the same;
// D[i][j]: i = 4 kBlocks (e / 4) + 4 (l / kSize) + e % 4, j = l % kSize.
template <class T, bool kFlushes, int kSize, int kWords>
FULMEN_DEVICE void mfma(const char* name, float (&d)[kSize * kSize / 64], const Words<kWords>& a,
                        const Words<kWords>& b, Position at) {
  constexpr int kBlocks = 64 / kSize, kElements = 2 * kWords;
  struct Operands {
    Words<kWords> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes(name, mine, at);
  const int l = lane_id(), j = l % kSize;
  for (int e = 0; e < kSize * kSize / 64; ++e) {
    const int i = 4 * kBlocks * (e / 4) + 4 * (l / kSize) + e % 4;
    float sum = mfma_sum<kFlushes>(d[e]);
    for (int k = 0; k < kBlocks * kElements; ++k) {
      const int block = kSize * (k / kElements), n = k % kElements;
      sum += mfma_element<T, kFlushes>(lanes[i + block].a, n) *
             mfma_element<T, kFlushes>(lanes[j + block].b, n);
    }
    d[e] = mfma_sum<kFlushes>(sum);
  }
}

// The same lanes of 16 x 16, with int8 codes. d: bits of their sums.
template <int kWords>
FULMEN_DEVICE void mfma_codes(const char* name, float (&d)[4], const Words<kWords>& a,
                              const Words<kWords>& b, Position at) {
  constexpr int kCodes = 4 * kWords;
  struct Operands {
    Words<kWords> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes(name, mine, at);
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 4; ++e) {
    const int i = 4 * (l / 16) + e;
    for (int k = 0; k < 4 * kCodes; ++k) {
      const int block = 16 * (k / kCodes), n = k % kCodes;
      add_codes(d[e], code(lanes[i + block].a, n), code(lanes[j + block].b, n));
    }
  }
}

// The same, with 8 codes of E4M3 a lane.
FULMEN_DEVICE void mfma_e4m3(const char* name, float (&d)[4], const Words<2>& a, const Words<2>& b,
                             Position at) {
  struct Operands {
    Words<2> a, b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes(name, mine, at);
  const int l = lane_id(), j = l % 16;
  for (int e = 0; e < 4; ++e) {
    const int i = 4 * (l / 16) + e;
    for (int k = 0; k < 32; ++k) {
      const int block = 16 * (k / 8);
      d[e] += e4m3_element(lanes[i + block].a, k % 8) * e4m3_element(lanes[j + block].b, k % 8);
    }
  }
}

}  // namespace fulmen::kernels
