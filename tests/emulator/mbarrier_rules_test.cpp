// Rules of mbarriers and of copies by the TMA: each broken by one change of a kernel that keeps
// them all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "emulator/emulated_kernel.h"
#include "emulator/source/mbarriers.h"
#include "kernels/core/arguments.h"

namespace fulmen::testing {
namespace {

constexpr int kTileRows = 16, kColumns = 64;

// A producer's wave and a consumer's; x begins with a tensor map, behind it lies its tensor of 40
// rows.
constexpr const char* kTwoTiles = R"(
constexpr int kFull = 4096, kEmpty = 4104;
if (thread_id() == 0) {
  mbarrier_init(kFull, 1);
  mbarrier_init(kEmpty, 1);
}
barrier();
if (wave_id() == 0) {
  for (int n = 0; n < 2; ++n) {
    mbarrier_wait(kEmpty, 1 - n);
    if (lane_id() == 0) {
      mbarrier_arrive_expect(kFull, 2048);
      tma_load(0, a.x, 0, 16 * n + 16, 0, 0, kFull, L2Policy::evict_last());
    }
  }
} else {
  for (int n = 0; n < 2; ++n) {
    mbarrier_wait(kFull, n);
    const auto word = lds_load<Words<1>>(128 * (lane_id() % 16));
    if (lane_id() < 16) global_store(reinterpret_cast<unsigned*>(a.x) + 2048 + 16 * n + lane_id(), word.word[0]);
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(kEmpty);
  }
}
)";

KernelText mbarrier_text(std::string body) { return sm90_text(std::move(body), 8192); }

// The map's tensor: row r is full of r.
void fill(const DeviceArray& x) {
  constexpr int kAll = 40;
  auto* const elements = x.as<uint16_t>() + 512;
  for (int r = 0; r < kAll; ++r)
    std::fill_n(elements + static_cast<std::ptrdiff_t>(r) * kColumns, kColumns,
                static_cast<uint16_t>(r));
  kernels::TensorMap map;
  gpu::TensorMapShape shape{
      elements, true, {kColumns, kAll, 1, 1}, {2 * kColumns, 16, 16}, kTileRows};
  ASSERT_TRUE(gpu::emulated::encode_tensor_map(shape, map).ok());
  std::memcpy(x.data(), &map, sizeof(map));
}

TEST(Mbarriers, TilesArriveInTurnAndZerosPastTheEnd) {
  const DeviceArray x(16384);
  fill(x);
  const Status status = run_text(mbarrier_text(kTwoTiles), x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  for (int r = 0; r < 2 * kTileRows; ++r) {
    const unsigned row = r + kTileRows < 40 ? r + kTileRows : 0;
    EXPECT_EQ(x.as<unsigned>()[2048 + r], row * 0x10001U) << r;
  }
}

class MbarrierRule : public ::testing::TestWithParam<Change> {};
TEST_P(MbarrierRule, ReportsTheBrokenKernel) {
  const DeviceArray x(16384);
  fill(x);
  expect_report(mbarrier_text(kTwoTiles), GetParam(), x.data());
}

const Change kMbarrierRules[] = {
    {"ReadBeforeThePhase", "    mbarrier_wait(kFull, n);\n", "", "LDS"},
    {"WaitForTheWrongPhase", "mbarrier_wait(kFull, n)", "mbarrier_wait(kFull, 1 - n)",
     "of whose 1 arrivals 1 are missing"},
    {"WaitTwice", "mbarrier_wait(kFull, n);", "mbarrier_wait(kFull, n);\nmbarrier_wait(kFull, n);",
     "a phase waited for twice"},
    {"OverwrittenInFlight", "tma_load(0, a.x",
     "tma_load(0, a.x, 0, 0, 0, 0, kFull, L2Policy{});\ntma_load(0, a.x", "has not arrived"},
    {"OverwrittenWhileRead",
     "    wave_barrier();\n    if (lane_id() == 0) mbarrier_arrive(kEmpty);\n",
     "    if (lane_id() == 0) mbarrier_arrive(kEmpty);\n    wave_barrier();\n    "
     "lds_load<Words<1>>(128 * (lane_id() % 16));\n",
     "LDS race"},
    {"TooFewBytes", "kFull, 2048", "kFull, 4096", "expects 4096 bytes and 2048 arrive"},
    {"NobodyArrives", "if (lane_id() == 0) mbarrier_arrive(kEmpty);", "",
     "of whose 1 arrivals 1 are missing"},
    {"NotInitialised", "  mbarrier_init(kEmpty, 1);\n", "", "no barrier at 4104 was initialised"},
    {"InitialisedTwice", "mbarrier_init(kEmpty, 1);", "mbarrier_init(kFull, 1);",
     "has been initialised before"},
    {"NobodyWaits", "n < 2; ++n) {\n    mbarrier_wait(kFull, n);",
     "n < 1; ++n) {\n    mbarrier_wait(kFull, n);", "is in flight when the workgroup ends"},
    {"Misplaced", "tma_load(0, a.x", "tma_load(512, a.x", "to 512, no multiple of 1024"},
    {"OneArrivalTooMany", "mbarrier_arrive_expect(kFull, 2048);",
     "mbarrier_arrive_expect(kFull, 2048);\nmbarrier_arrive(kFull);",
     "arrives once more in a phase of 1 arrivals"},
};
INSTANTIATE_TEST_SUITE_P(Each, MbarrierRule, ::testing::ValuesIn(kMbarrierRules),
                         [](const auto& info) { return info.param.name; });

// A ping-pong barrier that no warpgroup signals.
TEST(WarpgroupTurns, WaitForWhoComesBefore) {
  const char* const kTurns = R"(
if (wave_id() < 4) {
  warpgroup_turn_pass(1);
} else {
  warpgroup_turn_wait(1);
}
)";
  const DeviceArray x(1024);
  KernelText text = mbarrier_text(kTurns);
  text.workgroup_size = 256;
  EXPECT_TRUE(run_text(text, x.data()).ok());
  text.body = "if (wave_id() >= 4) warpgroup_turn_wait(1);\n";
  const Status broken = run_text(text, x.data());
  EXPECT_NE(broken.message().find("warpgroup_turn_wait"), std::string::npos) << broken.message();
}

// Tensor maps that the TMA does not take, and the emulator's message; the CUDA driver refuses the
// same.
TEST(TensorMaps, RefuseWhatTheTmaDoesNotTake) {
  const DeviceArray x(1024);
  const gpu::TensorMapShape good{x.data(), true, {64, 4, 1, 1}, {128, 16, 16}, 4};
  kernels::TensorMap map;
  EXPECT_TRUE(gpu::emulated::encode_tensor_map(good, map).ok());
  const auto refused = [&](auto change, const char* words) {
    gpu::TensorMapShape shape = good;
    change(shape);
    const Status status = gpu::emulated::encode_tensor_map(shape, map);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  refused([&](auto& s) { s.data = static_cast<const char*>(x.data()) + 8; }, "no multiple of 16");
  refused([](auto& s) { s.extent[1] = 0; }, "an extent is 0");
  refused([](auto& s) { s.stride[0] = 0; }, "a stride is 0 bytes");
  refused([](auto& s) { s.stride[2] = 24; }, "a stride is 24 bytes");
  refused([](auto& s) { s.box_rows = 257; }, "a box has 257 rows");
  refused([](auto& s) { s.box_heads = 0; }, "a box has 0 heads");
}

}  // namespace
}  // namespace fulmen::testing
