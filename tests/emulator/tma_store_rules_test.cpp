// Rules of TMA stores, of counters between workgroups, and of fences: each broken by one change of
// a kernel that keeps them all.
#include <gtest/gtest.h>

#include <cstring>

#include "emulator/emulated_kernel.h"
#include "emulator/source/mbarriers.h"
#include "kernels/core/arguments.h"

namespace fulmen::testing {
namespace {

constexpr int kFloats = 32, kCounter = 64;  // places in x

// Wave 0 writes, wave 1 fences and has the TMA store or add, workgroup after workgroup, the one
// with the lowest number first.
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

KernelText store_text(std::string body) { return sm90_text(std::move(body), 2048); }

TEST(TmaStores, WorkgroupsAddInOrder) {
  constexpr int kWorkgroups = 3;
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  const Status status = run_text(store_text(kInOrder), x.data(), kWorkgroups);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int n = 0; n < kFloats; ++n)
    EXPECT_EQ(x.as<float>()[n], kWorkgroups * (1.0F + static_cast<float>(n))) << n;
  EXPECT_EQ(x.as<int>()[kCounter], kWorkgroups);
}

class TmaStoreRule : public ::testing::TestWithParam<Change> {};
TEST_P(TmaStoreRule, ReportsTheBrokenKernel) {
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  expect_report(store_text(kInOrder), GetParam(), x.data(), 2);
}

const Change kTmaStoreRules[] = {
    {"NoFence", "lds_fence_for_matrices();", "", "LDS without a fence"},
    {"FenceBeforeTheBarrier",
     "  mbarrier_wait(kFull, 0);\n  if (lane_id() == 0) {\n    lds_fence_for_matrices();\n",
     "  lds_fence_for_matrices();\n  mbarrier_wait(kFull, 0);\n  if (lane_id() == 0) {\n",
     "LDS without a fence"},
    {"NobodyWaits", "    tma_wait<0>();\n", "", "ends before the wait for its tma_store"},
    {"OneIsLeft", "tma_wait<0>();", "tma_wait<1>();", "ends before the wait for its tma_store"},
    {"OverwrittenBeforeItIsRead", "    tma_wait_read();\n",
     "    lds_store(0, 5.0F);\n    tma_wait_read();\n", "LDS"},
    {"WaitsForALaterOne", "static_cast<int>(workgroup_id())",
     "static_cast<int>(workgroup_id()) + 1", "the counter at"},
    {"Misaligned", "tma_store(a.x, 0, 128)", "tma_store(a.x + 1, 0, 128)",
     "multiples of 16 are accepted"},
    {"BeyondLds", "tma_store(a.x, 0, 128)", "tma_store(a.x, 2032, 32)", "LDS out of range"},
    {"BeyondMemory", "tma_add(a.x, 0, 128)", "tma_add(a.x + 112, 0, 128)",
     "global memory out of bounds"},
};
INSTANTIATE_TEST_SUITE_P(Each, TmaStoreRule, ::testing::ValuesIn(kTmaStoreRules),
                         [](const auto& info) { return info.param.name; });

// A box: the tensor's 2 rows of 12 elements, from a panel whose other elements no lane wrote.
constexpr const char* kBox = R"(
if (lane_id() < 4) {
  const int row = lane_id() / 2, piece = lane_id() % 2;
  const unsigned word = 0x10001U * (1 + lane_id());
  lds_store(panel_place(row, 8 * piece, 16), Words<4>{{word, word, word, word}});
}
lds_fence_for_matrices();
wave_barrier();
if (thread_id() == 0) {
  tma_store(a.x, 0, 0, 0, 0, 0);
  tma_wait<0>();
}
)";
// Pitch in elements, the map lies before them.
constexpr int kBoxColumns = 12, kBoxRows = 2, kBoxPitch = 16, kMapBytes = 512;

void prepare_box(const DeviceArray& x) {
  std::memset(x.data(), 0, 1024);
  const gpu::TensorMapShape shape{x.as<std::byte>() + kMapBytes,
                                  true,
                                  {kBoxColumns, kBoxRows, 1, 1},
                                  {2 * kBoxPitch, 16, 16},
                                  16};
  kernels::TensorMap map;
  ASSERT_TRUE(gpu::emulated::encode_tensor_map(shape, map).ok());
  std::memcpy(x.data(), &map, sizeof(map));
}
KernelText box_text() {
  KernelText text = store_text(kBox);
  text.workgroup_size = 32;
  return text;
}

TEST(TmaStores, LeaveAloneWhatIsPastATensorsEnd) {
  const DeviceArray x(1024);
  prepare_box(x);
  const Status status = run_text(box_text(), x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  const auto* elements = x.as<uint16_t>() + kMapBytes / 2;
  for (int row = 0; row < kBoxRows; ++row) {
    for (int column = 0; column < kBoxPitch; ++column) {
      const int written = 1 + 2 * row + column / 8;
      EXPECT_EQ(elements[row * kBoxPitch + column], column < kBoxColumns ? written : 0)
          << row << " " << column;
    }
  }
}

class TmaBoxRule : public ::testing::TestWithParam<Change> {};
TEST_P(TmaBoxRule, ReportsTheBrokenKernel) {
  const DeviceArray x(1024);
  prepare_box(x);
  expect_report(box_text(), GetParam(), x.data());
}
const Change kBoxRules[] = {
    {"NoFence", "lds_fence_for_matrices();\n", "", "LDS without a fence"},
    {"NobodyWaits", "  tma_wait<0>();\n", "", "ends before the wait for its tma_store"},
    {"NotWritten", "lane_id() < 4", "lane_id() < 3", "uninitialised LDS"},
    {"Misplaced", "tma_store(a.x, 0,", "tma_store(a.x, 128,", "from 128, no multiple of 1024"},
};
INSTANTIATE_TEST_SUITE_P(Each, TmaBoxRule, ::testing::ValuesIn(kBoxRules),
                         [](const auto& info) { return info.param.name; });

// A wave waits for a counter that another wave of its workgroup has yet to increase.
constexpr const char* kCountedLater = R"(
constexpr int kDone = 1024;
if (thread_id() == 0) mbarrier_init(kDone, 1);
barrier();
int* const counter = reinterpret_cast<int*>(a.x);
if (wave_id() == 0) {
  if (lane_id() == 3) counter_wait(counter, 2);
  wave_barrier();
  if (lane_id() == 0) {
    global_store(a.x + 1, 5.0F);
    mbarrier_arrive(kDone);
  }
} else {
  if (lane_id() == 0) counter_pass(counter);
  if (lane_id() == 1) counter_pass(counter);
  mbarrier_wait(kDone, 0);
}
)";
TEST(Counters, AreWaitedForByOneLane) {
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  const Status status = run_text(store_text(kCountedLater), x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(x.as<float>()[1], 5.0F);
}
// The report names the counter, not the barrier at which a later wave waits for that one.
TEST(Counters, AreReportedWhereNobodyCounts) {
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  expect_report(
      store_text(kCountedLater),
      {"OneIsMissing", "  if (lane_id() == 1) counter_pass(counter);\n", "", "the counter at"},
      x.data());
}

// A counter gives each number once.
TEST(Counters, AreFetchedByWaves) {
  const DeviceArray x(512);
  std::memset(x.data(), 0, 512);
  const Status status =
      run_text(store_text("const int mine = counter_fetch_add(reinterpret_cast<int*>(a.x));\n"
                          "if (lane_id() == 0) global_store(a.x + 1 + mine, 1.0F + mine);\n"),
               x.data(), 2);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int n = 0; n < 4; ++n) EXPECT_EQ(x.as<float>()[1 + n], 1.0F + static_cast<float>(n)) << n;
}

}  // namespace
}  // namespace fulmen::testing
