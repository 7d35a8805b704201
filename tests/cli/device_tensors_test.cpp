// The tools' mirrors and timing on a device whose memory the host cannot touch and whose work waits
// until it is waited for.
#include "tools/tensors/device_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/deferred_device.h"
#include "tools/bench/ceilings/device_copy_rate.h"
#include "tools/bench/measure/measure.h"

namespace fulmen::test {
namespace {

constexpr const char* kDeferred = "deferred:0";

class DeviceTensorsTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::register_deferred_device(); }
  void TearDown() override {
    EXPECT_EQ(testing::deferred_allocations(), 0) << "everything is freed";
  }
};

TEST_F(DeviceTensorsTest, MirrorsWhatIsThere) {
  std::vector<float> q(2 * 3 * 8, 1), k(2 * 5 * 8, 1), out(2 * 3 * 8, -1);
  AttentionTensors host;
  host.q = Tensor::bshd(q.data(), DType::fp32, 2, 3, 1, 8);
  host.k = host.v = Tensor::bshd(k.data(), DType::fp32, 2, 5, 1, 8);
  host.out = Tensor::bshd(out.data(), DType::fp32, 2, 3, 1, 8);
  const auto there = tools::DeviceTensors::make(kDeferred, host);
  ASSERT_TRUE(there.ok()) << there.status().message();
  EXPECT_NE(there.value()->tensors().q.data, host.q.data);
  EXPECT_EQ(there.value()->tensors().bias.data, nullptr);
  const Problem problem = make_problem(host, {}).value();
  const Plan planned = plan(problem, kDeferred).value();
  const tools::DeviceMemory workspace = there.value()->workspace(planned.workspace_bytes());
  ASSERT_TRUE(workspace.poison().ok());
  const Status status =
      planned.run(nullptr, there.value()->tensors(), workspace.data(), planned.workspace_bytes());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out[5], -1) << "nothing has waited yet";
  ASSERT_TRUE(there.value()->download().ok());
  for (const float x : out) EXPECT_NEAR(x, 1, 1e-6F);
}

TEST_F(DeviceTensorsTest, AreTheHostsOwnWhereTheDeviceTakesThem) {
  std::vector<float> q(8, 1);
  AttentionTensors host;
  host.q = Tensor::bshd(q.data(), DType::fp32, 1, 1, 1, 8);
  const auto there = tools::DeviceTensors::make("cpu", host);
  ASSERT_TRUE(there.ok());
  EXPECT_EQ(there.value()->tensors().q.data, q.data());
  EXPECT_FALSE(tools::DeviceTensors::make("nowhere", host).ok());
}

TEST_F(DeviceTensorsTest, PoisonReachesTheLastByte) {
  const auto backend = tools::backend_of(kDeferred);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1} << 20U, (std::size_t{2} << 20U) + 3}) {
    const tools::DeviceMemory memory(backend, kDeferred, bytes);
    ASSERT_TRUE(memory.poison().ok());
    std::vector<unsigned char> bits(bytes);
    ASSERT_TRUE(backend->copy(kDeferred, bits.data(), memory.data(), bytes).ok());
    for (const unsigned char byte : bits) ASSERT_EQ(byte, 0xFF);
  }
}

TEST_F(DeviceTensorsTest, BenchTimesWholeRunsAndKnowsNoCpuCeiling) {
  tools::BenchSettings settings;
  settings.device = kDeferred;
  settings.seconds = 0.02;
  tools::BenchMeter meter(settings, {nullptr, 100}, 1);
  tools::BenchCase boards{.suite = "boards",
                          .name = "a board",
                          .dtype = DType::fp32,
                          .seqlen_q = 64,
                          .seqlen_k = 64,
                          .head_dim = 32};
  for (const char* suite : {"boards", "prefill"}) {
    boards.suite = suite;
    const Result<tools::BenchRow> row = meter.measure(boards);
    ASSERT_TRUE(row.ok()) << row.status().message();
    EXPECT_TRUE(row->verified) << row->verify_message;
    EXPECT_EQ(row->kernel, "deferred.prefill");
    // Far more than queueing takes: the span waits for the work.
    EXPECT_GT(row->min_s, 5e-6);
    EXPECT_EQ(row->standard_s, 0) << "the backend has none";
    EXPECT_EQ(row->standard_note, "");
    const bool by_bytes = boards.suite == "boards";
    EXPECT_EQ(row->by_bytes, by_bytes);
    EXPECT_EQ(row->ceiling, by_bytes ? 100 : 0);
    EXPECT_NEAR(row->share_of_ceiling, by_bytes ? row->gb_s / 100 : 0, 1e-12);
  }
}

TEST_F(DeviceTensorsTest, BenchTimesBothPassesOfTraining) {
  tools::BenchSettings settings;
  settings.device = kDeferred;
  settings.seconds = 0.02;
  tools::BenchMeter meter(settings, {nullptr, 100}, 1);
  const tools::BenchCase board{.suite = "training",
                               .name = "boards",
                               .dtype = DType::fp32,
                               .batch = 2,
                               .seqlen_q = 64,
                               .seqlen_k = 64,
                               .heads = 2,
                               .kv_heads = 2,
                               .head_dim = 32,
                               .bias = true,
                               .training = true};
  const Result<tools::BenchRow> row = meter.measure(board);
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_TRUE(row->verified) << row->verify_message;
  EXPECT_EQ(row->verified_how, "all");
  EXPECT_EQ(row->kernel, "deferred.prefill");
  EXPECT_EQ(row->backward_kernel, "deferred.backward");
  EXPECT_GT(row->backward_s, 0);
  EXPECT_TRUE(row->by_bytes) << "boards are bound by memory on a GPU";
  // Workspace, and what both passes write: out, lse, dq, dk, dv, and one dbias for all boards.
  EXPECT_GE(row->extra_bytes, 4U * (4 * 2 * 64 * 2 * 32 + 2 * 2 * 64 + 2 * 64 * 64));
  EXPECT_EQ(row->standard_s, 0);
  EXPECT_EQ(row->standard_note, "");
}

TEST_F(DeviceTensorsTest, BenchVerifiesGradientsOfLongRowsOnShorterOnes) {
  tools::BenchSettings settings;
  settings.device = kDeferred;
  settings.seconds = 0.001;
  tools::BenchMeter meter(settings, {}, 1);
  const tools::BenchCase layer{.suite = "training",
                               .name = "a layer",
                               .dtype = DType::fp32,
                               .seqlen_q = 2200,
                               .seqlen_k = 2200,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .causal = true,
                               .training = true};
  const Result<tools::BenchRow> row = meter.measure(layer);
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_TRUE(row->verified) << row->verify_message;
  EXPECT_EQ(row->verified_how, "sample, dk and dv at S512");
}

TEST_F(DeviceTensorsTest, CopyRateIsOfTheDevice) {
  EXPECT_GT(tools::device_copy_rate(kDeferred), 0.1);
  EXPECT_EQ(tools::device_copy_rate("nowhere"), 0);
}

}  // namespace
}  // namespace fulmen::test
