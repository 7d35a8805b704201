// Every kernel on the grid of shapes, dtypes and features. The full product belongs to
// `fulmen verify --grid full`; here each shape is run once with features drawn afresh, and then
// random cases follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void draw_features(CaseSpec& s, Random& random) {
  const CaseSpec drawn = random_spec(random);
  s.dtype = drawn.dtype;
  s.layout = drawn.layout;
  s.flush = drawn.flush;
  s.causal = drawn.causal;
  s.window_left = drawn.window_left;
  s.window_right = drawn.window_right;
  s.softcap = drawn.softcap;
  s.bias = drawn.bias;
  s.bias_dtype = drawn.bias_dtype;
  s.bias_broadcast = drawn.bias_broadcast;
  s.keep = drawn.keep;
  s.keep_broadcast = drawn.keep_broadcast;
  s.alibi = drawn.alibi;
  s.sinks = drawn.sinks;
  s.lse = drawn.lse;
}

// Few shapes: a wide head's reference takes as many times longer as it is wider.
class WideGrid : public ::testing::TestWithParam<int64_t> {};

TEST_P(WideGrid, EveryKernel) {
  Random random(140 + static_cast<uint64_t>(GetParam()));
  struct Shape {
    int64_t seqlen_q, seqlen_k;
  };
  for (const Shape shape : {Shape{2, 147}, {64, 64}, {113, 203}}) {
    CaseSpec spec;
    spec.seqlen_q = shape.seqlen_q;
    spec.seqlen_k = shape.seqlen_k;
    spec.head_dim = GetParam();
    spec.head_dim_v = random.chance(0.7) ? std::min(spec.head_dim, kMaxHeadDimV)
                                         : random.between(1, kMaxHeadDimV);
    spec.num_heads = shape.seqlen_q == 2 ? 20 : 1;  // 40 rows that share a KV head
    draw_features(spec, random);
    Case forward(spec, random);
    EXPECT_GT(expect_all_kernels_verified(forward), 0);
    if (shape.seqlen_q == 2) continue;
    spec.backward = spec.lse = true;
    Case gradients(spec, random);
    EXPECT_GT(expect_all_kernels_verified(gradients), 0);
  }
}

// More query rows share the only KV head than a tile has: decode cuts their heads into groups.
TEST(LatentDecode, ManyHeadsShareOneKvHead) {
  Random random(150);
  for (const auto& [heads, queries] : {std::pair<int64_t, int64_t>{128, 1}, {40, 4}, {72, 2}}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      CaseSpec spec;
      draw_features(spec, random);
      spec.dtype = dtype;
      spec.seqlen_q = queries;
      spec.seqlen_k = random.between(1, 300);
      spec.num_heads = heads;
      spec.head_dim = 576;
      spec.head_dim_v = 512;
      spec.used_k = random.chance(0.5);
      if (spec.used_k) spec.page_size = random.pick<int64_t>({0, 16, 64});
      Case c(spec, random);
      const std::vector<std::string> kernels = kernels_for(c.problem());
      EXPECT_NE(std::find_if(kernels.begin(), kernels.end(),
                             [](const std::string& k) { return k.starts_with("cpu.decode."); }),
                kernels.end());
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDim, WideGrid, ::testing::ValuesIn(kWideHeadDims),
                         [](const auto& info) { return "D" + std::to_string(info.param); });

class Grid : public ::testing::TestWithParam<int64_t> {};

TEST_P(Grid, EveryShapeOnce) {
  struct Shape {
    int64_t seqlen_q, seqlen_k;
  };
  Random random(100 + static_cast<uint64_t>(GetParam()));
  int runs = 0;
  for (const Shape shape :
       {Shape{1, 147}, {113, 203}, {128, 217}, {108, 256}, {64, 64}, {256, 512}}) {
    CaseSpec spec;
    spec.batch = shape.seqlen_q == 1 ? 16 : 1;  // standard attention's one row may be right by luck
    spec.seqlen_q = shape.seqlen_q;
    spec.seqlen_k = shape.seqlen_k;
    spec.head_dim = GetParam();
    spec.head_dim_v = random.chance(0.7)
                          ? spec.head_dim
                          : kHeadDims[static_cast<std::size_t>(random.between(0, 12))];
    spec.num_kv_heads = random.pick<int64_t>({1, 2});
    spec.num_heads = spec.num_kv_heads * random.pick<int64_t>({1, 2, 3});
    draw_features(spec, random);
    Case c(spec, random);
    runs += expect_all_kernels_verified(c);
  }
  EXPECT_GT(runs, 0);
}

INSTANTIATE_TEST_SUITE_P(HeadDim, Grid, ::testing::ValuesIn(kHeadDims),
                         [](const auto& info) { return "D" + std::to_string(info.param); });

TEST(GridLarge, LongSequencesOneOfEachDtype) {
  Random random(120);
  struct Shape {
    int64_t seqlen_q, seqlen_k;
  };
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const Shape shape : {Shape{512, 256}, {1023, 1024}, {1, 5000}}) {
      CaseSpec spec;
      draw_features(spec, random);
      spec.dtype = dtype;
      spec.seqlen_q = shape.seqlen_q;
      spec.seqlen_k = shape.seqlen_k;
      spec.num_heads = shape.seqlen_q == 1 ? 8 : 1;
      spec.num_kv_heads = shape.seqlen_q == 1 ? 2 : 1;
      spec.head_dim = spec.head_dim_v = random.pick<int64_t>({64, 80, 128});
      Case c(spec, random);
      expect_all_kernels_verified(c);
    }
  }
}

TEST(GridRandom, CasesOfAnyFeatures) {
  // Limited by time, not by count: a sanitizer build runs fewer. The first 20 always run.
  constexpr double kSeconds = 15;
  Random random(121);
  const Clock::time_point start = Clock::now();
  int cases = 0;
  int runs = 0;
  for (; cases < 20 || (seconds_since(start) < kSeconds && cases < 1500); ++cases) {
    CaseSpec spec = random_spec(random);
    if (random.chance(0.15)) spec.dropout = random.pick({0.1F, 0.5F, 0.9F});
    Case c(spec, random);
    runs += expect_all_kernels_verified(c);
    const auto* result = ::testing::UnitTest::GetInstance()->current_test_info()->result();
    if (result->total_part_count() >= 12) break;  // enough to see what the failures share
  }
  std::cout << cases << " random cases, " << runs << " runs, seed " << test_seed() << '\n';
}

// Each kernel decides which shapes it takes, but one that takes none here would silently go
// untested.
TEST(GridCoverage, EveryRegisteredKernelRunsSomewhere) {
  std::vector<std::string> unseen;
  for (const auto& backend : backends()) {
    if (backend->name() != "cpu") continue;
    for (const Kernel* kernel : backend->kernels()) unseen.emplace_back(kernel->name());
  }
  ASSERT_FALSE(unseen.empty());
  Random random(122);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const int64_t seqlen_q : {1, 64, 200}) {
      CaseSpec spec;
      spec.dtype = dtype;
      spec.seqlen_q = seqlen_q;
      // 64: a chess board, for kernels of short sequences.
      spec.seqlen_k = seqlen_q == 64 ? 64 : 200;
      spec.num_heads = 4;
      spec.num_kv_heads = 2;
      spec.head_dim = spec.head_dim_v = 64;
      for (const bool backward : {false, true}) {
        spec.backward = backward;
        Case c(spec, random);
        reference::Expected expected;
        for (const std::string& kernel : kernels_for(c.problem())) {
          EXPECT_TRUE(verified(c, kernel, {}, &expected));
          std::erase(unseen, kernel);
        }
      }
    }
  }
  for (const bool backward : {false, true}) {
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
      CaseSpec spec;
      spec.dtype = dtype;
      spec.backward = backward;
      const Case c(spec, random);
      const Result<std::vector<Candidate>> all = candidates(c.problem(), "cpu");
      ASSERT_TRUE(all.ok());
      for (const Candidate& candidate : all.value()) {
        if (std::find(unseen.begin(), unseen.end(), candidate.kernel) == unseen.end()) continue;
        EXPECT_FALSE(candidate.support.yes)
            << candidate.kernel << " supports a problem and was never run";
        std::cout << candidate.kernel << " did not run: " << candidate.support.reason << '\n';
      }
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
