// NVIDIA's instructions from sm_80 for the host, from the PTX documentation. Products are exact in
// fp32; they are added in the order of k (the hardware's order is not documented).
#pragma once

#include "core/base.h"
#include "targets/emulated_elements.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mma_f32_16x8x16(float (&d)[4], const Words<4>& a, const Words<2>& b,
                                   Position at = Position::here()) {
  struct Operands {
    Words<4> a;
    Words<2> b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("mma_f32_16x8x16", mine, at);
  // With g = l / 4, c = l % 4. A: word w holds row g + 8 (w % 2), k = 2 c + 8 (w / 2) and the next.
  // B: word w holds column g, k = 2 c + 8 w and the next. D: element e is row g + 8 (e / 2), column
  // 2 c + e % 2.
  const int l = lane_id();
  for (int e = 0; e < 4; ++e) {
    const int i = l / 4 + 8 * (e / 2), j = 2 * (l % 4) + e % 2;
    for (int k = 0; k < 16; ++k) {
      const int c = k % 8 / 2;
      d[e] += element<T>(lanes[i % 8 * 4 + c].a, 2 * (i / 8 + 2 * (k / 8)) + k % 2) *
              element<T>(lanes[j * 4 + c].b, 2 * (k / 8) + k % 2);
    }
  }
}

// A product of 32 codes of 8 bits. add(sum, lane of a, its code's place, lane of b, its code's).
template <class Add>
FULMEN_DEVICE void mma_16x8x32(float (&d)[4], const Add& add) {
  // With g = l / 4, c = l % 4. A: word w holds row g + 8 (w % 2), k = 4 c + 16 (w / 2) and the next
  // three. B: word w holds column g, k = 4 c + 16 w and the next three. D: as above.
  const int l = lane_id();
  for (int e = 0; e < 4; ++e) {
    const int i = l / 4 + 8 * (e / 2), j = 2 * (l % 4) + e % 2;
    for (int k = 0; k < 32; ++k) {
      const int c = k % 16 / 4;
      add(d[e], i % 8 * 4 + c, 4 * (i / 8 + 2 * (k / 16)) + k % 4, j * 4 + c, 4 * (k / 16) + k % 4);
    }
  }
}
struct CodeOperands {
  Words<4> a;
  Words<2> b;
};
// int8 codes. d: bits of their sums.
FULMEN_DEVICE void mma_s32_16x8x32(float (&d)[4], const Words<4>& a, const Words<2>& b,
                                   Position at = Position::here()) {
  const CodeOperands mine{a, b};
  const auto* lanes = all_lanes("mma_s32_16x8x32", mine, at);
  mma_16x8x32(d, [&](float& sum, int of_a, int n, int of_b, int m) {
    add_codes(sum, code(lanes[of_a].a, n), code(lanes[of_b].b, m));
  });
}
// Codes of E4M3, whose products are exact in fp32. (The hardware's sums may have fewer bits.)
FULMEN_DEVICE void mma_f32_16x8x32_e4m3(float (&d)[4], const Words<4>& a, const Words<2>& b,
                                        Position at = Position::here()) {
  const CodeOperands mine{a, b};
  const auto* lanes = all_lanes("mma_f32_16x8x32_e4m3", mine, at);
  mma_16x8x32(d, [&](float& sum, int of_a, int n, int of_b, int m) {
    sum += e4m3_element(lanes[of_a].a, n) * e4m3_element(lanes[of_b].b, m);
  });
}

// x without the bits that follow the 11 significant ones of tf32.
FULMEN_DEVICE double tf32(unsigned x) { return bits_float(x & 0xFFFFE000U); }
// The nearest float that is not larger in magnitude: tensor cores cut off the bits of a sum that do
// not fit, which is worse than rounding where many sums follow each other.
FULMEN_DEVICE float toward_zero(double x) {
  const auto nearest = static_cast<float>(x);
  const double magnitude = absolute(nearest);
  const bool larger = magnitude > (x < 0 ? -x : x) && magnitude < kInfinity;
  return bits_float(float_bits(nearest) - (larger ? 1U : 0U));
}
FULMEN_DEVICE void mma_f32_16x8x8_tf32(float (&d)[4], const Words<4>& a, const Words<2>& b,
                                       Position at = Position::here()) {
  struct Operands {
    Words<4> a;
    Words<2> b;
  };
  const Operands mine{a, b};
  const auto* lanes = all_lanes("mma_f32_16x8x8_tf32", mine, at);
  const int l = lane_id();
  for (int e = 0; e < 4; ++e) {
    const int i = l / 4 + 8 * (e / 2), j = 2 * (l % 4) + e % 2;
    double sum = d[e];
    for (int k = 0; k < 8; ++k) {
      sum += tf32(lanes[i % 8 * 4 + k % 4].a.word[i / 8 + 2 * (k / 4)]) *
             tf32(lanes[j * 4 + k % 4].b.word[k / 4]);
    }
    d[e] = toward_zero(sum);
  }
}

// Lane l gives the address of row l % 8 of matrix l / 8: 8 elements. Afterwards it holds of matrix
// w, in word w, row l / 4, elements 2 (l % 4) and the next; transposed: column l / 4, rows 2
// (l % 4) and the next.
FULMEN_DEVICE Words<4> ldmatrix_x4(int lds_offset, Position at = Position::here()) {
  const auto row = lds_load<Words<4>>(lds_offset, at);
  const auto* lanes = all_lanes("ldmatrix_x4", row, at);
  Words<4> x;
  for (int w = 0; w < 4; ++w) x.word[w] = lanes[8 * w + lane_id() / 4].word[lane_id() % 4];
  return x;
}
FULMEN_DEVICE Words<4> ldmatrix_x4_trans(int lds_offset, Position at = Position::here()) {
  const auto row = lds_load<Words<4>>(lds_offset, at);
  const auto* lanes = all_lanes("ldmatrix_x4_trans", row, at);
  Words<4> x;
  const int column = lane_id() / 4, first = 2 * (lane_id() % 4);
  for (int w = 0; w < 4; ++w) {
    x.word[w] = halves(lanes[8 * w + first].word[column / 2],
                       lanes[8 * w + first + 1].word[column / 2], column % 2 != 0);
  }
  return x;
}

FULMEN_DEVICE unsigned transpose_pairs(unsigned pair, Position at = Position::here()) {
  const auto* lanes = all_lanes("transpose_pairs", pair, at);
  const int column = lane_id() / 4, first = 2 * (lane_id() % 4);
  return halves(lanes[4 * first + column / 2], lanes[4 * (first + 1) + column / 2],
                column % 2 != 0);
}

FULMEN_DEVICE void copy_async_16(int lds_offset, const void* from, bool valid,
                                 Position at = Position::here()) {
  emulator->copy_async(lds_offset, from, 16, valid ? 16 : 0, at.file, at.line);
}
FULMEN_DEVICE void copy_async_8(int lds_offset, const void* from, bool valid,
                                Position at = Position::here()) {
  emulator->copy_async(lds_offset, from, 8, valid ? 8 : 0, at.file, at.line);
}
FULMEN_DEVICE void copy_commit() { emulator->copy_commit(); }
template <int kGroups>
FULMEN_DEVICE void copy_wait(Position at = Position::here()) {
  emulator->copy_wait(kGroups, at.file, at.line);
}

}  // namespace fulmen::kernels
