// Every GPU kernel on emulated chips: features in a fixed table, so that their kernels are compiled once, everything else drawn
// afresh.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fulmen/fulmen.h"
#include "gpu/device_case.h"

namespace fulmen::testing {
namespace {

bool emulator_is_there() {
  const std::vector<DeviceInfo> all = devices();
  return std::any_of(all.begin(), all.end(), [](const DeviceInfo& d) { return d.name == "emulated:gfx1100" && d.usable; });
}

class EmulatedChip : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!emulator_is_there()) GTEST_SKIP() << "this build has no emulator, or there is no host compiler";
  }
  std::string device() const { return std::string("emulated:") + GetParam(); }
  // Runs each kernel that supports the case; how many there were.
  int expect_all_verified(Case& c, std::size_t shift = 0) const {
    const std::vector<std::string> kernels = kernels_on(device(), c.problem());
    for (const std::string& kernel : kernels) EXPECT_TRUE(verified_on(device(), c, kernel, shift));
    return static_cast<int>(kernels.size());
  }
};

CaseSpec spec_of(DType dtype, int64_t head_dim, Random& random) {
  CaseSpec s;
  s.dtype = dtype;
  s.batch = random.between(1, 2);
  s.num_kv_heads = random.between(1, 2);
  s.num_heads = s.num_kv_heads * random.between(1, 3);
  s.head_dim = s.head_dim_v = head_dim;
  s.seqlen_q = random.between(1, 90);
  s.seqlen_k = random.between(1, 160);
  return s;
}

TEST_P(EmulatedChip, Features) {
  Random random(7100);
  int runs = 0;
  const auto check = [&](CaseSpec s) {
    Case c(s, random);
    runs += expect_all_verified(c);
  };
  CaseSpec s = spec_of(DType::bf16, 64, random);
  check(s);

  s = spec_of(DType::fp16, 32, random);  // boards: bias a head, interleaved
  s.seqlen_q = s.seqlen_k = 64;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  s.bias_broadcast = {true, false, false};
  check(s);

  s = spec_of(DType::bf16, 128, random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  check(s);

  s = spec_of(DType::fp16, 40, random);  // partial dims, rows of odd lengths
  s.head_dim_v = 59;
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  check(s);

  s = spec_of(DType::bf16, 96, random);
  s.layout = random.pick({Layout::bhsd, Layout::sbhd});
  s.keep = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  s.nan_in_masked = true;
  s.alibi = static_cast<int>(random.between(1, 2));
  s.bias = true;
  s.bias_dtype = DType::fp32;
  check(s);

  s = spec_of(DType::fp32, 80, random);
  s.causal = Causal::bottom_right;
  s.sinks = true;
  check(s);
  EXPECT_GE(runs, 6);
}

TEST_P(EmulatedChip, Edges) {
  Random random(7200);
  CaseSpec s = spec_of(DType::bf16, 64, random);
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {1, 1}, {1, 300}, {130, 3}, {17, 129}}) {
    s.seqlen_q = q;
    s.seqlen_k = k;
    Case c(s, random);
    EXPECT_GT(expect_all_verified(c), 0);
  }
  s.seqlen_q = s.seqlen_k = 40;
  s.q_size = 5;
  s.kv_size = 3;
  Case large(s, random);
  expect_all_verified(large);
  s.batch = 0;
  Case empty(s, random);
  expect_all_verified(empty);
}

TEST_P(EmulatedChip, PointersOfAnyAlignment) {
  Random random(7300);
  CaseSpec s = spec_of(DType::bf16, 64, random);
  Case c(s, random);
  EXPECT_GT(expect_all_verified(c, 1), 0);
}

TEST_P(EmulatedChip, RepeatsBitForBit) {
  Random random(7400);
  CaseSpec s = spec_of(DType::bf16, 64, random);
  s.seqlen_q = 2;
  s.seqlen_k = 3000;  // split keys
  Case c(s, random);
  for (const std::string& kernel : kernels_on(device(), c.problem())) {
    ASSERT_TRUE(run_on(device(), c, kernel).ok());
    const std::vector<float> first = c.out_values(), first_lse = c.lse_values();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(run_on(device(), c, kernel).ok());
      EXPECT_EQ(first, c.out_values()) << kernel;
      EXPECT_EQ(first_lse, c.lse_values()) << kernel;
    }
    EXPECT_TRUE(verified_on(device(), c, kernel));
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, EmulatedChip, ::testing::Values("gfx1100", "gfx1151", "gfx1201", "gfx942", "sm_80"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GpuPlan, RefusesHostMemory) {
  if (!emulator_is_there()) GTEST_SKIP();
  Random random(7500);
  Case c(spec_of(DType::bf16, 64, random), random);
  const Result<Plan> planned = plan(c.problem(), "emulated:gfx1100");
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const Status status = planned->run(nullptr, c.tensors, nullptr, 0);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("q.data is"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("memory of emulated:gfx1100 is needed"), std::string::npos) << status.message();
}

TEST(GpuPlan, SaysWhyOtherTargetsDoNotRun) {
  if (!emulator_is_there()) GTEST_SKIP();
  Random random(7600);
  CaseSpec s = spec_of(DType::bf16, 64, random);
  s.seqlen_q = s.seqlen_k = 200;
  Case c(s, random);
  const Result<Plan> planned = plan(c.problem(), "emulated:gfx1100");
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->config().kernel, "emulated.forward.gfx11");
  EXPECT_NE(planned->explain().find("not emulated.forward.gfx12: gfx1100 has the matrix instructions of gfx11"), std::string::npos)
      << planned->explain();
  EXPECT_NE(planned->explain().find("not emulated.short.gfx11: seqlen_k is 200, at most 128 are served"), std::string::npos);
}

TEST(GpuPlan, OneCallVerifiesItself) {
  if (!emulator_is_there()) GTEST_SKIP();
  Random random(7700);
  Case c(spec_of(DType::bf16, 64, random), random);
  AttentionOptions options = c.options;
  options.verify = true;
  const Result<Plan> planned = plan(c.problem(), "emulated:gfx1100", options);
  ASSERT_TRUE(planned.ok());
  EXPECT_TRUE(run_on("emulated:gfx1100", c, planned->config().kernel).ok());
}

TEST(GpuDevices, UnusableOnesSayWhatIsMissing) {
  for (const DeviceInfo& device : devices()) {
    EXPECT_NE(device.usable, !device.reason.empty()) << device.name;
  }
}

}  // namespace
}  // namespace fulmen::testing
