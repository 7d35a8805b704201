// Score functions and block masks: every kernel that takes them against the oracle, the oracle
// against options that say the same and against finite differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/reference.h"
#include "support/function_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

TEST(ScoreFunctions, ForwardKernelsAgreeWithTheOracle) {
  for (uint64_t n = 0; n < (long_run() ? 300 : 20); ++n) {
    Random random(4900 + n);
    CaseSpec spec = random_spec(random);
    Case c(spec, random);
    Functions functions(spec, random, false);
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
    SCOPED_TRACE(to_string(c.problem()));
    EXPECT_GE(expect_all_kernels_verified(c), 2);
  }
}

TEST(ScoreFunctions, BackwardKernelsAgreeWithTheOracle) {
  for (uint64_t n = 0; n < (long_run() ? 300 : 14); ++n) {
    Random random(5900 + n);
    CaseSpec spec = random_backward_spec(random);
    spec.huge_bias = false;
    Case c(spec, random);
    Functions functions(spec, random, true);
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
    set_forward_results(c);
    SCOPED_TRACE(to_string(c.problem()));
    EXPECT_GE(expect_all_kernels_verified(c), 1);
  }
}

// Keys in several splits, whose sums lie before those of functions' tensors.
TEST(ScoreFunctions, BackwardKernelsOfManyKeysAgreeWithTheOracle) {
  for (const int64_t heads : {1, 8}) {
    Random random(5950);
    CaseSpec spec;
    spec.batch = 3, spec.seqlen_q = 2, spec.seqlen_k = 2400;
    spec.num_heads = heads, spec.num_kv_heads = (heads + 3) / 4, spec.head_dim = 8;
    spec.head_dim_v = 16, spec.backward = true;
    Case c(spec, random);
    Functions functions(spec, random, true);
    c.options.score_mod = kScores[1];
    c.tensors.function_tensors = functions.list;
    set_forward_results(c);
    EXPECT_GE(expect_all_kernels_verified(c), 1);
  }
}

// What the options say, said by functions.
TEST(ScoreFunctions, AreTheOptionsThatSayTheSame) {
  for (uint64_t n = 0; n < 20; ++n) {
    Random random(6900 + n);
    CaseSpec spec;
    spec.batch = 2, spec.seqlen_q = random.between(1, 150), spec.seqlen_k = random.between(1, 150);
    spec.num_heads = spec.num_kv_heads = 2, spec.head_dim = spec.head_dim_v = 16;
    spec.alibi = 1, spec.causal = Causal::top_left, spec.window_left = 30, spec.softcap = 4;
    Case by_options(spec, random);
    const Problem p = by_options.problem();
    std::vector<double> want(static_cast<std::size_t>(p.batch * p.seqlen_q * 2 * 16)), got = want;
    ASSERT_TRUE(attention_reference(p, by_options.tensors, want.data(), nullptr).ok());

    Case& c = by_options;
    AttentionTensors t = c.tensors;
    std::vector<float> slopes(2);
    for (int64_t h = 0; h < 2; ++h)
      slopes[static_cast<std::size_t>(h)] = Case::get(t.alibi_slopes, {0, 0, 0, h});
    const FunctionTensor list[] = {{"slopes", 1, Tensor{slopes.data(), DType::fp32, {2}, {1}}, {}}};
    t.alibi_slopes = {};
    t.function_tensors = list;
    AttentionOptions options;
    options.mask_mod = "k <= q & k >= q - 30";
    options.score_mod = "4.0 * tanh(score / 4.0) - slopes[h] * abs(q - k)";
    const auto same = make_problem(t, options);
    ASSERT_TRUE(same.ok()) << same.status().message();
    ASSERT_TRUE(attention_reference(*same, t, got.data(), nullptr).ok());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);
  }
}

// Bands that kernels get of mask_mod, beside the oracle, which evaluates it: with windows of the
// problem's own, sequences of different lengths, rows without keys, and gradients.
TEST(ScoreFunctions, BandsOfMaskModAgreeWithTheOracle) {
  int bands = 0;
  for (uint64_t n = 0; n < (long_run() ? 200 : 8); ++n) {
    Random random(6950 + n);
    CaseSpec spec = n % 2 == 0 ? random_spec(random) : random_backward_spec(random);
    spec.huge_bias = false;
    Case c(spec, random);
    Functions functions(spec, random, false);
    c.options.mask_mod = random_band_mask(random);
    c.tensors.function_tensors = functions.list;
    if (spec.backward) set_forward_results(c);
    SCOPED_TRACE(to_string(c.problem()));
    EXPECT_GE(expect_all_kernels_verified(c), 1);
    const auto made = plan(c.problem(), "cpu");
    ASSERT_TRUE(made.ok()) << made.status().message();
    bands += made->explain().find("band from mask_mod") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(bands, 0);
}

// A score_mod that is a softcap, which kernels compute as the option, beside the oracle, which
// evaluates it.
TEST(ScoreFunctions, SoftcapsAgreeWithTheOracle) {
  for (uint64_t n = 0; n < (long_run() ? 60 : 6); ++n) {
    Random random(6970 + n);
    CaseSpec spec = n % 2 == 0 ? random_spec(random) : random_backward_spec(random);
    spec.huge_bias = spec.bias = false;
    spec.alibi = 0;
    spec.softcap = 0;
    Case c(spec, random);
    c.options.score_mod = random.pick({"30.0 * tanh(score / 30.0)", "tanh(score * 2.0) * 0.5"});
    if (spec.backward) set_forward_results(c);
    SCOPED_TRACE(to_string(c.problem()));
    EXPECT_GE(expect_all_kernels_verified(c), 1);
    const auto made = plan(c.problem(), "cpu");
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_NE(made->explain().find(" from score_mod"), std::string::npos);
  }
}

// A score of -inf, which another function leaves, becomes -c.
TEST(ScoreFunctions, SoftcapsCapMinusInfinity) {
  for (const bool infinite_rows : {false, true}) {
    Random random(6990);
    CaseSpec spec;
    spec.seqlen_q = 5, spec.seqlen_k = 40;
    spec.num_heads = spec.num_kv_heads = 2, spec.head_dim = spec.head_dim_v = 16;
    Case c(spec, random);
    c.options.score_mod = "0.5 * tanh(score / 0.5)";
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t j = 0; j < (infinite_rows ? 40 : 1); ++j)
        Case::set(c.tensors.k, {0, j, h, 3}, -HUGE_VALF);
      for (int64_t i = 0; i < 5; ++i) Case::set(c.tensors.q, {0, i, h, 3}, 1.0F);
    }
    EXPECT_GE(expect_all_kernels_verified(c), 1);
    // Weights of e^-0.5 each, where all scores are the cap.
    const Problem p = c.problem();
    std::vector<double> out(static_cast<std::size_t>(5 * 2 * 16)), lse(5 * 2);
    ASSERT_TRUE(attention_reference(p, c.tensors, out.data(), lse.data()).ok());
    if (infinite_rows) {
      EXPECT_NEAR(lse[0], std::log(40.0) - 0.5, 1e-12);
    }
  }
}

// The oracle's gradients of functions' tensors beside differences of its own forward pass.
TEST(ScoreFunctions, GradientsOfTensorsAreDifferences) {
  for (const char* text : kScores) {
    // A step over the edge of a max is no derivative.
    if (std::string(text).find("max(score") != std::string::npos) continue;
    Random random(7900);
    CaseSpec spec;
    spec.batch = 2, spec.seqlen_q = 9, spec.seqlen_k = 11;
    spec.num_heads = 4, spec.num_kv_heads = 2, spec.head_dim = 8, spec.head_dim_v = 6;
    spec.backward = true, spec.dlse = true;
    Case c(spec, random);
    Functions functions(spec, random, true);
    c.options.score_mod = text;
    c.options.mask_mod = "k <= q + 2";
    c.tensors.function_tensors = functions.list;
    const Problem p = c.problem();
    std::vector<double> gradients[3];
    gradients[0].resize(functions.slopes.size());
    gradients[1].resize(1);
    gradients[2].resize(functions.table.size());
    double* const pointers[] = {gradients[0].data(), gradients[1].data(), gradients[2].data(),
                                nullptr, nullptr};
    ASSERT_TRUE(attention_backward_reference(p, c.tensors, {.function_gradients = pointers}).ok());

    AttentionTensors t = c.tensors;
    std::vector<FunctionTensor> inputs = functions.list;
    for (FunctionTensor& one : inputs) one.gradient = {};
    t.function_tensors = inputs;
    const auto forward = make_problem(t, c.options);
    ASSERT_TRUE(forward.ok());
    const auto loss = [&] {
      std::vector<double> out(2 * 9 * 4 * 6), lse(2 * 4 * 9);
      EXPECT_TRUE(attention_reference(*forward, t, out.data(), lse.data()).ok());
      double sum = 0;
      for (int64_t at = 0; at < static_cast<int64_t>(out.size()); ++at) {
        sum += out[static_cast<std::size_t>(at)] *
               Case::get(t.dout, {at / 216, at / 24 % 9, at / 6 % 4, at % 6});
      }
      for (int64_t at = 0; at < static_cast<int64_t>(lse.size()); ++at) {
        sum +=
            lse[static_cast<std::size_t>(at)] * Case::get(t.dlse, {at / 36, at / 9 % 4, at % 9, 0});
      }
      return sum;
    };
    std::vector<float>* const values[] = {&functions.slopes, &functions.gain, &functions.table};
    for (int which = 0; which < 3; ++which) {
      for (int n = 0; n < 4; ++n) {
        const auto count = static_cast<int64_t>(values[which]->size());
        const int64_t flat = random.between(0, count - 1);
        // The table lies transposed.
        const int64_t memory = which == 2 ? flat % 17 * 4 + flat / 17 : flat;
        float& element = (*values[which])[static_cast<std::size_t>(memory)];
        const float kept = element;
        element = kept + 0x1p-9F;
        const double high = element, above = loss();
        element = kept - 0x1p-9F;
        const double low = element, below = loss();
        element = kept;
        const double slope = (above - below) / (high - low);
        EXPECT_NEAR(gradients[which][static_cast<std::size_t>(flat)], slope,
                    2e-3 * (1 + std::fabs(slope)))
            << text << " tensor " << which << " element " << flat;
      }
    }
  }
}

// Any finite score is legal: rows whose scores are huge, of score_mod or of a bias beside
// functions, are the mean of the values that share the largest.
TEST(ScoreFunctions, ScoresOfAnySize) {
  struct Row {
    const char *score, *mask;
    float bias;
    int first, step;  // of the keys that share the largest score
  };
  constexpr Row kRows[] = {
      {"score * 0.0 - 3e38", "", 0, 0, 1},
      {"score * 0.0 + 3e38", "", 0, 0, 1},
      {"select(k % 2 == 0, -3e38, -2e38)", "", 0, 1, 2},
      {"score * 1.5", "", -2e38F, 0, 1},
      {"", "k % 3 == 1", -3e38F, 1, 3},
      {"score * 0.5", "k % 3 == 1", 3e38F, 1, 3},
  };
  for (const Row& row : kRows) {
    Random random(8950);
    CaseSpec spec;
    spec.batch = 2, spec.seqlen_q = 5, spec.seqlen_k = 150, spec.num_heads = spec.num_kv_heads = 2;
    spec.head_dim = spec.head_dim_v = 16, spec.bias = row.bias != 0, spec.lse = true;
    Case c(spec, random);
    c.options.score_mod = row.score;
    c.options.mask_mod = row.mask;
    for (int64_t n = 0; spec.bias && n < 2 * 2 * 5 * 150; ++n)
      Case::set(c.tensors.bias, {n / 1500, n / 750 % 2, n / 150 % 5, n % 150}, row.bias);
    int kernels = 0;
    for (const std::string& kernel : kernels_for(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      ++kernels;
      for (int64_t n = 0; n < 2 * 5 * 2 * 16; ++n) {
        const int64_t b = n / 160, i = n / 32 % 5, h = n / 16 % 2, d = n % 16;
        double sum = 0;
        int keys = 0;
        for (int k = row.first; k < 150; k += row.step, ++keys)
          sum += Case::get(c.tensors.v, {b, k, h, d});
        ASSERT_NEAR(Case::get(c.tensors.out, {b, i, h, d}), sum / keys, 1e-5)
            << kernel << ": " << row.score << " " << row.mask;
      }
    }
    EXPECT_GE(kernels, 2);
  }
}

// NaN in keys and values that mask_mod leaves out reaches nothing.
TEST(ScoreFunctions, WhatNoQueryAttendsIsNotRead) {
  for (const bool backward : {false, true}) {
    Random random(8900);
    CaseSpec spec;
    spec.seqlen_q = 100, spec.seqlen_k = 150, spec.num_heads = spec.num_kv_heads = 2;
    spec.head_dim = spec.head_dim_v = 24, spec.backward = backward;
    Case c(spec, random);
    c.options.mask_mod = "k % 5 != 2 & k < 140";
    if (backward) set_forward_results(c);
    for (int64_t k = 0; k < 150; ++k) {
      for (int64_t h = 0; h < 2 && (k % 5 == 2 || k >= 140); ++h) {
        for (int64_t d = 0; d < 24; ++d) {
          Case::set(c.tensors.k, {0, k, h, d}, NAN);
          Case::set(c.tensors.v, {0, k, h, d}, NAN);
        }
      }
    }
    EXPECT_GE(expect_all_kernels_verified(c), 2);
    for (const std::string& kernel : kernels_for(c.problem())) {
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      for (const float x : c.output_values()) ASSERT_TRUE(std::isfinite(x)) << kernel;
    }
  }
}

// The gradients' bits do not depend on threads or runs.
TEST(ScoreFunctions, GradientsHaveTheSameBitsForAnyNumberOfThreads) {
  Random random(9900);
  CaseSpec spec;
  spec.batch = 3, spec.seqlen_q = 200, spec.seqlen_k = 300, spec.num_heads = 4;
  spec.num_kv_heads = 2, spec.head_dim = spec.head_dim_v = 16, spec.backward = true;
  Case c(spec, random);
  Functions functions(spec, random, true);
  c.options.score_mod = kScores[1];
  c.options.mask_mod = "q >= k";
  c.tensors.function_tensors = functions.list;
  set_forward_results(c);
  for (const std::string& kernel : kernels_for(c.problem())) {
    if (kernel.find("reference") != std::string::npos) continue;
    std::vector<float> first;
    for (const int threads : {1, 2, 5, 2}) {
      AttentionOptions options = c.options;
      options.num_threads = threads;
      ASSERT_TRUE(run_kernel(c, kernel, options).ok());
      std::vector<float> all = c.output_values();
      for (const auto* part : {&functions.table_gradient, &functions.gain_gradient})
        all.insert(all.end(), part->begin(), part->end());
      if (first.empty()) first = all;
      EXPECT_TRUE(same_bits(first, all)) << kernel << " " << threads;
    }
  }
}

TEST(BlockMasks, KernelsAgreeWithTheOracle) {
  for (uint64_t n = 0; n < (long_run() ? 200 : 14); ++n) {
    Random random(10900 + n);
    CaseSpec spec = n % 2 == 0 ? random_spec(random) : random_backward_spec(random);
    if (variable_lengths(spec)) continue;
    if (spec.backward) spec.huge_bias = false;
    spec.seqlen_q = random.between(1, 300), spec.seqlen_k = random.between(1, 300);
    Case c(spec, random);
    Functions functions(spec, random, spec.backward);
    if (random.chance(0.6)) {
      draw_functions(c, random);
      c.tensors.function_tensors = functions.list;
    }
    Blocks blocks;
    blocks.put(c, 16 * random.between(1, 8), 16 * random.between(1, 16), random.chance(0.5),
               random);
    if (spec.backward) set_forward_results(c);
    SCOPED_TRACE(to_string(c.problem()));
    EXPECT_GE(expect_all_kernels_verified(c), 1);
  }
}

// Lists that say what a keep mask says.
TEST(BlockMasks, AreTheKeepMaskThatSaysTheSame) {
  Random random(11900);
  CaseSpec spec;
  spec.seqlen_q = 90, spec.seqlen_k = 100, spec.num_heads = spec.num_kv_heads = 1;
  spec.head_dim = spec.head_dim_v = 16;
  Case c(spec, random);
  Blocks blocks;
  blocks.put(c, 32, 16, false, random);
  const Problem p = c.problem();
  std::vector<uint8_t> keep(90 * 100, 0);
  const auto mark = [&](const std::vector<int32_t>& counts, const std::vector<int32_t>& indices) {
    for (int64_t i = 0; i < 90; ++i) {
      for (int32_t at = 0; at < counts[static_cast<std::size_t>(i / 32)]; ++at) {
        const int32_t block = indices[static_cast<std::size_t>(i / 32 * 7 + at)];
        for (int64_t j = 16 * block; j < std::min(16 * block + 16, 100); ++j)
          keep[static_cast<std::size_t>(i * 100 + j)] = 1;
      }
    }
  };
  mark(blocks.counts, blocks.indices);
  if (p.full_kv_indices.present) mark(blocks.full_counts, blocks.full_indices);
  std::vector<double> got(90 * 16), want(90 * 16);
  ASSERT_TRUE(attention_reference(p, c.tensors, got.data(), nullptr).ok());
  AttentionTensors t = c.tensors;
  t.kv_num_blocks = t.kv_indices = t.full_kv_num_blocks = t.full_kv_indices = {};
  t.keep_mask = Tensor::bhqk(keep.data(), DType::boolean, 1, 1, 90, 100);
  const auto same = make_problem(t, {});
  ASSERT_TRUE(same.ok()) << same.status().message();
  ASSERT_TRUE(attention_reference(*same, t, want.data(), nullptr).ok());
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace fulmen::testing
