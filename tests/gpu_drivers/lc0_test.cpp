// The class that integrations/lc0 puts into Leela Chess Zero, taken from its patch, over the fake
// drivers: an evaluation's calls as EncoderBlock::Eval of lc0's CUDA and HIP backends makes them,
// captured in a graph.
#include <cstring>

#include "gpu_drivers/fake_library.h"
#include "kernels/core/arguments.h"

#define USE_FULMEN
#include "fulmen_attention.h"

namespace fulmen::testing {
namespace {

constexpr int kHeads = 24, kDepth = 32, kMaxBatch = 64;  // T82
constexpr std::size_t kPlane = 64UL * kHeads * kDepth, kScores = 64UL * 64 * kHeads;
const lczero::FulmenAttention::Geometry kT82{kHeads, kDepth, true};

class Lc0 : public FakeGpuTest {
 protected:
  using FakeGpuTest::FakeGpuTest;
  void SetUp() override {
    FakeGpuTest::SetUp();
    lczero::log().clear();
  }
  std::string device(int ordinal) const {
    return std::string(driver.name()) + ":" + std::to_string(ordinal);
  }
  std::unique_ptr<const lczero::FulmenAttention> create(
      int ordinal, const lczero::OptionsDict& options = {}) const {
    return lczero::FulmenAttention::Create(options, true, device(ordinal), FULMEN_FP16, kMaxBatch,
                                           kT82, 0);
  }

  void evaluate(int ordinal) {
    SCOPED_TRACE(device(ordinal));
    const auto attention = create(ordinal);
    ASSERT_NE(attention, nullptr) << lczero::log();
    EXPECT_EQ(lczero::log().find(
                  "Successfully using fused attention: " + std::string(driver.name()) + "."),
              0U)
        << lczero::log();
    EXPECT_EQ(attention->WorkspaceBytes(), 0U) << "lc0 has none to give";
    EXPECT_TRUE(attention->Serves(kT82));
    EXPECT_FALSE(attention->Serves({kHeads, kDepth, false}));

    // As lc0 lays them out: q, k and v in one allocation, max_batch boards apart, the smolgen bias
    // and the output in two others.
    void* memory[3] = {};
    const std::size_t sizes[3] = {3 * kMaxBatch * kPlane, kMaxBatch * kScores, kMaxBatch * kScores};
    for (int i = 0; i < 3; ++i) {
      const Result<void*> p = driver.allocate(ordinal, 2 * sizes[i]);
      ASSERT_TRUE(p.ok()) << p.status().message();
      memory[i] = p.value();
    }
    auto* q = static_cast<uint16_t*>(memory[0]);
    uint16_t *k = q + kMaxBatch * kPlane, *v = k + kMaxBatch * kPlane;
    int stream = 0;
    for (const int batch : {1, 7, kMaxBatch}) {
      SCOPED_TRACE(std::to_string(batch) + " boards");
      state.launches.clear();
      state.capturing = true;  // TearDown reports any call that a capture forbids
      EXPECT_NO_THROW(attention->Run(batch, q, k, v, memory[2], memory[1], &stream, nullptr));
      state.capturing = false;
      ASSERT_EQ(state.launches.size(), 1U);
      EXPECT_EQ(state.launches[0].device, ordinal);
      EXPECT_EQ(state.launches[0].stream, &stream);
      ASSERT_EQ(state.launches[0].arguments.size(), sizeof(kernels::ForwardArguments));
      kernels::ForwardArguments passed;
      std::memcpy(&passed, state.launches[0].arguments.data(), sizeof(passed));
      EXPECT_EQ(passed.q.data, q);
      EXPECT_EQ(passed.k.data, k);
      EXPECT_EQ(passed.v.data, v);
      EXPECT_EQ(passed.bias.data, memory[2]);
      EXPECT_EQ(passed.out.data, memory[1]);
      EXPECT_EQ(passed.batch, batch);
      EXPECT_EQ(passed.num_heads, kHeads);
      EXPECT_EQ(passed.head_dim, kDepth);
      EXPECT_EQ(passed.q.row, kHeads * kDepth);
      EXPECT_EQ(passed.bias.row, 64);
      EXPECT_EQ(passed.bias.head, 64 * 64);
      EXPECT_EQ(passed.bias.batch, 64 * 64 * kHeads);
    }
    // The message that lc0 would show its user.
    const auto error = [&](const lczero::FulmenAttention& call, int batch,
                           const void* query) -> std::string {
      try {
        call.Run(batch, query, k, v, memory[2], memory[1], &stream, nullptr);
      } catch (const lczero::Exception& e) {
        return e.what();
      }
      return "";
    };
    EXPECT_NE(error(*attention, kMaxBatch + 1, q).find(std::to_string(kMaxBatch)),
              std::string::npos)
        << error(*attention, kMaxBatch + 1, q);
    EXPECT_NE(error(*attention, 1, &stream).find("q.data"), std::string::npos)
        << error(*attention, 1, &stream);
    const auto verified = create(ordinal, {{{"fulmen_verify", true}}});
    ASSERT_NE(verified, nullptr) << lczero::log();
    EXPECT_NE(lczero::log().find("every call verified"), std::string::npos) << lczero::log();
    state.capturing = true;
    const std::string refused = error(*verified, 1, q);
    state.capturing = false;
    EXPECT_NE(refused.find("is being captured"), std::string::npos) << refused;
    for (void* p : memory) driver.free(ordinal, p);
  }

  void turn_off() {
    EXPECT_EQ(create(0, {{{"fulmen", false}}}), nullptr);
    EXPECT_EQ(lczero::log(), "");
    EXPECT_EQ(create(0, {{{"fulmen_kernel", std::string("no.such.kernel")}}}), nullptr);
    EXPECT_EQ(lczero::log().find("Not using fused attention: "), 0U) << lczero::log();
    EXPECT_NE(lczero::log().find("no.such.kernel"), std::string::npos) << lczero::log();
  }
};

class HipLc0 : public Lc0 {
 protected:
  HipLc0() : Lc0(gpu::hip_driver(), FULMEN_FAKE_ROCM "/lib/libamdhip64.so.7") {}
  void SetUp() override {
    if (!gpu::offline_clang_compiler().ok())
      GTEST_SKIP() << gpu::offline_clang_compiler().status().message();
    Lc0::SetUp();
  }
};
TEST_F(HipLc0, EvaluationsAreFusedOnRdna) { evaluate(0); }
TEST_F(HipLc0, EvaluationsAreFusedOnCdna) { evaluate(1); }
TEST_F(HipLc0, OptionsTurnItOff) { turn_off(); }

class CudaLc0 : public Lc0 {
 protected:
  CudaLc0() : Lc0(gpu::cuda_driver(), FULMEN_FAKE_CUDA "/lib64/libcuda.so.1") {}
};
TEST_F(CudaLc0, EvaluationsAreFused) { evaluate(0); }
TEST_F(CudaLc0, OptionsTurnItOff) { turn_off(); }

}  // namespace
}  // namespace fulmen::testing
