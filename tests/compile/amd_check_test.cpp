// The check of AMD machine code finds each kind of error: one kernel for each rule that breaks it.
#include "gpu/compile/report/amd_check.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "amd_text.h"
#include "gpu/compile/report/amd_descriptor.h"
#include "tiny_kernel.h"

namespace fulmen::test {
namespace {

std::vector<std::string> found(const std::vector<std::string>& lines,
                               const gpu::AmdKernelFacts& facts = {}) {
  return gpu::amd_findings(amd_text(lines), facts);
}
std::size_t findings(const std::vector<std::string>& lines) { return found(lines).size(); }

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
  const auto wrong = found(moved);
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_NE(wrong[0].find("v_permlanex16_b32 v2, v3, s4, s5 op_sel:[0,1] at address 0x1010"),
            std::string::npos)
      << wrong[0];
  auto fetching = moved;
  fetching[4] = "v_permlanex16_b32 v2, v3, s4, s5 op_sel:[1,1]";
  EXPECT_EQ(findings(fetching), 0U) << "it fetches inactive lanes";
}

// What clang 19 made of short_backward's last product, whose result only rows that there are store
// (gfx1201, head_dim 1).
TEST(AmdCheck, FindsAMatrixInstructionThatWasMovedUnderABranch) {
  const auto under_a_branch = [](const char* instruction) {
    return found({"v_cmpx_gt_u32_e32 10, v0", instruction, "s_endpgm"});
  };
  for (const char* wrong : {"v_wmma_f32_16x16x16_f16 v[1:8], v[21:24], v[17:20], 0",
                            "v_wmma_f32_16x16x16_bf16 v[1:8], v[9:16], v[17:24], v[1:8]"}) {
    const auto findings = under_a_branch(wrong);
    ASSERT_EQ(findings.size(), 1U) << wrong;
    EXPECT_NE(findings[0].find("multiplies matrices where lanes may be off"), std::string::npos)
        << findings[0];
  }
  EXPECT_TRUE(under_a_branch("v_mfma_f32_16x16x16_f16 v[1:4], v[9:10], v[17:18], 0").empty())
      << "it does not look at EXEC";
  EXPECT_EQ(findings({"v_wmma_f32_16x16x16_f16 v[1:8], v[21:24], v[17:20], 0", "s_endpgm"}), 0U);
}

TEST(AmdCheck, KnowsTheInstructionsThatReadOtherLanes) {
  const auto under_a_branch = [](const char* instruction) {
    return findings({"v_cmpx_gt_u32_e32 16, v0", instruction, "s_endpgm"});
  };
  for (const char* wrong :
       {"ds_bpermute_b32 v0, v1, v2", "ds_permute_b32 v0, v1, v2",
        "ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)", "ds_read_b64_tr_b16 v[0:1], v2",
        "v_permlane16_b32 v0, v1, s0, s1", "v_permlane32_swap_b32_e32 v0, v1",
        "v_add_f32_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf"}) {
    EXPECT_EQ(under_a_branch(wrong), 1U) << wrong;
  }
  for (const char* right :
       {"v_readlane_b32 s0, v1, 3", "v_readfirstlane_b32 s0, v1", "v_add_f32_e32 v0, v1, v2",
        "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf fi:1",
        "v_permlane32_swap_b32_e64 v0, v1 fi:1"}) {
    EXPECT_EQ(under_a_branch(right), 0U) << right;
  }
}

TEST(AmdCheck, KnowsWhereBranchesEnd) {
  const std::string exchange = "v_permlanex16_b32 v2, v3, s4, s5";
  // if
  EXPECT_EQ(findings({"v_cmp_gt_u32_e32 vcc_lo, 16, v0", "s_and_saveexec_b32 s0, vcc_lo",
                      "s_cbranch_execz @4", "v_mov_b32_e32 v1, 0", "s_or_b32 exec_lo, exec_lo, s0",
                      exchange, "s_endpgm"}),
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
  // Restoring from a mask that was overwritten, whole or in part, does not turn the lanes on.
  for (const char* overwritten :
       {"s_mov_b32 s0, 7", "s_lshl_b64 s[0:1], s[6:7], 1", "v_readfirstlane_b32 s0, v1"}) {
    EXPECT_EQ(findings({"s_mov_b32 s0, exec_lo", "v_cmpx_gt_u32_e32 16, v0", overwritten,
                        "s_or_b32 exec_lo, exec_lo, s0", exchange, "s_endpgm"}),
              1U)
        << overwritten;
  }
  EXPECT_EQ(findings({"s_mov_b32 exec_lo, 1", "s_mov_b32 exec_lo, -1", exchange, "s_endpgm"}), 0U);
}

// clang 19, prefill of gfx942 with V narrower than K: on one way to the branch its condition is -1,
// which leaves no lane to turn on again; all lanes stay on.
TEST(AmdCheck, KnowsThatNothingIsAddedToAllLanes) {
  const auto with = [](const char* restored, const char* condition) {
    return std::vector<std::string>{
        "s_mov_b64 s[8:9], -1",
        condition,
        "s_and_saveexec_b64 s[6:7], s[8:9]",
        "s_xor_b64 s[6:7], exec, s[6:7]",
        "s_cbranch_execz @6",
        "v_mov_b32_e32 v1, 0",
        restored,
        "ds_bpermute_b32 v0, v1, v2",
        "s_endpgm",
    };
  };
  const char *restore = "s_or_b64 exec, exec, s[6:7]", *another = "s_or_b64 exec, exec, s[10:11]";
  for (const char* condition :
       {"s_nop 0", "v_cmp_gt_u32_e64 s[8:9], 16, v0", "s_orn2_b64 s[8:9], s[4:5], exec"}) {
    EXPECT_EQ(findings(with(restore, condition)), 0U) << condition;
  }
  // With some lanes on, only a mask that is known to hold the remaining lanes turns all of them on.
  EXPECT_EQ(findings(with(another, "v_cmp_gt_u32_e64 s[8:9], 16, v0")), 1U);
  EXPECT_EQ(findings(with("s_and_b64 exec, exec, s[10:11]", "s_nop 0")), 1U);
}

// The same where the way with the condition -1 is followed first, and the other one is found later.
TEST(AmdCheck, ForgetsWhatItThoughtOfAWayBefore) {
  const auto with = [](const char* restored) {
    return std::vector<std::string>{
        "s_mov_b64 s[8:9], -1",
        "s_cbranch_scc0 @9",
        "s_and_saveexec_b64 s[6:7], s[8:9]",
        "s_xor_b64 s[6:7], exec, s[6:7]",
        "s_cbranch_execz @6",
        "v_mov_b32_e32 v1, 0",
        restored,
        "ds_bpermute_b32 v0, v1, v2",
        "s_endpgm",
        "v_cmp_gt_u32_e64 s[8:9], 16, v0",
        "s_branch @2",
    };
  };
  EXPECT_EQ(findings(with("s_or_b64 exec, exec, s[6:7]")), 0U);
  EXPECT_EQ(findings(with("s_or_b64 exec, exec, s[10:11]")), 1U);
}

TEST(AmdCheck, TakesTheWorseOfTwoWays) {
  EXPECT_EQ(findings({"s_cbranch_scc0 @2", "v_cmpx_gt_u32_e32 16, v0",
                      "v_permlanex16_b32 v2, v3, s4, s5", "s_endpgm"}),
            1U);
  EXPECT_EQ(findings({"s_branch @2", "v_cmpx_gt_u32_e32 16, v0", "v_permlanex16_b32 v2, v3, s4, s5",
                      "s_endpgm"}),
            0U);
  // Round a loop: the first round has all lanes.
  EXPECT_EQ(findings({"v_permlanex16_b32 v2, v3, s4, s5", "v_cmpx_gt_u32_e32 16, v0",
                      "s_cbranch_execnz @0", "s_endpgm"}),
            1U);
}

// The kernel is wrong exactly at the lines that begin with "?".
void expect_marked(std::vector<std::string> lines, const gpu::AmdKernelFacts& facts,
                   const std::string& what) {
  std::vector<std::size_t> marked;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with('?')) continue;
    lines[i].erase(0, 1);
    marked.push_back(i);
  }
  const auto wrong = found(lines, facts);
  std::string all;
  for (const std::string& sentence : wrong) all += sentence + "\n";
  ASSERT_EQ(wrong.size(), marked.size()) << all << ::testing::PrintToString(lines);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    char address[32];
    std::snprintf(address, sizeof address, " at address %#zx ", 0x1000 + 4 * marked[i]);
    EXPECT_NE(wrong[i].find(address), std::string::npos) << wrong[i];
    EXPECT_NE(wrong[i].find(what), std::string::npos) << wrong[i];
  }
}

TEST(AmdCheck, FindsBarriersThatNotAllLanesComeTo) {
  for (const char* barrier : {"s_barrier", "s_barrier_signal -1", "s_barrier_wait 0xffff"}) {
    const std::string right = barrier, wrong = "?" + right;
    // Lanes are off, and no branch skips the barrier.
    expect_marked({"v_cmpx_gt_u32_e32 16, v0", wrong, "s_endpgm"}, {}, "lanes may be off");
    // A branch on work items, on the wave's number, on what is loaded from LDS by work item.
    expect_marked({"v_cmp_gt_u32_e32 vcc_lo, 16, v0", "s_cbranch_vccz @3", wrong, "s_endpgm"}, {},
                  "not all waves");
    expect_marked({"v_lshrrev_b32_e32 v1, 5, v0", "v_readfirstlane_b32 s2, v1",
                   "s_cmp_lt_i32 s2, s33", "s_cbranch_scc1 @5", wrong, "s_endpgm"},
                  {}, "not all waves");
    expect_marked({"ds_load_b32 v1, v0", "s_waitcnt lgkmcnt(0)", "v_readfirstlane_b32 s2, v1",
                   "s_cmp_lt_i32 s2, 3", "s_cbranch_scc1 @6", wrong, "s_endpgm"},
                  {}, "not all waves");
    // A loop whose trip count is the wave's number.
    expect_marked({"v_readfirstlane_b32 s2, v0", wrong, "s_sub_i32 s2, s2, 1", "s_cmp_lg_u32 s2, 0",
                   "s_cbranch_scc1 @1", "s_endpgm"},
                  {}, "not all waves");
    // What only some waves write differs between them.
    expect_marked(
        {"s_mov_b32 s3, 7", "v_readfirstlane_b32 s2, v0", "s_cmp_lt_i32 s2, 1", "s_cbranch_scc1 @5",
         "s_mov_b32 s3, 8", "s_cmp_eq_u32 s3, 8", "s_cbranch_scc1 @8", wrong, "s_endpgm"},
        {}, "not all waves");
    // All waves arrive: behind a branch on an argument; after a wave's own branch; where the lanes
    // are on again.
    expect_marked({"s_load_b32 s2, s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", "s_cmp_lt_i32 s2, 3",
                   "s_cbranch_scc1 @5", right, "s_endpgm"},
                  {}, "");
    expect_marked({"v_readfirstlane_b32 s2, v0", "s_cmp_lt_i32 s2, 1", "s_cbranch_scc1 @4",
                   "s_nop 0", right, "s_endpgm"},
                  {}, "");
    expect_marked(
        {"v_cmp_gt_u32_e32 vcc_lo, 16, v0", "s_and_saveexec_b32 s0, vcc_lo", "s_cbranch_execz @4",
         "v_mov_b32_e32 v1, 0", "s_or_b32 exec_lo, exec_lo, s0", right, "s_endpgm"},
        {}, "");
  }
}

// clang 19, dk and dbias of gfx1201: a wave-uniform reciprocal beside an address of each lane.
TEST(AmdCheck, KeepsTheHalvesOfDualInstructionsApart) {
  const auto branch_on = [](const char* scalar) {
    return found({"v_mov_b32_e32 v3, 1.0",
                  "v_dual_mul_f32 v1, 2.0, v3 :: v_dual_lshlrev_b32 v4, 1, v0", scalar,
                  "s_cmp_eq_u32 s0, 0", "s_cbranch_scc1 @6", "s_barrier", "s_endpgm"});
  };
  EXPECT_TRUE(branch_on("v_readfirstlane_b32 s0, v1").empty());
  const auto wrong = branch_on("v_readfirstlane_b32 s0, v4");
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_NE(wrong[0].find("not all waves come to"), std::string::npos) << wrong[0];
}

// gfx942 of clang 19: four scalar registers are spilled, of which two are used; they restore the
// conditions of loops with barriers.
TEST(AmdCheck, FollowsScalarsThatAreKeptInLanes) {
  const gpu::AmdKernelFacts facts{.arch = "gfx942", .initial_scalars = 3, .initial_vectors = 1};
  const auto kept_and_used = [](const char* use) {
    return std::vector<std::string>{"v_writelane_b32 v1, s3, 2",
                                    "v_writelane_b32 v1, s2, 3",
                                    "v_readlane_b32 s4, v1, 2",
                                    "v_readlane_b32 s5, v1, 3",
                                    use,
                                    "s_endpgm"};
  };
  expect_marked(kept_and_used("s_add_u32 s6, s5, 1"), facts, "");
  expect_marked(kept_and_used("?s_add_u32 s6, s4, 1"), facts, "that nothing has written");
  expect_marked(
      {"v_mov_b32_e32 v1, s2", "v_readlane_b32 s4, v1, 2", "s_add_u32 s5, s4, 1", "s_endpgm"},
      facts, "");
  expect_marked({"?v_writelane_b32 v1, s2, s3", "s_endpgm"}, facts, "that nothing has written");

  const auto branch_on = [](const char* read, const char* barrier) {
    return std::vector<std::string>{"v_readfirstlane_b32 s2, v0",
                                    "s_mov_b64 s[6:7], exec",
                                    "v_cmpx_gt_u32_e32 16, v0",
                                    "v_writelane_b32 v1, s2, 0",
                                    "v_writelane_b32 v1, s3, 1",
                                    "s_or_b64 exec, exec, s[6:7]",
                                    read,
                                    "s_cmp_lt_i32 s4, 1",
                                    "s_cbranch_scc1 @10",
                                    barrier,
                                    "s_endpgm"};
  };
  expect_marked(branch_on("v_readlane_b32 s4, v1, 1", "s_barrier"), {}, "");
  expect_marked(branch_on("v_readlane_b32 s4, v1, 0", "?s_barrier"), {}, "not all waves");
  expect_marked(branch_on("v_readfirstlane_b32 s4, v1", "?s_barrier"), {}, "not all waves");
  // Other lanes stay as they were.
  expect_marked({"v_mov_b32_e32 v1, v0", "v_writelane_b32 v1, s3, 1", "v_readlane_b32 s4, v1, 2",
                 "s_cmp_lt_i32 s4, 1", "s_cbranch_scc1 @6", "?s_barrier", "s_endpgm"},
                {}, "not all waves");
}

// clang 19, dk and dv of gfx942: on a path of some waves only, a register is reused and then gets
// its old value back.
TEST(AmdCheck, KnowsRegistersThatGetTheirValueBack) {
  // s3 is 7. Only some waves, by s2, execute `there`; a barrier then depends on the value that it
  // leaves in s3.
  const auto branch_on = [](std::vector<std::string> there, const char* barrier) {
    std::vector<std::string> lines{"s_mov_b32 s3, 7", "v_readfirstlane_b32 s2, v0",
                                   "s_cmp_lt_i32 s2, 1",
                                   "s_cbranch_scc1 @" + std::to_string(4 + there.size())};
    lines.insert(lines.end(), there.begin(), there.end());
    const std::size_t end = lines.size() + 3;
    for (const std::string& line :
         {std::string("s_cmp_eq_u32 s3, 8"), "s_cbranch_scc1 @" + std::to_string(end),
          std::string(barrier), std::string("s_endpgm")}) {
      lines.push_back(line);
    }
    return lines;
  };
  expect_marked(branch_on({"s_mov_b32 s5, s3", "s_mov_b32 s3, 9", "s_mov_b32 s3, s5"}, "s_barrier"),
                {}, "");
  expect_marked(
      branch_on({"s_mov_b64 s[6:7], s[2:3]", "s_mov_b32 s3, 9", "s_mov_b32 s3, s7"}, "s_barrier"),
      {}, "");
  expect_marked(
      branch_on({"v_writelane_b32 v1, s3, 4", "s_add_u32 s3, s3, 1", "v_readlane_b32 s3, v1, 4"},
                "s_barrier"),
      {}, "");
  // Another value; one that was changed meanwhile; one that is not moved back.
  expect_marked(
      branch_on({"s_mov_b32 s5, s3", "s_mov_b32 s3, 9", "s_mov_b32 s3, s6"}, "?s_barrier"), {},
      "not all waves");
  expect_marked(
      branch_on({"s_mov_b32 s5, s3", "s_mov_b32 s3, 9", "s_add_u32 s5, s5, 1", "s_mov_b32 s3, s5"},
                "?s_barrier"),
      {}, "not all waves");
  expect_marked(
      branch_on({"s_mov_b64 s[6:7], s[2:3]", "s_mov_b32 s3, 9", "s_mov_b32 s3, s6"}, "?s_barrier"),
      {}, "not all waves");
  expect_marked(
      branch_on({"v_writelane_b32 v1, s3, 4", "v_mov_b32_e32 v1, 0", "v_readlane_b32 s3, v1, 4"},
                "?s_barrier"),
      {}, "not all waves");
  // Only some of these waves get it back.
  expect_marked(branch_on({"s_mov_b32 s5, s3", "s_mov_b32 s3, 8", "s_cmp_lt_i32 s2, 5",
                           "s_cbranch_scc1 @9", "s_mov_b32 s3, s5"},
                          "?s_barrier"),
                {}, "not all waves");
}

// A loop that each wave leaves after a number of iterations that depends on the wave, with a value
// that each iteration computes.
TEST(AmdCheck, KnowsThatALoopComputesItsValuesAgain) {
  const auto loop = [](const char* computed, const char* barrier) {
    return std::vector<std::string>{"v_readfirstlane_b32 s2, v0",
                                    "s_mov_b32 s3, 0",
                                    computed,
                                    "s_mov_b32 s3, s5",
                                    "s_sub_i32 s2, s2, 1",
                                    "s_cmp_lg_u32 s2, 0",
                                    "s_cbranch_scc1 @2",
                                    "s_cmp_eq_u32 s3, 8",
                                    "s_cbranch_scc1 @10",
                                    barrier,
                                    "s_endpgm"};
  };
  expect_marked(loop("s_add_u32 s5, s5, 1", "?s_barrier"), {}, "not all waves");
}

TEST(AmdCheck, FindsLoadsThatWereNotWaitedFor) {
  struct Chip {
    const char *arch, *load, *lds, *all_loads, *one_load, *all_lds, *one_lds, *all_scalars;
  };
  for (const Chip& c :
       {Chip{"gfx1100", "global_load_b32", "ds_load_b32", "s_waitcnt vmcnt(0)",
             "s_waitcnt vmcnt(1)", "s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(1)",
             "s_waitcnt lgkmcnt(0)"},
        Chip{"gfx1201", "global_load_b32", "ds_load_b32", "s_wait_loadcnt 0x0",
             "s_wait_loadcnt 0x1", "s_wait_dscnt 0x0", "s_wait_dscnt 0x1", "s_wait_kmcnt 0x0"},
        Chip{"gfx942", "global_load_dword", "ds_read_b32", "s_waitcnt vmcnt(0)",
             "s_waitcnt vmcnt(1)", "s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(1)",
             "s_waitcnt lgkmcnt(0)"}}) {
    const gpu::AmdKernelFacts facts{.arch = c.arch};
    const auto load = [&](int to) {
      return std::string(c.load) + " v" + std::to_string(to) + ", v[8:9], off";
    };
    const auto lds = [&](int to) {
      return std::string(c.lds) + " v" + std::to_string(to) + ", v8";
    };
    const std::string scalar = "s_load_dword s2, s[0:1], 0x0", use = "v_mov_b32_e32 v5, v1",
                      wrong = "?" + use;
    const std::string what = "load was not waited for";
    for (const auto& [one, two, all, partly] :
         {std::array<std::string, 4>{load(1), load(2), c.all_loads, c.one_load},
          {lds(1), lds(2), c.all_lds, c.one_lds}}) {
      expect_marked({one, wrong, "s_endpgm"}, facts, what);
      expect_marked({one, all, use, "s_endpgm"}, facts, what);
      expect_marked({one, "?v_mov_b32_e32 v1, 0", "s_endpgm"}, facts, "writes a register");
      expect_marked({one, one, all, use, "s_endpgm"}, facts, what);  // in order: "all" ends last
      // The latest may be outstanding.
      expect_marked({one, two, partly, use, "s_endpgm"}, facts, what);
      expect_marked({two, one, partly, wrong, "s_endpgm"}, facts, what);
      // One of two paths waits for it; on the other there is a later load.
      expect_marked({one, "s_cbranch_scc0 @3", all, wrong, "s_endpgm"}, facts, what);
      expect_marked({one, "s_cbranch_scc0 @3", two, partly, wrong, "s_endpgm"}, facts, what);
      // Around a loop.
      expect_marked({"?v_mov_b32_e32 v5, v1", one, "s_cbranch_scc0 @0", "s_endpgm"}, facts, what);
    }
    expect_marked({scalar, "?s_mov_b32 s3, s2", "s_endpgm"}, facts, what);
    expect_marked({scalar, c.all_scalars, "s_mov_b32 s3, s2", "s_endpgm"}, facts, what);
    expect_marked({load(1), c.all_lds, wrong, "s_endpgm"}, facts, what);  // another counter
  }
}

TEST(AmdCheck, KnowsWhatCountersCount) {
  const std::string what = "load was not waited for";
  // Scalar loads come in any order, and share a counter with LDS before gfx12.
  expect_marked({"s_load_b32 s2, s[0:1], 0x0", "s_load_b32 s3, s[0:1], 0x4", "s_waitcnt lgkmcnt(1)",
                 "?s_mov_b32 s4, s2", "s_endpgm"},
                {.arch = "gfx1100"}, what);
  const std::vector<std::string> mixed{"ds_load_b32 v1, v8", "s_load_b32 s2, s[0:1], 0x0",
                                       "s_waitcnt lgkmcnt(1)", "?v_mov_b32_e32 v5, v1", "s_endpgm"};
  expect_marked(mixed, {.arch = "gfx1100"}, what);
  expect_marked({"ds_load_b32 v1, v8", "s_load_b32 s2, s[0:1], 0x0", "s_wait_dscnt 0x0",
                 "v_mov_b32_e32 v5, v1", "s_endpgm"},
                {.arch = "gfx1201"}, what);
  // Stores count with loads on gfx9 alone.
  const auto with_store = [](const char* arch, const char* use) {
    expect_marked({"global_load_dword v1, v[8:9], off", "global_store_dword v[8:9], v3, off",
                   "s_waitcnt vmcnt(1)", use, "s_endpgm"},
                  {.arch = arch}, "load was not waited for");
  };
  with_store("gfx942", "v_mov_b32_e32 v5, v1");
  with_store("gfx1100", "?v_mov_b32_e32 v5, v1");
  // Loads to LDS count with those to registers.
  for (const char* to_lds :
       {"buffer_load_dword v9, s[4:7], 0 offen lds", "global_load_lds_dwordx4 v[8:9], off"}) {
    expect_marked({"global_load_dword v1, v[8:9], off", to_lds, "s_waitcnt vmcnt(1)",
                   "v_mov_b32_e32 v5, v1", "s_endpgm"},
                  {.arch = "gfx950"}, what);
    expect_marked({"s_load_dword m0, s[0:1], 0x0", std::string("?") + to_lds, "s_endpgm"},
                  {.arch = "gfx950"}, what);
  }
  // Either memory or LDS.
  expect_marked(
      {"flat_load_b32 v1, v[8:9]", "s_waitcnt vmcnt(0)", "?v_mov_b32_e32 v5, v1", "s_endpgm"},
      {.arch = "gfx1100"}, what);
  expect_marked({"flat_load_b32 v1, v[8:9]", "s_waitcnt vmcnt(0) lgkmcnt(0)",
                 "v_mov_b32_e32 v5, v1", "s_endpgm"},
                {.arch = "gfx1100"}, what);
  expect_marked(
      {"global_load_b32 v1, v[8:9], off", "ds_load_b32 v2, v8", "s_wait_loadcnt_dscnt 0x1",
       "?v_mov_b32_e32 v5, v2", "v_mov_b32_e32 v6, v1", "s_endpgm"},
      {.arch = "gfx1201"}, what);
  // Other waves read after a barrier what this one stored.
  expect_marked({"ds_store_b32 v0, v1", "?s_barrier", "s_endpgm"}, {.arch = "gfx1100"},
                "LDS may not have what this wave stored");
  expect_marked({"ds_store_b32 v0, v1", "s_waitcnt lgkmcnt(0)", "s_barrier", "s_endpgm"},
                {.arch = "gfx1100"}, "");
  expect_marked({"ds_store_b32 v0, v1", "?s_barrier_signal -1", "s_barrier_wait -1", "s_endpgm"},
                {.arch = "gfx1201"}, "LDS");
}

TEST(AmdCheck, FindsLdsOutsideOfTheKernels) {
  const gpu::AmdKernelFacts facts{.arch = "gfx1100", .lds_bytes = 1024};
  for (const char* wrong :
       {"?ds_load_b32 v1, v0 offset:1024", "?ds_load_b128 v[4:7], v0 offset:1012",
        "?ds_store_b16 v0, v1 offset:1023", "?ds_store_b8 v0, v1 offset:1024",
        "?ds_read2_b64 v[4:7], v0 offset0:1 offset1:128",
        "?ds_load_2addr_b64 v[4:7], v0 offset1:128",
        "?ds_store_2addr_stride64_b32 v0, v1, v2 offset0:4",
        "?ds_read2st64_b64 v[4:7], v0 offset0:2 offset1:1"}) {
    expect_marked({wrong, "s_endpgm"}, facts, "of LDS: the kernel has 1024");
  }
  for (const char* right :
       {"ds_load_b32 v1, v0 offset:1020", "ds_load_b128 v[4:7], v0 offset:1008",
        "ds_store_b8 v0, v1 offset:1023", "ds_load_2addr_b64 v[4:7], v0 offset1:127",
        "ds_store_2addr_stride64_b32 v0, v1, v2 offset0:2 offset1:3",
        "ds_bpermute_b32 v1, v0, v2 offset:4096", "ds_swizzle_b32 v1, v0 offset:65535"}) {
    expect_marked({right, "s_endpgm"}, facts, "");
  }
  // An address that is a constant counts.
  expect_marked({"v_mov_b32_e32 v1, 0x3fc", "?ds_store_b64 v1, v[2:3]", "s_endpgm"}, facts,
                "reaches byte 1028");
  expect_marked({"v_mov_b32_e32 v1, 0x3fc", "ds_store_b32 v1, v2", "s_endpgm"}, facts, "");
  expect_marked({"v_mov_b32_e32 v1, 0x3fc", "v_and_b32_e32 v1, v1, v0", "ds_store_b64 v1, v[2:3]",
                 "s_endpgm"},
                facts, "");
  expect_marked({"v_mov_b32_e32 v1, 0x3fc", "s_cbranch_scc0 @3", "v_mov_b32_e32 v1, 0",
                 "ds_store_b64 v1, v[2:3]", "s_endpgm"},
                facts, "");
}

TEST(AmdCheck, FindsRegistersThatNothingHasWritten) {
  const gpu::AmdKernelFacts facts{.arch = "gfx942", .initial_scalars = 3, .initial_vectors = 1};
  const std::string what = "that nothing has written";
  for (const char* wrong :
       {"?s_add_u32 s4, s3, 1", "?v_add_u32_e32 v2, 1, v1", "?v_add_u32_e32 v2, s3, v0",
        "?global_store_dword v[0:1], v0, off", "?s_load_dwordx2 s[4:5], s[2:3], 0x0",
        "?v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[0:1], 0", "?s_cbranch_scc0 @1",
        "?s_cbranch_vccz @1", "?s_cselect_b32 s4, 1, 0", "?v_fmac_f32_e32 v1, v0, v0",
        "?v_cndmask_b32_e32 v1, v0, v0, vcc", "?global_load_lds_dword v0, s[0:1]",
        "?v_permlane16_swap_b32_e32 v0, v1"}) {
    expect_marked({wrong, "s_endpgm"}, facts, what);
  }
  for (const char* right :
       {"s_add_u32 s4, s2, 1", "v_add_u32_e32 v2, 1, v0", "v_mov_b32_e32 v1, s2",
        "s_mov_b32 s4, exec_lo", "v_mad_u64_u32 v[4:5], vcc, v0, s1, v[0:1]",
        "v_pk_mul_f32 v[4:5], v[0:1], v[0:1]", "v_fma_mixlo_f16 v1, v0, v0, v0"}) {
    expect_marked({right, "s_endpgm"}, facts, "");
  }
  // Written on one path; by both halves of a dual instruction; a copy of an unwritten register is
  // unwritten.
  expect_marked({"s_cmp_eq_u32 s0, 0", "s_cbranch_scc0 @3", "s_mov_b32 s4, 1",
                 "s_add_u32 s5, s4, 1", "s_endpgm"},
                facts, "");
  expect_marked(
      {"v_dual_mov_b32 v1, v0 :: v_dual_mov_b32 v2, v0", "v_add_f32_e32 v3, v1, v2", "s_endpgm"},
      facts, "");
  expect_marked({"?v_dual_mov_b32 v1, v0 :: v_dual_mul_f32 v2, v0, v1", "s_endpgm"}, facts, what);
  expect_marked({"v_accvgpr_write_b32 a0, v1", "v_accvgpr_read_b32 v2, a0",
                 "?v_add_u32_e32 v3, 1, v2", "s_endpgm"},
                facts, what);
  // One half of a pair.
  expect_marked({"v_mov_b64_e32 v[2:3], v[0:1]", "v_add_u32_e32 v4, 1, v2",
                 "?v_add_u32_e32 v4, 1, v3", "s_endpgm"},
                facts, what);
  expect_marked({"v_dual_mov_b32 v1, v4 :: v_dual_mul_f32 v2, v0, v0", "?v_add_u32_e32 v3, v2, v1",
                 "s_endpgm"},
                facts, what);
  // gfx908 of clang 19: half of a pair is extended.
  expect_marked({"s_mov_b32 s8, 1", "s_bfe_i64 s[4:5], s[8:9], 0x200000", "s_endpgm"}, facts, what);
  expect_marked({"s_mov_b32 s9, 1", "s_bfe_u64 s[4:5], s[8:9], 0x100028", "s_endpgm"}, facts, what);
  expect_marked({"s_mov_b32 s8, 1", "?s_bfe_i64 s[4:5], s[8:9], 0x210000", "s_endpgm"}, facts,
                what);
  // Not looked at where the descriptor is not known.
  expect_marked({"s_add_u32 s4, s3, 1", "s_endpgm"}, {.arch = "gfx942"}, "");
}

// gfx1100 of clang 19, decode of 208 dims: four registers go to scratch of which two are used. They
// are restored unchanged.
TEST(AmdCheck, FollowsRegistersThroughScratch) {
  const std::string what = "that nothing has written";
  const auto through = [](const std::string& store, const std::string& load,
                          const std::string& use) {
    return std::vector<std::string>{
        "v_mov_b32_e32 v5, v0", "v_mov_b32_e32 v6, v0", store, load, use, "s_endpgm"};
  };
  for (const auto& [arch, store, load] :
       {std::array<std::string, 3>{"gfx1100", "scratch_store_b128 off, v[5:8], off offset:16",
                                   "scratch_load_b128 v[10:13], off, off offset:16"},
        {"gfx942", "scratch_store_dwordx4 off, v[5:8], off",
         "scratch_load_dwordx4 v[10:13], off, off"}}) {
    const gpu::AmdKernelFacts facts{.arch = arch, .initial_scalars = 3, .initial_vectors = 1};
    expect_marked(through(store, "s_waitcnt vmcnt(0)", "s_nop 0"), facts, "");
    const auto used = [&](const std::string& use) {
      std::vector<std::string> lines = through(store, load, use);
      lines.insert(lines.begin() + 4, "s_waitcnt vmcnt(0)");
      return lines;
    };
    expect_marked(used("v_add_u32_e32 v20, v10, v11"), facts, "");
    expect_marked(used("?v_add_u32_e32 v20, v10, v12"), facts, what);
  }
  const gpu::AmdKernelFacts facts{.arch = "gfx1100", .initial_scalars = 3, .initial_vectors = 1};
  const auto single = [&](const char* store, const char* load, const char* use) {
    expect_marked({store, load, "s_waitcnt vmcnt(0)", use, "s_endpgm"}, facts, what);
  };
  single("scratch_store_b32 off, v0, off offset:8", "scratch_load_b32 v2, off, off offset:8",
         "v_add_u32_e32 v3, 1, v2");
  single("scratch_store_b32 off, v0, off offset:8", "scratch_load_b32 v2, off, off offset:12",
         "?v_add_u32_e32 v3, 1, v2");
  // An address that is no constant: any scratch slot may be read, and what is stored counts as
  // used.
  single("scratch_store_b32 v0, v0, off", "scratch_load_b32 v2, off, off offset:12",
         "v_add_u32_e32 v3, 1, v2");
  single("?scratch_store_b32 v0, v9, off", "scratch_load_b32 v2, v0, off",
         "v_add_u32_e32 v3, 1, v2");
  // Chips without scratch instructions spill by a buffer, whose address is the same for all lanes.
  const gpu::AmdKernelFacts old{.arch = "gfx906", .initial_scalars = 8, .initial_vectors = 1};
  expect_marked({"buffer_store_dword v9, off, s[0:3], 0 offset:4",
                 "?buffer_store_dword v9, v0, s[0:3], 0 offen", "s_endpgm"},
                old, what);
}

TEST(AmdCheck, KnowsWhatIsSetWhenAWaveStarts) {
  if (!gpu::offline_clang_compiler().ok()) GTEST_SKIP() << "clang is not installed";
  for (const std::string& arch : kAmdArchs) {
    const gpu::CompiledCode code = compile_tiny(arch);
    const gpu::AmdKernelFacts facts = gpu::amd_kernel_facts(code.code, arch);
    EXPECT_EQ(facts.initial_vectors, 1) << arch;
    EXPECT_GE(facts.initial_scalars, 2) << arch << ": the address of the arguments";
    EXPECT_LE(facts.initial_scalars, 20) << arch;
    EXPECT_EQ(facts.lds_bytes, 512) << arch;
    for (std::size_t bytes = 0; bytes < code.code.size(); bytes += 61) {  // cut off anywhere
      gpu::read_amd_initial_registers(std::span(code.code).first(bytes), arch);
    }
  }
  EXPECT_EQ(gpu::read_amd_initial_registers({}, "gfx1100").scalars, -1);
}

TEST(AmdCheck, FindsWhatIsNoInstructionAndWaysOutOfTheKernel) {
  expect_marked({"?.long 0xd7ff0001", "s_endpgm"}, {}, "is no instruction of this chip");
  expect_marked({"?<unknown>", "s_endpgm"}, {}, "is no instruction of this chip");
  expect_marked({"s_endpgm", ".long 0xd7ff0001"}, {}, "");  // behind the end
  expect_marked({"?s_branch 77", "s_endpgm"}, {}, "jumps out of the kernel");
  expect_marked({"?s_nop 0"}, {}, "does not end it");
  expect_marked({"?s_swappc_b64 s[30:31], s[4:5]", "s_endpgm"}, {}, "cannot follow");
}

// What a compiler makes of `if (first) x = ...; barrier; if (first) use(x)`: paths on which the two
// tests differ do not exist.
TEST(AmdCheck, KnowsThatAConditionIsTestedTwice) {
  // s3 is uniform where the second test lets it be read, and differs between waves elsewhere.
  const auto kernel = [](const char* other) {
    return std::vector<std::string>{"s_cmp_lt_i32 s8, s9",
                                    "s_cbranch_scc1 @6",
                                    "v_readfirstlane_b32 s3, v0",
                                    "s_mov_b32 s4, 0",
                                    "s_branch @8",
                                    "s_nop 0",
                                    "s_mov_b32 s3, 1",
                                    other,
                                    "s_and_b32 vcc_lo, exec_lo, s4",
                                    "s_cbranch_vccz @13",
                                    "s_cmp_eq_u32 s3, 0",
                                    "s_cbranch_scc1 @13",
                                    "s_barrier",
                                    "s_endpgm"};
  };
  expect_marked(kernel("s_mov_b32 s4, -1"), {}, "");
  auto same = kernel("s_mov_b32 s4, 0");
  same[3] = "s_mov_b32 s4, -1";
  same[12] = "?s_barrier";
  expect_marked(same, {}, "not all waves");
}

TEST(AmdCheck, ReadsAnyText) {
  for (const char* text :
       {"", "\t// ", "\tv_cmpx // 0", "\ts_mov_b32 s[99999999999:3], exec_lo // 0",
        "\ts_or_b32 s[3:1], s200, [ // 1"}) {
    EXPECT_LE(gpu::amd_findings(text, {.arch = "gfx1100", .lds_bytes = 0}).size(), 1U)
        << text;  // that it does not end
  }
}

}  // namespace
}  // namespace fulmen::test
