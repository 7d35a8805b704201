// Rules of what the TMA brings from LDS to memory, of counters between workgroups, and of fences: each broken by one change of a
// kernel that keeps them all.
#include <gtest/gtest.h>

#include <cstring>

#include "emulator/emulated_kernel.h"

namespace fulmen::testing {
namespace {

constexpr int kFloats = 32, kCounter = 64;  // places in x

// Wave 0 writes, wave 1 fences and has the TMA store or add, workgroup after workgroup, the one with the lowest number first.
constexpr const char* kInOrder = R"(
constexpr int kFull = 1024;
if (thread_id() == 0) mbarrier_init(kFull, 32);
barrier();
if (wave_id() == 0) {
  lds_store(4 * lane_id(), 1.0F + lane_id());
  mbarrier_arrive(kFull);
} else {
  mbarrier_wait(kFull, 0);
  if (lane_id() == 0) {
    lds_fence_for_matrices();
    int* const counter = reinterpret_cast<int*>(a.x + 64);
    if (workgroup_id() == 0) {
      tma_store(a.x, 0, 128);
    } else {
      counter_wait(counter, static_cast<int>(workgroup_id()));
      tma_add(a.x, 0, 128);
    }
    tma_wait_read();
    tma_wait<0>();
    counter_pass(counter);
  }
}
)";

KernelText text_of(std::string body) {
  return {.arch = "sm_90a",
          .body = std::move(body),
          .headers = "#include \"targets/sm90/target.h\"\n",
          .workgroup_size = 64,
          .lds_bytes = 2048};
}

TEST(TmaStores, WorkgroupsAddInOrder) {
  constexpr int kWorkgroups = 3;
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  const Status status = run_text(text_of(kInOrder), x.data(), kWorkgroups);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int n = 0; n < kFloats; ++n) EXPECT_EQ(x.as<float>()[n], kWorkgroups * (1.0F + static_cast<float>(n))) << n;
  EXPECT_EQ(x.as<int>()[kCounter], kWorkgroups);
}

class TmaStoreRule : public ::testing::TestWithParam<Change> {};
TEST_P(TmaStoreRule, ReportsTheBrokenKernel) {
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  expect_report(text_of(kInOrder), GetParam(), x.data(), 2);
}

const Change kRules[] = {
    {"NoFence", "lds_fence_for_matrices();", "", "LDS without a fence"},
    {"FenceBeforeTheBarrier", "  mbarrier_wait(kFull, 0);\n  if (lane_id() == 0) {\n    lds_fence_for_matrices();\n",
     "  lds_fence_for_matrices();\n  mbarrier_wait(kFull, 0);\n  if (lane_id() == 0) {\n", "LDS without a fence"},
    {"NobodyWaits", "    tma_wait<0>();\n", "", "ends before the wait for its tma_store"},
    {"OneIsLeft", "tma_wait<0>();", "tma_wait<1>();", "ends before the wait for its tma_store"},
    {"OverwrittenBeforeItIsRead", "    tma_wait_read();\n", "    lds_store(0, 5.0F);\n    tma_wait_read();\n", "LDS"},
    {"WaitsForALaterOne", "static_cast<int>(workgroup_id())", "static_cast<int>(workgroup_id()) + 1", "the counter at"},
    {"Misaligned", "tma_store(a.x, 0, 128)", "tma_store(a.x + 1, 0, 128)", "multiples of 16 are accepted"},
    {"BeyondLds", "tma_store(a.x, 0, 128)", "tma_store(a.x, 2032, 32)", "LDS out of range"},
    {"BeyondMemory", "tma_add(a.x, 0, 128)", "tma_add(a.x + 112, 0, 128)", "global memory out of bounds"},
};
INSTANTIATE_TEST_SUITE_P(Each, TmaStoreRule, ::testing::ValuesIn(kRules), [](const auto& info) { return info.param.name; });

// A block is claimed once.
TEST(Counters, AreClaimedByWaves) {
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  const Status status = run_text(text_of("const int mine = counter_claim(reinterpret_cast<int*>(a.x));\n"
                                         "if (lane_id() == 0) global_store(a.x + 1 + mine, 1.0F + mine);\n"),
                                 x.data(), 2);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int n = 0; n < 4; ++n) EXPECT_EQ(x.as<float>()[1 + n], 1.0F + static_cast<float>(n)) << n;
}

}  // namespace
}  // namespace fulmen::testing
