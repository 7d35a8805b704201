// The instructions of sm_90a themselves.
#pragma once

FULMEN_DEVICE unsigned lds_matrix_place(int lds_offset) { return (shared_address(lds_offset) & 0x3FFFFU) >> 4U; }

// Operands of the assembler: a product's sums, 8 of each tile of 16 columns.
#define FULMEN_TILE(t) \
  "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3]), "+f"(d[t][4]), "+f"(d[t][5]), "+f"(d[t][6]), "+f"(d[t][7])
#define FULMEN_TILES_2 FULMEN_TILE(0), FULMEN_TILE(1)
#define FULMEN_TILES_4 FULMEN_TILES_2, FULMEN_TILE(2), FULMEN_TILE(3)
#define FULMEN_TILES_8 FULMEN_TILES_4, FULMEN_TILE(4), FULMEN_TILE(5), FULMEN_TILE(6), FULMEN_TILE(7)
#define FULMEN_SUMS_2 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FULMEN_SUMS_4 \
  FULMEN_SUMS_2       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FULMEN_SUMS_8                                                                \
  FULMEN_SUMS_4                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FULMEN_WGMMA(columns, type, sums, a, b, add, turned)                                                                       \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" sums \
  "}, " a ", " b ", add, 1, 1, " turned ";\n}\n"

template <class T, bool kTurnA, bool kTurnB>
FULMEN_DEVICE void wgmma(float (&d)[2][8], LdsMatrix a, LdsMatrix b, bool add) {
  if constexpr (kIsHalf<T>) {
    asm volatile(FULMEN_WGMMA("32", "f16", FULMEN_SUMS_2, "%16", "%17", "%18", "%19, %20")
                 : FULMEN_TILES_2
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
  } else {
    asm volatile(FULMEN_WGMMA("32", "bf16", FULMEN_SUMS_2, "%16", "%17", "%18", "%19, %20")
                 : FULMEN_TILES_2
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
  }
}
template <class T, bool kTurnA, bool kTurnB>
FULMEN_DEVICE void wgmma(float (&d)[4][8], LdsMatrix a, LdsMatrix b, bool add) {
  if constexpr (kIsHalf<T>) {
    asm volatile(FULMEN_WGMMA("64", "f16", FULMEN_SUMS_4, "%32", "%33", "%34", "%35, %36")
                 : FULMEN_TILES_4
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
  } else {
    asm volatile(FULMEN_WGMMA("64", "bf16", FULMEN_SUMS_4, "%32", "%33", "%34", "%35, %36")
                 : FULMEN_TILES_4
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
  }
}
template <class T, bool kTurnB>
FULMEN_DEVICE void wgmma(float (&d)[4][8], const Words<4>& a, LdsMatrix b, bool add) {
  if constexpr (kIsHalf<T>) {
    asm volatile(FULMEN_WGMMA("64", "f16", FULMEN_SUMS_4, "{%32, %33, %34, %35}", "%36", "%37", "%38")
                 : FULMEN_TILES_4
                 : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits()), "r"(static_cast<int>(add)),
                   "n"(kTurnB ? 1 : 0));
  } else {
    asm volatile(FULMEN_WGMMA("64", "bf16", FULMEN_SUMS_4, "{%32, %33, %34, %35}", "%36", "%37", "%38")
                 : FULMEN_TILES_4
                 : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits()), "r"(static_cast<int>(add)),
                   "n"(kTurnB ? 1 : 0));
  }
}
template <class T, bool kTurnA, bool kTurnB>
FULMEN_DEVICE void wgmma(float (&d)[8][8], LdsMatrix a, LdsMatrix b, bool add) {
  if constexpr (kIsHalf<T>) {
    asm volatile(FULMEN_WGMMA("128", "f16", FULMEN_SUMS_8, "%64", "%65", "%66", "%67, %68")
                 : FULMEN_TILES_8
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
  } else {
    asm volatile(FULMEN_WGMMA("128", "bf16", FULMEN_SUMS_8, "%64", "%65", "%66", "%67, %68")
                 : FULMEN_TILES_8
                 : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));
  }
}
template <class T, bool kTurnB>
FULMEN_DEVICE void wgmma(float (&d)[8][8], const Words<4>& a, LdsMatrix b, bool add) {
  if constexpr (kIsHalf<T>) {
    asm volatile(FULMEN_WGMMA("128", "f16", FULMEN_SUMS_8, "{%64, %65, %66, %67}", "%68", "%69", "%70")
                 : FULMEN_TILES_8
                 : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits()), "r"(static_cast<int>(add)),
                   "n"(kTurnB ? 1 : 0));
  } else {
    asm volatile(FULMEN_WGMMA("128", "bf16", FULMEN_SUMS_8, "{%64, %65, %66, %67}", "%68", "%69", "%70")
                 : FULMEN_TILES_8
                 : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits()), "r"(static_cast<int>(add)),
                   "n"(kTurnB ? 1 : 0));
  }
}
#undef FULMEN_WGMMA
#undef FULMEN_SUMS_8
#undef FULMEN_SUMS_4
#undef FULMEN_SUMS_2
#undef FULMEN_TILES_8
#undef FULMEN_TILES_4
#undef FULMEN_TILES_2
#undef FULMEN_TILE

FULMEN_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FULMEN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kGroups>
FULMEN_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Nothing that uses the sums moves across it.
template <int kTiles>
FULMEN_DEVICE void wgmma_hold(float (&d)[kTiles][8]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 8; ++e) asm volatile("" : "+f"(d[t][e])::"memory");
  }
}
FULMEN_DEVICE void lds_fence_for_matrices() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

FULMEN_DEVICE void stmatrix_x4(int lds_offset, const Words<4>& x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(lds_offset)), "r"(x.word[0]),
               "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}

// Each warpgroup waits at a barrier of its own, of two in turn: the others may arrive for the next meeting before it waits for
// this.
template <int kGroups>
FULMEN_DEVICE void warpgroup_barrier_arrive(int turn, int group) {
#pragma unroll
  for (int n = 1; n < kGroups; ++n) {
    const int other = group + n < kGroups ? group + n : group + n - kGroups;
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(1 + turn * kGroups + other), "n"(128 * kGroups) : "memory");
  }
}
template <int kGroups>
FULMEN_DEVICE void warpgroup_barrier_wait(int turn, int group) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(1 + turn * kGroups + group), "n"(128 * kGroups) : "memory");
}

template <int kCount>
FULMEN_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
FULMEN_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
