// The model of a chip's time: what the emulator counts, scaled, over the maker's figures.
#include "tools/bench/model/model.h"

#include <gtest/gtest.h>

#include <vector>

#include "fulmen/fulmen.h"
#include "tools/bench/case_data.h"
#include "tools/bench/measure/timed_passes.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

BenchCase of_length(int64_t length, bool causal) {
  return {.suite = "prefill",
          .name = "test",
          .dtype = DType::bf16,
          .batch = 3,
          .seqlen_q = length,
          .seqlen_k = length,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 64,
          .causal = causal};
}

AttentionOptions by(const std::string& kernel) {
  AttentionOptions options;
  options.kernel = kernel;
  return options;
}

Result<ModelledRow> modelled(const BenchCase& c) {
  return model_case(c, Pass::forward, "emulated:sm_80", by("emulated.prefill.sm80"));
}

TEST(Model, CountsWhatTheProductsAre) {
  const BenchCase full = of_length(1536, false);
  const Result<ModelledRow> row = modelled(full);
  if (row.status().code() == StatusCode::unavailable) GTEST_SKIP() << row.status().message();
  ASSERT_TRUE(row.ok()) << row.status().message();
  // Two products, of whole tiles, by an A100's 312 TFLOP/s; one exponential a score and one where a
  // row's maximum moves, 16 a cycle of each of 108 multiprocessors.
  const double scores = 6.0 * 1536 * 1536;
  EXPECT_DOUBLE_EQ(row->times.matrix_s, scores * 4 * 64 / 312e12);
  EXPECT_GE(row->times.exponential_s, scores / (16 * 108 * 1.41e9));
  EXPECT_LT(row->times.exponential_s, 1.2 * scores / (16 * 108 * 1.41e9));
  EXPECT_DOUBLE_EQ(row->times.seconds,
                   row->times.matrix_s + row->times.exponential_s + row->times.launch_s);
  EXPECT_GT(row->times.lds_s, 0);
  EXPECT_GT(row->times.cache_s, 0);
  const Result<ModelledRow> causal = modelled(of_length(1536, true));
  ASSERT_TRUE(causal.ok()) << causal.status().message();
  // Half of the tiles, and those on the diagonal.
  EXPECT_GT(causal->times.matrix_s, 0.5 * row->times.matrix_s);
  EXPECT_LT(causal->times.matrix_s, 0.6 * row->times.matrix_s);
}

// Recomputation counts: the kernel's launches for dq and for dk and dv each compute every
// probability.
TEST(Model, KnowsBackwardPasses) {
  BenchCase c = of_length(384, false);
  c.training = true;
  const Result<ModelledRow> row =
      model_case(c, Pass::backward, "emulated:sm_80", by("emulated.backward.sm80"));
  if (row.status().code() == StatusCode::unavailable) GTEST_SKIP() << row.status().message();
  ASSERT_TRUE(row.ok()) << row.status().message();
  const double scores = 6.0 * 384 * 384;
  EXPECT_DOUBLE_EQ(row->flops, scores * 10 * 64);
  EXPECT_NEAR(row->times.matrix_s, scores * 14 * 64 / 312e12, 1e-12) << "7 products";
  EXPECT_NEAR(row->times.exponential_s, 2 * scores / (16 * 108 * 1.41e9), 1e-12);
  EXPECT_GE(row->times.launch_s, 2 * 1.7e-6);
}

// Rows at the end of many keys, and keys in pages: each key once.
TEST(Model, KnowsDecode) {
  BenchCase c = of_length(1, false);
  c.suite = "decode";
  c.seqlen_k = 4096;
  c.kv_heads = 1;
  const Result<ModelledRow> row = model_case(c, Pass::forward, "emulated:sm_80", {});
  if (row.status().code() == StatusCode::unavailable) GTEST_SKIP() << row.status().message();
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_GE(row->times.seconds, 3.0 * 4096 * 64 * 2 * 2 / 2039e9);
  EXPECT_GT(row->times.cache_s, 0);
  c.suite = "paged";
  c.page_size = 64;
  const Result<ModelledRow> paged = model_case(c, Pass::forward, "emulated:sm_80", {});
  ASSERT_TRUE(paged.ok()) << paged.status().message();
  EXPECT_NEAR(paged->times.exponential_s, row->times.exponential_s, 1e-12);
  c.page_size = 0;
  c.seqlen_q = 4;
  c.causal = true;
  const Result<ModelledRow> four = model_case(c, Pass::forward, "emulated:sm_80", {});
  ASSERT_TRUE(four.ok()) << four.status().message();
  EXPECT_LT(four->times.matrix_s, 1.5 * row->times.matrix_s) << "they share a tile";
}

// AMD's machine code is executed, too, so its vector instructions count.
TEST(Model, CountsVectorInstructionsOfAmd) {
  const Result<ModelledRow> row = model_case(of_length(384, false), Pass::forward,
                                             "emulated:gfx1100", by("emulated.prefill.gfx11"));
  if (row.status().code() == StatusCode::unavailable) GTEST_SKIP() << row.status().message();
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_GT(row->times.vector_s, 0.5 * row->times.exponential_s);
  EXPECT_LT(row->times.vector_s, row->times.matrix_s);
  EXPECT_DOUBLE_EQ(row->times.seconds, row->times.matrix_s + row->times.exponential_s +
                                           row->times.vector_s + row->times.launch_s);
  EXPECT_LT(modelled(of_length(384, false))->times.vector_s, 0)
      << "of NVIDIA's nothing counts them";
}

TEST(Model, SaysWhatItDoesNotTake) {
  EXPECT_EQ(model_case(of_length(512, false), Pass::forward, "cpu", {}).status().code(),
            StatusCode::invalid_argument);
  const Status chip =
      model_case(of_length(512, false), Pass::forward, "emulated:sm_70", {}).status();
  EXPECT_NE(chip.message().find("--model on emulated:sm_70: emulated:{gfx1100,"), std::string::npos)
      << chip.message();
  BenchCase chunk = of_length(512, true);
  chunk.seqlen_k = 1024;  // 512 queries
  EXPECT_EQ(modelled(chunk).status().code(), StatusCode::unsupported);
}

TEST(EmulatedWork, IsCountedWhileItIsAskedFor) {
  BenchCase c = of_length(256, false);
  c.batch = c.heads = c.kv_heads = 1;
  NormalPool pool(1);
  const auto data = make_case_data(c, pool, {}, std::size_t{1} << 24);
  ASSERT_TRUE(data.ok()) << data.status().message();
  AttentionOptions options;
  options.kernel = "emulated.prefill.sm80";
  Result<Plan> planned = plan(data.value()->problem, "emulated:sm_80", options);
  if (planned.status().code() == StatusCode::unavailable)
    GTEST_SKIP() << planned.status().message();
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const auto there = DeviceTensors::make("emulated:sm_80", data.value()->tensors);
  ASSERT_TRUE(there.ok()) << there.status().message();
  const TimedPasses passes({std::move(planned).value()}, *there.value());
  EmulatedWork work;
  std::vector<EmulatedWork> seen;
  for (EmulatedWork* const asked : {&work, static_cast<EmulatedWork*>(nullptr)}) {
    count_emulated_work(asked);
    const Status status = passes.call();
    ASSERT_TRUE(status.ok()) << status.message();
    seen.push_back(work);
  }
  EXPECT_EQ(seen[0].matrix_flops, 4.0 * 256 * 256 * 64);
  EXPECT_GE(seen[0].global_bytes, 4.0 * 256 * 64 * 2);
  EXPECT_GT(seen[0].lds_cycles, 0);
  EXPECT_GT(seen[0].barriers, 0);
  EXPECT_GE(seen[0].exponentials, 256.0 * 256);
  EXPECT_EQ(seen[0].launches, 1);
  EXPECT_EQ(seen[1].matrix_flops, seen[0].matrix_flops);
  EXPECT_EQ(seen[1].exponentials, seen[0].exponentials);
}

}  // namespace
}  // namespace fulmen::tools
