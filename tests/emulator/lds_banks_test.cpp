// Bank conflicts of LDS: what an instruction costs, that a kernel's are counted at their lines, and
// that the main loops have none.
#include "emulator/source/lds_banks.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "emulator/emulated_kernel.h"
#include "support/attention_case.h"
#include "support/run_kernel.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

using gpu::cost_of;
using gpu::kNoAccess;
using gpu::LdsCost;
using gpu::emulated::LdsBankCount;

std::vector<int> offsets(int lanes, const std::function<int(int)>& of) {
  std::vector<int> at;
  for (int lane = 0; lane < lanes; ++lane) at.push_back(of(lane));
  return at;
}

TEST(LdsBanks, CostOfAnInstruction) {
  const auto expect = [](const LdsCost& cost, int64_t instructions, int64_t cycles,
                         int64_t conflicts) {
    EXPECT_EQ(cost.instructions, instructions);
    EXPECT_EQ(cost.cycles, cycles);
    EXPECT_EQ(cost.conflicts, conflicts);
  };
  expect(cost_of(offsets(32, [](int l) { return 4 * l; }), 4), 1, 1, 0);      // each lane a bank
  expect(cost_of(offsets(32, [](int) { return 64; }), 4), 1, 1, 0);           // one word for all
  expect(cost_of(offsets(32, [](int l) { return 128 * l; }), 4), 1, 32, 31);  // one bank for all
  expect(cost_of(offsets(32, [](int l) { return 8 * l; }), 4), 1, 2, 1);
  expect(cost_of(offsets(64, [](int l) { return 4 * l; }), 4), 1, 2, 0);
  expect(cost_of(offsets(32, [](int l) { return 8 * l; }), 8), 1, 2, 0);
  expect(cost_of(offsets(32, [](int l) { return 16 * l; }), 16), 1, 4, 0);
  // A column of 16-byte pieces: rows of 128 bytes lie in the same banks, rows of 144 do not.
  expect(cost_of(offsets(8, [](int l) { return 128 * l; }), 16), 1, 8, 7);
  expect(cost_of(offsets(8, [](int l) { return 144 * l; }), 16), 1, 1, 0);
  // 16 bytes at multiples of 8 are two instructions, so are 32 bytes.
  expect(cost_of(offsets(16, [](int l) { return 8 + 16 * l; }), 16), 2, 4, 2);
  expect(cost_of(offsets(8, [](int l) { return 32 * l; }), 32), 2, 4, 2);
  // Lanes without an access cost nothing.
  expect(cost_of(offsets(32, [](int l) { return l == 7 ? 0 : kNoAccess; }), 4), 1, 1, 0);
  expect(cost_of(offsets(32, [](int) { return kNoAccess; }), 4), 1, 0, 0);
}

// Rows of 64 banks, or 256 bytes, and their 16-byte reads in the order that was measured on gfx950:
// lanes 0 to 3, 12 to 15 and 20 to 27 at once.
TEST(LdsBanks, CostOfAReadFrom64Banks) {
  const gpu::LdsReads reads{.banks = 64, .interleaves = true};
  const auto expect = [&](const std::function<int(int)>& of, int bytes, int64_t cycles,
                          int64_t conflicts) {
    const LdsCost cost = cost_of(offsets(64, of), bytes, reads);
    EXPECT_EQ(cost.cycles, cycles);
    EXPECT_EQ(cost.conflicts, conflicts);
  };
  expect([](int l) { return 4 * l; }, 4, 2, 0);
  expect([](int l) { return 256 * l; }, 4, 2 * 64, 2 * 63);
  expect([](int l) { return 8 * l; }, 8, 4, 0);
  // Two lanes that are served at once, and two that are not.
  expect([](int l) { return 16 * (l == 12 ? 16 : l); }, 16, 10, 2);
  expect([](int l) { return 16 * (l == 4 ? 16 : l); }, 16, 8, 0);
  // 16 rows, of which a lane has 16 bytes: an operand of a product.
  const auto operand = [](int pitch) {
    return [=](int l) { return l % 16 * pitch + l / 16 * 16; };
  };
  expect(operand(256 + 32), 16, 8, 0);
  expect(operand(256 + 16), 16, 16, 8);
  expect(operand(256), 16, 64, 56);
}

TEST(LdsBanks, AKernelsConflictsAreCountedAtTheirLines) {
  const DeviceArray x(4);
  const KernelText text{.body =
                            "lds_store(4 * thread_id(), 1.0F);\nbarrier();\nlds_load<float>(128 * "
                            "(thread_id() % 8));",
                        .workgroup_size = 64,
                        .lds_bytes = 1024};
  const KernelText whole{
      .body =
          "for (int n = 0; n < 4; ++n) lds_store(4 * thread_id() + 256 * n, 1.0F);\nbarrier();\n"
          "lds_load<float>(128 * (thread_id() % 8));",
      .workgroup_size = 64,
      .lds_bytes = 1024};
  EXPECT_FALSE(run_text(text, x.data()).ok()) << "reads what nobody wrote";
  const LdsBankCount count;
  ASSERT_TRUE(run_text(whole, x.data()).ok());
  // Two waves; each reads eight words of one bank at once.
  EXPECT_EQ(count.banks().conflicts(), 2 * 7);
  const std::string report = count.banks().report();
  EXPECT_NE(report.find("reads 4 bytes: 2 instructions, 16 cycles, 14 conflicts\n"),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("writes 4 bytes: 8 instructions, 8 cycles, 0 conflicts\n"),
            std::string::npos)
      << report;
  EXPECT_EQ(report.find("kernel.h:"), 0U) << "no source position: " << report;
}

TEST(LdsBanks, NobodyCountsUnasked) {
  EXPECT_EQ(LdsBankCount::active(), nullptr);
  {
    const LdsBankCount outer;
    const LdsBankCount inner;
    EXPECT_EQ(LdsBankCount::active(), &inner.banks());
  }
  EXPECT_EQ(LdsBankCount::active(), nullptr);
}

// The family's one kernel of matrix instructions has none in a case, where it counts accesses of
// `file`.
void expect_no_conflicts(const CaseSpec& s, Random& random, const std::string& device,
                         const char* family, const char* file) {
  Case c(s, random);
  int runs = 0;
  for (const std::string& kernel : kernels_for(c.problem(), device)) {
    if (!kernel.starts_with(family) || kernel.ends_with(".portable")) continue;
    const LdsBankCount count;
    EXPECT_TRUE(verified(c, kernel, {device}));
    EXPECT_EQ(count.banks().conflicts(), 0) << kernel << ", head_dim " << s.head_dim << '\n'
                                            << count.banks().report();
    EXPECT_NE(count.banks().report().find(file), std::string::npos) << "nothing was counted";
    ++runs;
  }
  EXPECT_EQ(runs, 1);
}

class LdsOfChips : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  }
};

class MainLoop : public LdsOfChips {};

TEST_P(MainLoop, OfMatrixKernelsHasNoBankConflicts) {
  Random random(7400);
  const std::string device = "emulated:" + GetParam();
  // sm_90 has room for larger tiles from 128 on.
  const bool large = GetParam() == "sm_90";
  for (const int64_t head_dim : {large ? 128 : 64, large ? 256 : 128}) {
    CaseSpec s;
    s.dtype = random.pick({DType::fp16, DType::bf16});
    s.seqlen_q = s.seqlen_k = 160;  // whole tiles and a part of one
    s.head_dim = s.head_dim_v = head_dim;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    expect_no_conflicts(s, random, device, "emulated.prefill.", "stage.h");
  }
}

std::vector<std::string> main_loop_chips() {
  std::vector<std::string> chips = test_chips(extends_none);
  chips.emplace_back("sm_90");
  return chips;
}
INSTANTIATE_TEST_SUITE_P(Chips, MainLoop, ::testing::ValuesIn(main_loop_chips()),
                         [](const auto& info) { return info.param; });

class Backward : public LdsOfChips {};

TEST_P(Backward, OfMatrixKernelsHasNoBankConflicts) {
  Random random(7410);
  const std::string device = "emulated:" + GetParam();
  for (const int64_t head_dim : {64, 128, 256}) {
    // Its groups of four rows meet in pairs.
    if (head_dim > 128 && GetParam().starts_with("gfx11")) continue;
    CaseSpec s;
    s.backward = true;
    s.dtype = random.pick({DType::fp16, DType::bf16});
    s.seqlen_q = s.seqlen_k = 72;  // a whole tile or more, and a part of one
    s.head_dim = s.head_dim_v = head_dim;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    expect_no_conflicts(s, random, device, "emulated.backward.", "columns.h");
  }
}

INSTANTIATE_TEST_SUITE_P(Amd, Backward, ::testing::ValuesIn(test_chips(is_amd)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing
