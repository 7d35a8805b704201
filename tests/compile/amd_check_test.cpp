// Instructions that read lanes which may be off are found in machine code.
#include "gpu/compile/amd_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "amd_text.h"

namespace fulmen::test {
namespace {

std::size_t findings(const std::vector<std::string>& lines) { return gpu::cross_lane_findings(amd_text(lines)).size(); }

// What clang 19 made of `sum = s + permlanex16(s); if (lane / 16 == 0) store(sum)` on gfx1100.
TEST(AmdCheck, FindsAPermlaneThatWasMovedUnderABranch) {
  const std::vector<std::string> moved{
      "v_mov_b32_e32 v1, 0",
      "s_mov_b32 s0, exec_lo",
      "v_cmpx_gt_u32_e32 16, v0",
      "s_cbranch_execz @6",
      "v_permlanex16_b32 v2, v3, s4, s5 op_sel:[0,1]",
      "ds_store_b32 v1, v2",
      "s_endpgm",
  };
  const auto found = gpu::cross_lane_findings(amd_text(moved));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find("v_permlanex16_b32 v2, v3, s4, s5 op_sel:[0,1] at address 0x1010"), std::string::npos) << found[0];
  auto fetching = moved;
  fetching[4] = "v_permlanex16_b32 v2, v3, s4, s5 op_sel:[1,1]";
  EXPECT_EQ(findings(fetching), 0U) << "it fetches inactive lanes";
}

TEST(AmdCheck, KnowsTheInstructionsThatReadOtherLanes) {
  const auto under_a_branch = [](const char* instruction) {
    return findings({"v_cmpx_gt_u32_e32 16, v0", instruction, "s_endpgm"});
  };
  for (const char* wrong :
       {"ds_bpermute_b32 v0, v1, v2", "ds_permute_b32 v0, v1, v2", "ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)",
        "v_permlane16_b32 v0, v1, s0, s1", "v_add_f32_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf"}) {
    EXPECT_EQ(under_a_branch(wrong), 1U) << wrong;
  }
  for (const char* right : {"v_readlane_b32 s0, v1, 3", "v_readfirstlane_b32 s0, v1", "v_add_f32_e32 v0, v1, v2",
                            "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf fi:1"}) {
    EXPECT_EQ(under_a_branch(right), 0U) << right;
  }
}

TEST(AmdCheck, KnowsWhereBranchesEnd) {
  const std::string exchange = "v_permlanex16_b32 v2, v3, s4, s5";
  // if
  EXPECT_EQ(findings({"v_cmp_gt_u32_e32 vcc_lo, 16, v0", "s_and_saveexec_b32 s0, vcc_lo", "s_cbranch_execz @4",
                      "v_mov_b32_e32 v1, 0", "s_or_b32 exec_lo, exec_lo, s0", exchange, "s_endpgm"}),
            0U);
  // if and else, in a wave of 64 lanes, inside another if
  const std::vector<std::string> nested{
      "s_mov_b64 s[8:9], exec",
      "v_cmpx_lt_u32_e32 3, v0",
      "v_cmp_gt_u32_e32 vcc, 16, v0",
      "s_and_saveexec_b64 s[0:1], vcc",
      "s_xor_b64 s[0:1], exec, s[0:1]",
      "s_cbranch_execz @7",
      "v_mov_b32_e32 v1, 0",
      "s_or_saveexec_b64 s[2:3], s[0:1]",
      "s_xor_b64 exec, exec, s[2:3]",
      "v_mov_b32_e32 v1, 1",
      "s_or_b64 exec, exec, s[2:3]",
      "s_or_b64 exec, exec, s[8:9]",
      "ds_bpermute_b32 v0, v1, v2",
      "s_endpgm",
  };
  EXPECT_EQ(findings(nested), 0U);
  auto inside = nested;
  inside[11] = "s_nop 0";  // the outer if is still open
  EXPECT_EQ(findings(inside), 1U);
  // A mask that was overwritten, whole or in part, turns no lanes on.
  for (const char* overwritten : {"s_mov_b32 s0, 7", "s_load_b64 s[0:1], s[6:7], 0x0", "v_readfirstlane_b32 s0, v1"}) {
    EXPECT_EQ(findings({"s_mov_b32 s0, exec_lo", "v_cmpx_gt_u32_e32 16, v0", overwritten, "s_or_b32 exec_lo, exec_lo, s0", exchange,
                        "s_endpgm"}),
              1U)
        << overwritten;
  }
  EXPECT_EQ(findings({"s_mov_b32 exec_lo, 1", "s_mov_b32 exec_lo, -1", exchange, "s_endpgm"}), 0U);
}

TEST(AmdCheck, TakesTheWorseOfTwoWays) {
  EXPECT_EQ(findings({"s_cbranch_scc0 @2", "v_cmpx_gt_u32_e32 16, v0", "v_permlanex16_b32 v2, v3, s4, s5", "s_endpgm"}), 1U);
  EXPECT_EQ(findings({"s_branch @2", "v_cmpx_gt_u32_e32 16, v0", "v_permlanex16_b32 v2, v3, s4, s5", "s_endpgm"}), 0U);
  // Round a loop: the first round has all lanes.
  EXPECT_EQ(findings({"v_permlanex16_b32 v2, v3, s4, s5", "v_cmpx_gt_u32_e32 16, v0", "s_cbranch_execnz @0", "s_endpgm"}), 1U);
}

TEST(AmdCheck, ReadsAnyText) {
  for (const char* text :
       {"", "\t// ", "\tv_cmpx // 0", "\ts_mov_b32 s[99999999999:3], exec_lo // 0", "\ts_or_b32 s[3:1], s200, [ // 1"}) {
    EXPECT_TRUE(gpu::cross_lane_findings(text).empty()) << text;
  }
}

}  // namespace
}  // namespace fulmen::test
