// The check of AMD machine code knows where lanes that left a loop are on again, and that they are
// not anywhere else.
#include "gpu/compile/amd_rules/exec_flow.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "amd_text.h"
#include "gpu/compile/amd_rules/mask_steps.h"
#include "gpu/compile/report/amd_check.h"

namespace fulmen::test {
namespace {

const std::string kExchange = "v_permlanex16_b32 v2, v3, s8, s9";

// Line `at` becomes `line`, and stays one line for the branches that count them.
std::vector<std::string> with(std::vector<std::string> lines, std::size_t at,
                              const std::string& line) {
  lines[at] = line;
  return lines;
}
std::size_t wrong_in(const std::vector<std::string>& lines) {
  return gpu::amd_findings(amd_text(lines), {}).size();
}

// gfx1100 of clang 19, backward with head_dim 24 of 32: one side of a branch has a loop, and the
// mask of the lanes that left it was set to 0 before the branch, where all lanes were on.
const std::vector<std::string> kLoopInABranch{
    "s_mov_b32 s3, 0",
    "v_cmp_gt_u32_e32 vcc_lo, 16, v0",
    "s_and_saveexec_b32 s0, vcc_lo",
    "s_xor_b32 s0, exec_lo, s0",
    "s_cbranch_execz @11",
    "s_nop 0",
    "v_cmp_lt_u32_e64 s2, 3, v1",
    "s_or_b32 s3, s2, s3",
    "s_and_not1_b32 exec_lo, exec_lo, s3",
    "s_cbranch_execnz @5",
    "s_or_b32 exec_lo, exec_lo, s3",
    "s_or_b32 exec_lo, exec_lo, s0",
    kExchange,
    "s_endpgm",
};

TEST(ExecFlow, KnowsWhereALoopInABranchEnds) {
  EXPECT_EQ(wrong_in(kLoopInABranch), 0U);
  // Lanes of the other side are off in the loop and behind it.
  EXPECT_EQ(wrong_in(with(kLoopInABranch, 5, kExchange)), 1U);
  EXPECT_EQ(wrong_in(with(kLoopInABranch, 11, kExchange)), 2U);
}

TEST(ExecFlow, FindsLanesThatALoopLost) {
  struct Wrong {
    std::size_t line;
    const char* instead;
  };
  for (const Wrong& w :
       {Wrong{0, "s_mov_b32 s3, s7"}, Wrong{3, "s_xor_b32 s0, exec_lo, s7"},
        Wrong{7, "s_mov_b32 s3, s2"}, Wrong{7, "s_or_b32 s3, s7, s3"},
        Wrong{7, "s_or_b32 s3, s2, s7"}, Wrong{8, "s_and_b32 exec_lo, exec_lo, s7"},
        Wrong{10, "s_or_b32 exec_lo, exec_lo, s2"}, Wrong{10, "s_nop 0"}, Wrong{11, "s_nop 0"}}) {
    EXPECT_EQ(wrong_in(with(kLoopInABranch, w.line, w.instead)), 1U) << w.line << w.instead;
  }
}

// One loop in another, each with a mask of its own lanes that left.
TEST(ExecFlow, KnowsLoopsInLoops) {
  const std::vector<std::string> nested{
      "s_mov_b32 s3, 0",
      "s_mov_b32 s4, 0",
      "v_cmp_lt_u32_e64 s2, 3, v1",
      "s_or_b32 s4, s2, s4",
      "s_and_not1_b32 exec_lo, exec_lo, s4",
      "s_cbranch_execnz @2",
      "s_or_b32 exec_lo, exec_lo, s4",
      "v_cmp_lt_u32_e32 vcc_lo, 3, v2",
      "s_or_b32 s3, vcc_lo, s3",
      "s_and_not1_b32 exec_lo, exec_lo, s3",
      "s_cbranch_execnz @1",
      "s_or_b32 exec_lo, exec_lo, s3",
      kExchange,
      "s_endpgm",
  };
  EXPECT_EQ(wrong_in(nested), 0U);
  EXPECT_EQ(wrong_in(with(nested, 6, "s_nop 0")), 1U) << "the inner loop's lanes stay off";
  EXPECT_EQ(wrong_in(with(nested, 1, "s_nop 0")), 1U) << "the inner mask keeps the last time's";
  EXPECT_EQ(wrong_in(with(nested, 11, "s_or_b32 exec_lo, exec_lo, s4")), 1U);
}

// Lanes leave in a branch of the loop, and where it ends, all that came to it are on.
TEST(ExecFlow, KnowsBranchesInLoops) {
  const std::vector<std::string> loop{
      "s_mov_b32 s3, 0",
      "v_cmp_gt_u32_e32 vcc_lo, 16, v0",
      "s_and_saveexec_b32 s5, vcc_lo",
      "s_cbranch_execz @5",
      "v_mov_b32_e32 v4, 0",
      "s_or_b32 exec_lo, exec_lo, s5",
      "v_cmp_lt_u32_e64 s2, 3, v1",
      "s_or_b32 s3, s2, s3",
      "s_and_not1_b32 exec_lo, exec_lo, s3",
      "s_cbranch_execnz @2",
      "s_or_b32 exec_lo, exec_lo, s3",
      kExchange,
      "s_endpgm",
  };
  EXPECT_EQ(wrong_in(loop), 0U);
  EXPECT_EQ(wrong_in(with(loop, 4, kExchange)), 1U);
  EXPECT_EQ(wrong_in(with(loop, 5, "s_nop 0")), 1U);
}

// Half of a mask of 64 lanes is not the mask.
TEST(ExecFlow, KnowsHalvesOfMasks) {
  const auto restored = [](const char* half) {
    return wrong_in({"s_mov_b64 s[8:9], -1", half, "v_cmpx_gt_u32_e32 vcc, 16, v0",
                     "s_or_b64 exec, exec, s[8:9]", "ds_bpermute_b32 v0, v1, v2", "s_endpgm"});
  };
  EXPECT_EQ(restored("s_nop 0"), 0U);
  for (const char* half : {"s_mov_b32 s8, 7", "s_mov_b32 s9, 7", "s_mov_b32 s9, -1"})
    EXPECT_EQ(restored(half), 1U) << half;
  EXPECT_EQ(wrong_in({"s_mov_b32 s8, -1", "v_cmpx_gt_u32_e32 vcc, 16, v0",
                      "s_or_b64 exec, exec, s[8:9]", "ds_bpermute_b32 v0, v1, v2", "s_endpgm"}),
            1U);
}

// gfx1100 of clang 19, prefill_fp32 with head_dim 98: EXEC waits in the upper half of VCC, which is
// a register of its own where a mask has 32 lanes.
TEST(ExecFlow, KnowsBothHalvesOfVcc) {
  const auto restored = [](const char* compare, const char* from) {
    return wrong_in({"v_cmp_gt_u32_e64 s2, 16, v0", "s_and_saveexec_b32 vcc_hi, s2", compare,
                     std::string("s_or_b32 exec_lo, exec_lo, ") + from, kExchange, "s_endpgm"});
  };
  EXPECT_EQ(restored("s_nop 0", "vcc_hi"), 0U);
  EXPECT_EQ(restored("v_cmp_gt_u32_e32 vcc_lo, 8, v1", "vcc_hi"), 0U);
  EXPECT_EQ(restored("v_cmp_gt_u32_e64 vcc_hi, 8, v1", "vcc_hi"), 1U);
  EXPECT_EQ(restored("v_cmp_gt_u32_e32 vcc_lo, 8, v1", "vcc_lo"), 1U);
  EXPECT_EQ(
      wrong_in({"s_mov_b64 vcc, exec", "s_mov_b32 vcc_hi, 7", "v_cmpx_gt_u32_e32 s[2:3], 16, v0",
                "s_or_b64 exec, exec, vcc", "ds_bpermute_b32 v0, v1, v2", "s_endpgm"}),
      1U);
}

// The same comparison gives other lanes the next time.
TEST(ExecFlow, TellsTimesOfAnInstructionApart) {
  const std::string text =  // `code` points into it
      amd_text({"v_cmp_gt_u32_e64 s2, 16, v0", "s_xor_b32 s4, s2, -1", "s_or_b32 s5, s2, s4"});
  const std::vector<gpu::AmdInstruction> code = gpu::read_amd_disassembly(text);
  gpu::ExecMasks names;
  gpu::MaskSteps steps(names, false);
  gpu::MaskRegisters masks;
  masks.fill(gpu::ExecMasks::kUnknown);
  masks[gpu::kExec] = gpu::ExecMasks::kAllLanes;
  const auto step = [&](std::size_t i) { steps.step(code[i], i, masks); };
  for (const std::size_t i : {0, 1, 2}) step(i);
  EXPECT_EQ(masks[5], gpu::ExecMasks::kAllLanes);
  for (const std::size_t i : {0, 2}) step(i);
  EXPECT_NE(masks[5], gpu::ExecMasks::kAllLanes);
}

}  // namespace
}  // namespace fulmen::test
