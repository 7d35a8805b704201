// The instructions of sm_90a themselves.
#pragma once

#include "targets/sm80/target.h"
#include "targets/sm90/panels.h"

namespace fulmen::kernels {

FULMEN_DEVICE unsigned lds_matrix_place(int lds_offset) {
  return (shared_address(lds_offset) & 0x3FFFFU) >> 4U;
}

// Operands of the assembler: a product's sums, 8 of each tile of 16 columns.
#define FULMEN_TILE(t)                                                                      \
  "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3]), "+f"(d[t][4]), "+f"(d[t][5]), \
      "+f"(d[t][6]), "+f"(d[t][7])
#define FULMEN_TILES_1 FULMEN_TILE(0)
#define FULMEN_TILES_2 FULMEN_TILES_1, FULMEN_TILE(1)
#define FULMEN_TILES_3 FULMEN_TILES_2, FULMEN_TILE(2)
#define FULMEN_TILES_4 FULMEN_TILES_3, FULMEN_TILE(3)
#define FULMEN_TILES_5 FULMEN_TILES_4, FULMEN_TILE(4)
#define FULMEN_TILES_6 FULMEN_TILES_5, FULMEN_TILE(5)
#define FULMEN_TILES_7 FULMEN_TILES_6, FULMEN_TILE(6)
#define FULMEN_TILES_8 FULMEN_TILES_7, FULMEN_TILE(7)
#define FULMEN_TILES_9 FULMEN_TILES_8, FULMEN_TILE(8)
#define FULMEN_TILES_10 FULMEN_TILES_9, FULMEN_TILE(9)
#define FULMEN_TILES_11 FULMEN_TILES_10, FULMEN_TILE(10)
#define FULMEN_TILES_12 FULMEN_TILES_11, FULMEN_TILE(11)
#define FULMEN_SUMS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FULMEN_SUMS_2 FULMEN_SUMS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FULMEN_SUMS_3 FULMEN_SUMS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FULMEN_SUMS_4 FULMEN_SUMS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FULMEN_SUMS_5 FULMEN_SUMS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FULMEN_SUMS_6 FULMEN_SUMS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FULMEN_SUMS_7 FULMEN_SUMS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FULMEN_SUMS_8 FULMEN_SUMS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FULMEN_SUMS_9 FULMEN_SUMS_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FULMEN_SUMS_10 FULMEN_SUMS_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FULMEN_SUMS_11 FULMEN_SUMS_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FULMEN_SUMS_12 FULMEN_SUMS_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FULMEN_WGMMA(columns, type, sums, a, b, add, transposed)                                \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
  "k16.f32." type "." type " {" sums "}, " a ", " b ", add, 1, 1, " transposed ";\n}\n"
#define FULMEN_WGMMA_E4M3(columns, sums, a, b, add)                                             \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
  "k32.f32.e4m3.e4m3 {" sums "}, " a ", " b ", add, 1, 1;\n}\n"
// The product of `tiles` tiles: both operands in LDS, and a's rows in registers. n0 to n6: the
// operands after the sums.
#define FULMEN_WGMMA_OF(tiles, columns, n0, n1, n2, n3, n4, n5, n6)                           \
  template <class T, bool kTurnA, bool kTurnB>                                                \
  FULMEN_DEVICE void wgmma(float(&d)[tiles][8], LdsMatrix a, LdsMatrix b, bool add) {         \
    if constexpr (sizeof(T) == 1) {                                                           \
      static_assert(!kTurnA && !kTurnB, "wgmma: E4M3 is never transposed");                   \
      asm volatile(FULMEN_WGMMA_E4M3(columns, FULMEN_SUMS_##tiles, n0, n1, n2)                \
                   : FULMEN_TILES_##tiles                                                     \
                   : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)));               \
    } else if constexpr (kIsHalf<T>) {                                                        \
      asm volatile(FULMEN_WGMMA(columns, "f16", FULMEN_SUMS_##tiles, n0, n1, n2, n3 ", " n4)  \
                   : FULMEN_TILES_##tiles                                                     \
                   : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)),                \
                     "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));                               \
    } else {                                                                                  \
      asm volatile(FULMEN_WGMMA(columns, "bf16", FULMEN_SUMS_##tiles, n0, n1, n2, n3 ", " n4) \
                   : FULMEN_TILES_##tiles                                                     \
                   : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(add)),                \
                     "n"(kTurnA ? 1 : 0), "n"(kTurnB ? 1 : 0));                               \
    }                                                                                         \
  }                                                                                           \
  template <class T, bool kTurnB>                                                             \
  FULMEN_DEVICE void wgmma(float(&d)[tiles][8], const Words<4>& a, LdsMatrix b, bool add) {   \
    if constexpr (sizeof(T) == 1) {                                                           \
      static_assert(!kTurnB, "wgmma: E4M3 is never transposed");                              \
      asm volatile(FULMEN_WGMMA_E4M3(columns, FULMEN_SUMS_##tiles,                            \
                                     "{" n0 ", " n1 ", " n2 ", " n3 "}", n4, n5)              \
                   : FULMEN_TILES_##tiles                                                     \
                   : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]),          \
                     "l"(b.bits()), "r"(static_cast<int>(add)));                              \
    } else if constexpr (kIsHalf<T>) {                                                        \
      asm volatile(FULMEN_WGMMA(columns, "f16", FULMEN_SUMS_##tiles,                          \
                                "{" n0 ", " n1 ", " n2 ", " n3 "}", n4, n5, n6)               \
                   : FULMEN_TILES_##tiles                                                     \
                   : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]),          \
                     "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnB ? 1 : 0));         \
    } else {                                                                                  \
      asm volatile(FULMEN_WGMMA(columns, "bf16", FULMEN_SUMS_##tiles,                         \
                                "{" n0 ", " n1 ", " n2 ", " n3 "}", n4, n5, n6)               \
                   : FULMEN_TILES_##tiles                                                     \
                   : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]),          \
                     "l"(b.bits()), "r"(static_cast<int>(add)), "n"(kTurnB ? 1 : 0));         \
    }                                                                                         \
  }
FULMEN_WGMMA_OF(1, "16", "%8", "%9", "%10", "%11", "%12", "%13", "%14")
FULMEN_WGMMA_OF(2, "32", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
FULMEN_WGMMA_OF(3, "48", "%24", "%25", "%26", "%27", "%28", "%29", "%30")
FULMEN_WGMMA_OF(4, "64", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
FULMEN_WGMMA_OF(5, "80", "%40", "%41", "%42", "%43", "%44", "%45", "%46")
FULMEN_WGMMA_OF(6, "96", "%48", "%49", "%50", "%51", "%52", "%53", "%54")
FULMEN_WGMMA_OF(7, "112", "%56", "%57", "%58", "%59", "%60", "%61", "%62")
FULMEN_WGMMA_OF(8, "128", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
FULMEN_WGMMA_OF(9, "144", "%72", "%73", "%74", "%75", "%76", "%77", "%78")
FULMEN_WGMMA_OF(10, "160", "%80", "%81", "%82", "%83", "%84", "%85", "%86")
FULMEN_WGMMA_OF(11, "176", "%88", "%89", "%90", "%91", "%92", "%93", "%94")
FULMEN_WGMMA_OF(12, "192", "%96", "%97", "%98", "%99", "%100", "%101", "%102")
#undef FULMEN_WGMMA_OF
#undef FULMEN_WGMMA_E4M3
#undef FULMEN_WGMMA
#undef FULMEN_SUMS_12
#undef FULMEN_SUMS_11
#undef FULMEN_SUMS_10
#undef FULMEN_SUMS_9
#undef FULMEN_SUMS_8
#undef FULMEN_SUMS_7
#undef FULMEN_SUMS_6
#undef FULMEN_SUMS_5
#undef FULMEN_SUMS_4
#undef FULMEN_SUMS_3
#undef FULMEN_SUMS_2
#undef FULMEN_SUMS_1
#undef FULMEN_TILES_12
#undef FULMEN_TILES_11
#undef FULMEN_TILES_10
#undef FULMEN_TILES_9
#undef FULMEN_TILES_8
#undef FULMEN_TILES_7
#undef FULMEN_TILES_6
#undef FULMEN_TILES_5
#undef FULMEN_TILES_4
#undef FULMEN_TILES_3
#undef FULMEN_TILES_2
#undef FULMEN_TILES_1
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
FULMEN_DEVICE void lds_fence_for_matrices() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

FULMEN_DEVICE void stmatrix_x4(int lds_offset, const Words<4>& x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(lds_offset)),
               "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}

// Each warpgroup waits at two barriers of its own, alternately: the others may arrive at the next
// one before it waits at this one.
template <int kGroups>
FULMEN_DEVICE void warpgroup_barrier_arrive(int turn, int group) {
#pragma unroll
  for (int n = 1; n < kGroups; ++n) {
    const int other = group + n < kGroups ? group + n : group + n - kGroups;
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(1 + turn * kGroups + other), "n"(128 * kGroups)
                 : "memory");
  }
}
template <int kGroups>
FULMEN_DEVICE void warpgroup_barrier_wait(int turn, int group) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(1 + turn * kGroups + group), "n"(128 * kGroups)
               : "memory");
}

template <int kCount>
FULMEN_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
FULMEN_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// mbarriers and the TMA.
FULMEN_DEVICE void mbarrier_init(int at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(arrivals)
               : "memory");
}
FULMEN_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FULMEN_DEVICE void mbarrier_arrive(int at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}
FULMEN_DEVICE void mbarrier_arrive_expect(int at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)),
               "r"(bytes)
               : "memory");
}
FULMEN_DEVICE void mbarrier_wait(int at, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done "
      "bra DONE;\nbra WAIT;\n"
      "DONE:\n}\n" ::"r"(shared_address(at)),
      "r"(parity)
      : "memory");
}
// In the assembler's branches: products may be in flight.
FULMEN_DEVICE void mbarrier_wait_unless(bool passed, int at, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nsetp.ne.u32 done, %2, 0;\n@done bra DONE;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra WAIT;\n"
      "DONE:\n}\n" ::"r"(shared_address(at)),
      "r"(parity), "r"(static_cast<unsigned>(passed))
      : "memory");
}
FULMEN_DEVICE bool mbarrier_test(int at, int parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 "
      "%0, 1, 0, done;\n}\n"
      : "=r"(done)
      : "r"(shared_address(at)), "r"(parity)
      : "memory");
  return done != 0;
}
struct L2Policy {
  unsigned long long bits;
  FULMEN_DEVICE static L2Policy evict_first() {
    L2Policy policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy.bits));
    return policy;
  }
  FULMEN_DEVICE static L2Policy evict_last() {
    L2Policy policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy.bits));
    return policy;
  }
};
FULMEN_DEVICE void tma_load(int to, const void* map, int column, Int64 row, int head, int batch,
                            int barrier_at, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], "
      "[%6], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(static_cast<int>(row)), "r"(head), "r"(batch),
      "r"(shared_address(barrier_at)), "l"(policy.bits)
      : "memory");
}
// Workgroups of a cluster. rank: whose LDS a place is in.
FULMEN_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A wave's lanes may come one after the other: not .aligned.
FULMEN_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
FULMEN_DEVICE unsigned cluster_address(int rank, int at) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(at)), "r"(rank));
  return address;
}
// After reads that have ended: their values were used, or their products waited for. What the lane
// wrote it does not order: a release for the cluster would wait for all additions to memory.
FULMEN_DEVICE void mbarrier_arrive_at(int rank, int at) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(rank, at))
               : "memory");
}
// From the workgroup's own LDS, with bytes that the barrier there expects.
FULMEN_DEVICE void cluster_copy(int rank, int to, int from, int bytes, int barrier_at) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(cluster_address(rank, to)),
      "r"(shared_address(from)), "r"(bytes), "r"(cluster_address(rank, barrier_at))
      : "memory");
}

FULMEN_DEVICE void tma_prefetch(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

FULMEN_DEVICE void tma_add(float* to, int at, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], "
      "%2;\ncp.async.bulk.commit_group;" ::"l"(to),
      "r"(shared_address(at)), "r"(bytes)
      : "memory");
}
FULMEN_DEVICE void tma_store(float* to, int at, int bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::
          "l"(to),
      "r"(shared_address(at)), "r"(bytes)
      : "memory");
}
FULMEN_DEVICE void tma_store(const void* map, int at, int column, Int64 row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], "
      "[%5];\ncp.async.bulk.commit_group;" ::"l"(map),
      "r"(column), "r"(static_cast<int>(row)), "r"(head), "r"(batch), "r"(shared_address(at))
      : "memory");
}
FULMEN_DEVICE void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
template <int kLeft>
FULMEN_DEVICE void tma_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLeft) : "memory");
}
FULMEN_DEVICE void counter_wait(const int* at, int count) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  } while (now < count);
}
FULMEN_DEVICE int counter_fetch_add(int* at) {
  int before = 0;
  if (lane_id() == 0)
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(at)
                 : "memory");
  return broadcast(before);
}
FULMEN_DEVICE void counter_pass(int* at) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(at) : "memory");
}

// Without a branch: products may be in flight.
template <int kOffset>
FULMEN_DEVICE void global_store_or_add(float* to, const Words<4>& values, bool stores, bool adds) {
  asm volatile(
      "{\n.reg .pred stores, adds;\nsetp.ne.s32 stores, %6, 0;\nsetp.ne.s32 adds, %7, 0;\n"
      "@stores st.global.v4.f32 [%0 + %5], {%1, %2, %3, %4};\n@adds red.global.add.v4.f32 [%0 + "
      "%5], {%1, %2, %3, %4};\n}\n" ::"l"(to),
      "f"(__uint_as_float(values.word[0])), "f"(__uint_as_float(values.word[1])),
      "f"(__uint_as_float(values.word[2])), "f"(__uint_as_float(values.word[3])), "n"(4 * kOffset),
      "r"(static_cast<int>(stores)), "r"(static_cast<int>(adds))
      : "memory");
}
// Where compilers know no vector additions, with branches, before which they wait for products in
// flight.
template <int kOffset>
FULMEN_DEVICE void global_store_or_add(float* to, const Words<1>& values, bool stores, bool adds) {
  if (stores) to[kOffset] = __uint_as_float(values.word[0]);
  if (adds) global_add<kOffset>(to, values);
}

// A ring of warpgroups takes turns: each waits for its turn, at a barrier of its own, and passes it
// on.
FULMEN_DEVICE void warpgroup_turn_wait(int group) {
  asm volatile("barrier.cta.sync %0, 256;" ::"r"(1 + group) : "memory");
}
FULMEN_DEVICE void warpgroup_turn_pass(int next) {
  asm volatile("barrier.cta.arrive %0, 256;" ::"r"(1 + next) : "memory");
}

}  // namespace fulmen::kernels
