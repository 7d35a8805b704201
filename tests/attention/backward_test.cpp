// Backward kernels: the grid of shapes, edges, and what must hold whatever the numbers are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// Sanitizer builds and emulated processors do fewer of the long cases.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kFast = true;
#else
constexpr bool kFast = false;
#endif

CaseSpec backward_spec(Random& random) {
  CaseSpec s;
  s.backward = true;
  s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
  s.layout = random.pick(
      {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::packed_qkv, Layout::odd_strides});
  return s;
}

// The fast kernels; the reference and the baseline are tested elsewhere.
std::vector<std::string> fast_kernels(const Problem& problem) {
  std::vector<std::string> names;
  for (const std::string& name : kernels_for(problem)) {
    if (name.starts_with("cpu.backward")) names.push_back(name);
  }
  return names;
}

// A big case runs only the kernel that would be chosen: the references take longer than all
// kernels.
void expect_chosen_verified(const CaseSpec& spec, Random& random) {
  Case c(spec, random);
  const Result<Plan> chosen = plan(c.problem(), "cpu", c.options);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_TRUE(verified(c, chosen->config().kernel));
}

class BackwardGrid : public ::testing::TestWithParam<int64_t> {};

TEST_P(BackwardGrid, EveryShapeOnce) {
  struct Shape {
    int64_t seqlen_q, seqlen_k;
  };
  Random random(1000 + static_cast<uint64_t>(GetParam()));
  for (const Shape shape : {Shape{1, 147}, {113, 203}, {128, 217}, {108, 256}, {64, 64}}) {
    CaseSpec s = random_backward_spec(random);
    s.batch = shape.seqlen_q == 1 ? 16 : 1;  // standard attention's one row may be right by luck
    s.seqlen_q = shape.seqlen_q;
    s.seqlen_k = shape.seqlen_k;
    s.head_dim = GetParam();
    s.head_dim_v = random.chance(0.7) ? s.head_dim
                                      : kHeadDims[static_cast<std::size_t>(random.between(0, 12))];
    s.num_kv_heads = 1;
    s.num_heads = random.pick<int64_t>({1, 2});
    Case c(s, random);
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDim, BackwardGrid, ::testing::ValuesIn(kHeadDims),
                         [](const auto& info) { return "D" + std::to_string(info.param); });

TEST(Backward, LongSequencesOneOfEachDtype) {
  struct Shape {
    int64_t seqlen_q, seqlen_k;
  };
  Random random(1100);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const Shape shape : {Shape{256, 512}, {512, 256}, {1023, 1024}, {2048, 2048}}) {
      if (!kFast && shape.seqlen_q > 512) continue;
      CaseSpec s = random_backward_spec(random);
      s.dtype = dtype;
      s.batch = s.num_heads = s.num_kv_heads = 1;
      s.seqlen_q = shape.seqlen_q;
      s.seqlen_k = shape.seqlen_k;
      s.head_dim = s.head_dim_v = random.pick<int64_t>({40, 64});
      expect_chosen_verified(s, random);
    }
  }
}

// Several blocks of held keys, splits, and a group of heads that share them.
TEST(Backward, SplitKeysAndGroups) {
  Random random(1101);
  for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
    CaseSpec s = backward_spec(random);
    s.seqlen_q = 130;
    s.seqlen_k = 600;
    s.num_heads = 3;
    s.num_kv_heads = 1;
    s.head_dim = 128;  // 256 keys are held, 512 on matrix tiles
    s.head_dim_v = 32;
    s.causal = causal;
    s.window_left = causal == Causal::bottom_right ? 150 : -1;
    s.bias = true;
    s.bias_broadcast = {false, true, true};
    expect_chosen_verified(s, random);
    s.batch = 17;  // enough units: no split, sums in each worker's slot
    s.num_heads = 1;
    s.seqlen_q = 70;
    s.bias_broadcast = {true, true, false};
    expect_chosen_verified(s, random);
  }
}

TEST(Backward, RowsWithoutAnyKeyHaveZeroGradients) {
  Random random(1102);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    CaseSpec s = backward_spec(random);
    s.dtype = dtype;
    s.seqlen_q = 100;  // bottom-right: the first 70 rows attend nothing
    s.seqlen_k = 30;
    s.num_heads = s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 20;
    s.causal = Causal::bottom_right;
    s.dlse = true;
    Case c(s, random);
    // Whatever such a row holds must not matter.
    for (int64_t i = 0; i < 70; ++i) {
      for (int64_t d = 0; d < 20; ++d) {
        Case::set(c.tensors.dout, {0, i, 0, d}, NAN);
        Case::set(c.tensors.q, {0, i, 1, d}, NAN);
      }
      Case::set(c.tensors.dlse, {0, 1, i, 0}, NAN);
    }
    for (const std::string& kernel : fast_kernels(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      for (const float x : c.output_values()) ASSERT_TRUE(std::isfinite(x)) << kernel;
      for (int64_t i = 0; i < 70; ++i) {
        for (int64_t d = 0; d < 20; ++d)
          ASSERT_EQ(Case::get(c.tensors.dq, {0, i, 0, d}), 0) << kernel;
      }
    }
  }
}

TEST(Backward, NanBehindMasksReachesNoGradient) {
  Random random(1103);
  for (int n = 0; n < 6; ++n) {
    CaseSpec s = backward_spec(random);
    s.batch = 2;
    s.seqlen_q = random.between(1, 140);
    s.seqlen_k = random.between(1, 140);
    s.num_heads = 4;
    s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 24;
    s.keep = true;
    s.keep_broadcast = {false, true, true};
    s.keep_share = 0.4;
    s.nan_in_masked = true;
    s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    s.softcap = random.chance(0.5) ? 5.0F : 0.0F;
    Case c(s, random);
    for (const std::string& kernel : fast_kernels(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      for (const float x : c.output_values())
        ASSERT_TRUE(std::isfinite(x)) << kernel << ' ' << to_string(s);
    }
  }
}

TEST(Backward, LengthsOfZero) {
  Random random(1104);
  for (const bool no_queries : {true, false}) {
    CaseSpec s = backward_spec(random);
    s.seqlen_q = no_queries ? 0 : 5;
    s.seqlen_k = no_queries ? 5 : 0;
    s.num_heads = s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 8;
    s.sinks = true;
    Case c(s, random);
    for (const std::string& kernel : fast_kernels(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      for (const Tensor* gradient : {&c.tensors.dq, &c.tensors.dk, &c.tensors.dv}) {
        for (int64_t i = 0; i < gradient->shape[1]; ++i)
          EXPECT_EQ(Case::get(*gradient, {0, i, 1, 7}), 0) << kernel;
      }
      EXPECT_TRUE(verified(c, kernel));
    }
  }
}

// Each set of outputs gives the bits that all together give.
TEST(Backward, OutputsDoNotDependOnWhichAreWanted) {
  Random random(1105);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    CaseSpec s = backward_spec(random);
    s.dtype = dtype;
    s.seqlen_q = 70;
    s.seqlen_k = random.pick<int64_t>({60, 700});
    s.num_heads = 4;
    s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 16;
    s.bias = s.sinks = true;
    s.dropout = 0.2F;
    Case c(s, random);
    using T = AttentionTensors;
    const std::array<Tensor T::*, 5> members{&T::dq, &T::dk, &T::dv, &T::dbias, &T::dsinks};
    const AttentionTensors all = c.tensors;
    for (const std::string& kernel : fast_kernels(c.problem())) {
      AttentionOptions options = c.options;
      options.kernel = kernel;
      const auto gradient = [&](Tensor T::* member, const AttentionTensors& wanted) {
        c.poison_outputs();
        EXPECT_TRUE(attention_backward(wanted, options, "cpu").ok());
        std::vector<float> values;
        const Tensor& t = wanted.*member;
        for (int64_t at = 0; at < t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]; ++at) {
          const int64_t d = at % t.shape[3], h = at / t.shape[3];
          values.push_back(Case::get(
              t, {h / t.shape[2] / t.shape[1], h / t.shape[2] % t.shape[1], h % t.shape[2], d}));
        }
        return values;
      };
      for (Tensor T::* member : members) {
        AttentionTensors one = all;
        for (Tensor T::* other : members) {
          if (other != member) one.*other = {};
        }
        EXPECT_TRUE(same_bits(gradient(member, all), gradient(member, one))) << kernel;
      }
    }
  }
}

// With dout = 0 and dlse = 1 the gradients are those of the sum of the LSE: dq = scale sum_j p_j
// k_j, dk = scale sum_i p_i q_i, dv = 0.
TEST(Backward, GradientsOfASumOfLse) {
  Random random(1106);
  CaseSpec s = backward_spec(random);
  s.dtype = DType::fp32;
  s.seqlen_q = 75;
  s.seqlen_k = 90;
  s.num_heads = s.num_kv_heads = 2;
  s.head_dim = 24;
  s.head_dim_v = 16;
  s.dlse = true;
  Case c(s, random);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      Case::set(c.tensors.dlse, {0, h, i, 0}, 1);
      for (int64_t d = 0; d < s.head_dim_v; ++d) Case::set(c.tensors.dout, {0, i, h, d}, 0);
    }
  }
  reference::Expected expected;
  for (const std::string& kernel : fast_kernels(c.problem())) {
    EXPECT_TRUE(verified(c, kernel, {}, &expected));
    for (int64_t j = 0; j < s.seqlen_k; ++j)
      ASSERT_EQ(Case::get(c.tensors.dv, {0, j, 1, 3}), 0) << kernel;
  }
}

std::vector<CaseSpec> bit_equal_specs(Random& random) {
  std::vector<CaseSpec> specs;
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const bool board : {true, false}) {
      CaseSpec s = backward_spec(random);
      s.dtype = dtype;
      s.batch = board ? 5 : 1;
      s.seqlen_q = board ? 64 : 150;
      s.seqlen_k = board ? 64 : 700;
      s.num_heads = board ? 3 : 2;
      s.num_kv_heads = board ? 3 : 1;
      s.head_dim = s.head_dim_v = 32;
      s.bias = true;
      s.bias_broadcast = {true, !board, false};
      s.causal = board ? Causal::none : Causal::bottom_right;
      s.dropout = random.pick({0.0F, 0.3F});
      specs.push_back(s);
    }
  }
  return specs;
}

TEST(Backward, BitEqualForAnyThreadsAndPool) {
  Random random(1107);
  for (const CaseSpec& spec : bit_equal_specs(random)) {
    Case c(spec, random);
    for (const std::string& kernel : fast_kernels(c.problem())) {
      AttentionOptions options = c.options;
      options.num_threads = 1;
      ASSERT_TRUE(run_kernel(c, kernel, options).ok());
      const std::vector<float> first = c.output_values();
      for (const int threads : {0, 2, 3, 7, 40}) {
        options.num_threads = threads;
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        EXPECT_TRUE(same_bits(c.output_values(), first))
            << kernel << " on " << threads << " threads " << to_string(spec);
      }
      options.num_threads = 3;
      for (const ParallelFor pool :
           {ParallelFor{run_in_reverse, nullptr}, ParallelFor{run_on_threads, nullptr}}) {
        options.parallel_for = pool;
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        EXPECT_TRUE(same_bits(c.output_values(), first))
            << kernel << " in a caller's pool " << to_string(spec);
      }
    }
  }
}

TEST(Backward, BitEqualOver250Runs) {
  constexpr int kRuns = kFast ? 250 : 20;
  Random random(1108);
  for (const CaseSpec& spec : bit_equal_specs(random)) {
    if (spec.dtype == DType::fp16) continue;
    Case c(spec, random);
    const Result<Plan> chosen = plan(c.problem(), "cpu", c.options);
    ASSERT_TRUE(chosen.ok());
    std::vector<std::byte> memory(chosen->workspace_bytes() + 64);
    auto* workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    std::vector<float> first;
    for (int run = 0; run < kRuns; ++run) {
      ASSERT_TRUE(chosen->run(nullptr, c.tensors, workspace, chosen->workspace_bytes()).ok());
      if (run == 0) first = c.output_values();
      ASSERT_TRUE(same_bits(c.output_values(), first)) << "run " << run << ' ' << to_string(spec);
    }
  }
}

// Forward and backward kernels drop the same elements: each agrees with the reference over
// dropout_mask.
TEST(Backward, DropsWhatTheForwardPassDrops) {
  Random random(1109);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    CaseSpec s;
    s.dtype = dtype;
    s.batch = 2;
    s.seqlen_q = 77;
    s.seqlen_k = 131;
    s.num_heads = 4;
    s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = 32;
    s.dropout = 0.5F;
    Case forward(s, random);
    EXPECT_GT(expect_all_kernels_verified(forward), 2);
    s.backward = true;
    Case backward(s, random);
    EXPECT_GT(expect_all_kernels_verified(backward), 2);
  }
}

}  // namespace
}  // namespace fulmen::testing
