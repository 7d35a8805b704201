// Which path through a kernel is counted, on kernels short enough to count by hand.
#include "gpu/compile/report/inner_loop.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "amd_text.h"

namespace fulmen::test {
namespace {

TEST(InnerLoop, CountsEachKindOnAmd) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "s_mov_b32 s2, 0",                                       //
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",  // the loop
      "v_mfma_f32_32x32x8_f16 v[0:15], v[8:9], v[16:17], 0",   //
      "v_exp_f32_e32 v1, v2",                                  //
      "v_add_f32_e32 v1, v2, v3",                              //
      "v_dual_mul_f32 v1, v2, v3 :: v_dual_add_f32 v4, v5, v6",
      "ds_load_b128 v[0:3], v4",  //
      "global_load_b128 v[0:3], v[4:5], off",
      "s_waitcnt vmcnt(0)",
      "s_cbranch_scc1 @1",  //
      "s_endpgm",
  }));
  EXPECT_EQ(c.matrix, 2);
  EXPECT_EQ(c.matrix_products, 3);
  EXPECT_EQ(c.transcendental, 1);
  EXPECT_EQ(c.vector, 2);  // two operations of one instruction count once
  EXPECT_EQ(c.lds, 1);
  EXPECT_EQ(c.memory, 1);
  EXPECT_EQ(c.scalar, 2);
  EXPECT_EQ(c.total, 9);
}

TEST(InnerLoop, WithALoopOfTwoEntriesInside) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "s_nop 0",
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",  // 1: the loop
      "s_cbranch_vccnz @4",                                    // into the middle of ...
      "v_mul_f32 v0, v1, v2",                                  // 3: ... a loop in the loop
      "v_add_f32 v0, v1, v2",                                  // 4
      "s_cbranch_execnz @3",
      "s_cbranch_scc1 @1",
      "s_endpgm",
  }));
  EXPECT_EQ(c.matrix, 1);
  EXPECT_EQ(c.vector, 1);
}

TEST(InnerLoop, CodeThatNothingLeadsToIsNoWayIn) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "s_cbranch_scc0 @4",
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",  // a tile before the loop
      "s_branch @4",
      "s_branch @5",                                           // left behind
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",  // 4: the loop
      "v_add_f32 v0, v1, v2",                                  // 5
      "s_cbranch_scc1 @4",
      "s_endpgm",
  }));
  EXPECT_EQ(c.matrix, 1);
  EXPECT_EQ(c.total, 3);
}

TEST(InnerLoop, OfTwoWaysTheOneThatWorksMoreAndThenTheShorter) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "s_nop 0",
      "s_cbranch_vccnz @4",  // 1: the loop; the next tile is fetched
      "global_load_b32 v0, v1, off",
      "v_mov_b32 v0, v1",
      "s_cbranch_scc0 @8",  // 4: a tile without masks, or ...
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",
      "v_mul_f32 v0, v1, v2",
      "s_branch @12",
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",  // 8: ... with masks
      "v_mul_f32 v0, v1, v2",
      "v_cndmask_b32 v0, v1, v2",
      "v_cndmask_b32 v0, v1, v2",
      "s_cbranch_vccz @14",  // 12: nothing unusual
      "v_mul_f32 v0, v1, v2",
      "s_add_u32 s0, s0, 1",
      "s_cbranch_scc1 @1",
      "s_endpgm",
  }));
  EXPECT_EQ(c.matrix, 1);
  EXPECT_EQ(c.vector, 2);
  EXPECT_EQ(c.memory, 1);
}

// Lanes that exchange numbers access no LDS, so that this is no more work.
TEST(InnerLoop, OfTwoWaysTheOneWithoutExchanges) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[16:17], 0",  // the loop
      "ds_read_b128 v[0:3], v4",
      "s_cbranch_vccz @5",  // nothing unusual
      "ds_bpermute_b32 v0, v1, v2",
      "v_mul_f32 v0, v1, v2",
      "s_cbranch_scc1 @0",  // 5
      "s_endpgm",
  }));
  EXPECT_EQ(c.lds, 1);
  EXPECT_EQ(c.vector, 0);
  EXPECT_EQ(c.total, 4);
}

TEST(InnerLoop, OfTwoJumpsBackTheOneThatFetches) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[16:17], 0",
      "s_cbranch_vccnz @0",  // the last tile
      "buffer_load_b128 v[0:3], v4, s[0:3], 0 offen",
      "v_mov_b32 v9, v1",
      "s_branch @0",
      "s_endpgm",
  }));
  EXPECT_EQ(c.memory, 1);
  EXPECT_EQ(c.total, 5);
}

TEST(InnerLoop, TheInnermostWithMatrixInstructionsEvenIfItHoldsAnother) {
  const LoopCounts c = gpu::count_amd_loop(amd_text({
      "v_mov_b32 v9, v1",  // 0: heads
      "v_mov_b32 v9, v1",  // 1: tiles
      "v_mov_b32 v0, v1",  // 2: rows of a tile
      "s_cbranch_scc1 @2",
      "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0",
      "s_cbranch_scc1 @1",
      "v_mov_b32 v9, v1",
      "s_cbranch_scc1 @0",
      "s_endpgm",
  }));
  EXPECT_EQ(c.matrix, 1);
  EXPECT_EQ(c.vector, 2);
}

TEST(InnerLoop, WithoutALoopTheWholeKernelWithoutMatrixTheLongestLoop) {
  LoopCounts c = gpu::count_amd_loop(amd_text({
      "v_mov_b32 v9, v1",
      "s_cbranch_scc1 @0",
      "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[16:17], 0",
      "v_mov_b32 v9, v1",
      "s_endpgm",
      "s_code_end",
  }));
  EXPECT_EQ(c.matrix, 1);
  EXPECT_EQ(c.vector, 2);
  EXPECT_EQ(c.total, 5);
  c = gpu::count_amd_loop(amd_text({"v_mov_b32 v9, v1", "s_cbranch_scc1 @0", "v_mov_b32 v9, v1",
                                    "v_mov_b32 v9, v1", "s_cbranch_scc1 @2", "s_endpgm"}));
  EXPECT_EQ(c.vector, 2);
  EXPECT_EQ(gpu::count_amd_loop("").total, 0);
  EXPECT_EQ(gpu::count_amd_loop("\tv_mov_b32 // nonsense\n\t// \n\ts_branch 65535").total, 0);
}

TEST(InnerLoop, CountsEachKindOnNvidia) {
  const LoopCounts c = gpu::count_nvidia_loop(
      "fulmen_kernel:\n"
      ".text.fulmen_kernel:\n"
      "        /*0000*/                   MOV R1, c[0x0][0x28] ;\n"
      ".L_x_18:\n"
      "        /*0010*/                   HMMA.16816.F32.BF16 R24, R44.reuse, R100, RZ ;\n"
      "        /*0020*/                   HMMA.16816.F32.BF16 R24, R44.reuse, R100, RZ ;\n"
      "        /*0030*/               @P2 BRA `(.L_x_15) ;\n"
      "        /*0040*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;\n"
      ".L_x_15:\n"
      "        /*0050*/                   MUFU.EX2 R1, R2 ;\n"
      "        /*0060*/              @!P1 BRA P0, `(.L_x_16) ;\n"
      "        /*0070*/                   FFMA.FTZ R1, R2, R3, R4 ;\n"
      "        /*0080*/                   BRA `(.L_x_17) ;\n"
      ".L_x_16:\n"
      "        /*0090*/                   FFMA.FTZ R1, R2, R3, R4 ;\n"
      "        /*00a0*/                   FSEL R1, R2, R3, P0 ;\n"
      "        /*00a8*/                   FSEL R1, R2, R3, P0 ;\n"
      ".L_x_17:\n"
      "        /*00b0*/                   LDSM.16.M88.4 R4, [R2] ;\n"
      "        /*00c0*/                   UIADD3 UR4, UR4, 0x1, URZ ;\n"
      "        /*00d0*/               @P0 BRA `(.L_x_18) ;\n"
      "        /*00e0*/                   EXIT ;\n"
      ".L_x_19:\n"
      "        /*00f0*/                   BRA `(.L_x_19);\n");
  EXPECT_EQ(c.matrix, 2);
  EXPECT_EQ(c.matrix_products, 1);
  EXPECT_EQ(c.transcendental, 1);
  EXPECT_EQ(c.vector, 1);
  EXPECT_EQ(c.lds, 1);
  EXPECT_EQ(c.memory, 1);
  EXPECT_EQ(gpu::count_nvidia_loop("/*0*/ BRA `(").total, 1);
}

}  // namespace
}  // namespace fulmen::test
