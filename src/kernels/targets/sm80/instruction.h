// The instructions themselves.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

template <class T>
FULMEN_DEVICE void mma_f32_16x8x16(float (&d)[4], const Words<4>& a, const Words<2>& b) {
  if constexpr (kIsHalf<T>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  }
}

// d: bits of sums of int8 codes. Of A: words (i = g, k = 4c..), (g + 8, 4c..), (g, 16 + 4c..),
// (g + 8, 16 + 4c..); of B: (k = 4c.., j = g), (16 + 4c.., g), where g = lane / 4, c = lane % 4.
FULMEN_DEVICE void mma_s32_16x8x32(float (&d)[4], const Words<4>& a, const Words<2>& b) {
  unsigned sum[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) sum[e] = float_bits(d[e]);
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
        "r"(b.word[1]));
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = bits_float(sum[e]);
}

// Codes of E4M3 in the same words: chips from sm_89 on.
FULMEN_DEVICE void mma_f32_16x8x32_e4m3(float (&d)[4], const Words<4>& a, const Words<2>& b) {
#if __CUDA_ARCH__ >= 890
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
        "r"(b.word[1]));
#endif
}

// fp32 operands, of which it takes 11 significant bits: it ignores the low 13 bits of a word.
// Of A: words (i = g, k = c), (g + 8, c), (g, c + 4), (g + 8, c + 4); of B: (k = c, j = g),
// (c + 4, g), where g = lane / 4, c = lane % 4.
FULMEN_DEVICE void mma_f32_16x8x8_tf32(float (&d)[4], const Words<4>& a, const Words<2>& b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
        "r"(b.word[1]));
}

FULMEN_DEVICE unsigned shared_address(int lds_offset) {
  return static_cast<unsigned>(__cvta_generic_to_shared(lds_memory)) +
         static_cast<unsigned>(lds_offset);
}
FULMEN_DEVICE Words<4> ldmatrix_x4(int lds_offset) {
  Words<4> x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "r"(shared_address(lds_offset))
               : "memory");
  return x;
}
FULMEN_DEVICE Words<4> ldmatrix_x4_trans(int lds_offset) {
  Words<4> x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "r"(shared_address(lds_offset))
               : "memory");
  return x;
}
FULMEN_DEVICE unsigned transpose_pairs(unsigned pair) {
  unsigned transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}
// 16 or 8 bytes from global memory, or zeros; there after the wait. The L2 fetches whole lines:
// rows of 64 bytes share one with another head's, which another workgroup copies at about the same
// time.
FULMEN_DEVICE void copy_async_16(int lds_offset, const void* from, bool valid) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(lds_offset)),
      "l"(from), "r"(valid ? 16 : 0)
      : "memory");
}
FULMEN_DEVICE void copy_async_8(int lds_offset, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(lds_offset)),
               "l"(from), "r"(valid ? 8 : 0)
               : "memory");
}
FULMEN_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
FULMEN_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace fulmen::kernels
