// Score functions and block masks: every kernel that takes them against the oracle, the oracle
// against options that say the same and against finite differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/reference.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// Tensors for the functions below, with gradients of those of floats.
struct Functions {
  std::vector<float> slopes, gain, table, slopes_gradient, gain_gradient, table_gradient;
  std::vector<int32_t> documents;
  std::vector<int8_t> shifts;
  std::vector<FunctionTensor> list;

  Functions(const CaseSpec& s, Random& random, bool gradients) {
    const auto fill = [&](std::vector<float>& to, int64_t count) {
      to.resize(static_cast<std::size_t>(count));
      for (float& x : to) x = 0.5F * random.normal();
    };
    fill(slopes, s.num_heads);
    fill(gain, 1);
    fill(table, s.num_heads * 17);
    slopes_gradient = slopes, gain_gradient = gain, table_gradient = table;
    for (int64_t i = 0; i < std::max(s.seqlen_q, s.seqlen_k); ++i) {
      documents.push_back(static_cast<int32_t>(i / 37));
      shifts.push_back(static_cast<int8_t>(random.between(-3, 3)));
    }
    const auto float_tensor = [&](const char* name, int dims, std::vector<float>& values,
                                  std::array<int64_t, 4> shape, std::array<int64_t, 4> strides,
                                  std::vector<float>& gradient) {
      FunctionTensor tensor{name, dims, Tensor{values.data(), DType::fp32, shape, strides}, {}};
      if (gradients) tensor.gradient = {gradient.data(), DType::fp32, shape, strides};
      list.push_back(tensor);
    };
    float_tensor("slopes", 1, slopes, {s.num_heads}, {1}, slopes_gradient);
    float_tensor("gain", 0, gain, {}, {}, gain_gradient);
    // Transposed in memory.
    float_tensor("table", 2, table, {s.num_heads, 17}, {1, s.num_heads}, table_gradient);
    const auto length = static_cast<int64_t>(documents.size());
    list.push_back({"documents", 1, Tensor{documents.data(), DType::int32, {length}, {1}}, {}});
    list.push_back({"shifts", 1, Tensor{shifts.data(), DType::int8, {length}, {1}}, {}});
  }
};

constexpr const char* kScores[] = {
    "score + slopes[h] * 0.02 * (k - q)",
    "score * (1.0 + 0.1 * tanh(gain)) + table[h, min(max(k - q + 8, 0), 16)]",
    "x = 0.2 * score + gain; 5.0 * tanh(x) * sigmoid(slopes[h] + score)",
    "select(q >= k, score, score - 0.125 * (k - q) * exp(-abs(gain)))",
    "select((q + k) % 3 == 0, -inf, score + log(2.0 + sin(slopes[h])))",
    "score + 0.01 * shifts[k] * gain * sqrt(1.0 + 0.001 * abs(q - k))",
    "table[h, k % 17] * erf(0.1 * score) + max(score, gain)",
};
constexpr const char* kMasks[] = {
    "q >= k",
    "documents[q] == documents[k]",
    "q - k < 40 & k - q < 25",
    "k < 5 | (q >= k & q - k <= 70)",
    "(q + 3 * k + h) % 4 != b % 2",
    "shifts[q] >= shifts[k] && h != 1",
    "true",
};

void draw_functions(Case& c, Random& random) {
  const bool score = random.chance(0.7);
  if (score) c.options.score_mod = kScores[random.between(0, std::size(kScores) - 1)];
  if (!score || random.chance(0.6))
    c.options.mask_mod = kMasks[random.between(0, std::size(kMasks) - 1)];
}

// What forward gives with the functions, for a backward case.
void set_forward_results(Case& c) {
  AttentionTensors t = c.tensors;
  std::vector<FunctionTensor> inputs(t.function_tensors.begin(), t.function_tensors.end());
  for (FunctionTensor& one : inputs) one.gradient = {};
  t.function_tensors = inputs;
  const auto p = make_problem(t, c.options);
  ASSERT_TRUE(p.ok()) << p.status().message();
  const auto count = [](const Problem::Shape& s) {
    return static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]);
  };
  std::vector<double> out(count(p->out_shape()), NAN), lse(count(p->lse_shape()), NAN);
  ASSERT_TRUE(attention_reference(*p, t, out.data(), lse.data()).ok());
  const auto store = [](const Tensor& tensor, const Problem::Shape& s,
                        const std::vector<double>& from) {
    std::size_t at = 0;
    for (int64_t a = 0; a < s[0]; ++a) {
      for (int64_t b = 0; b < s[1]; ++b) {
        for (int64_t i = 0; i < s[2]; ++i) {
          for (int64_t d = 0; d < s[3]; ++d, ++at) {
            if (!std::isnan(from[at]))
              Case::set(tensor, {a, b, i, d}, static_cast<float>(from[at]));
          }
        }
      }
    }
  };
  store(c.tensors.out, p->out_shape(), out);
  store(c.tensors.lse, p->lse_shape(), lse);
}

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

// Lists of blocks, random or with full ones beside.
struct Blocks {
  std::vector<int32_t> counts, indices, full_counts, full_indices;
  void put(Case& c, int64_t block_q, int64_t block_k, bool by_head, Random& random) {
    const int64_t rows = (c.spec.seqlen_q + block_q - 1) / block_q,
                  keys = (c.spec.seqlen_k + block_k - 1) / block_k,
                  heads = by_head ? c.spec.num_heads : 1;
    for (int64_t row = 0; row < heads * rows; ++row) {
      std::vector<int32_t> partial, full;
      for (int32_t key = 0; key < keys; ++key) {
        const int64_t what = random.between(0, 3);
        if (what == 1 || what == 2) partial.push_back(key);
        if (what == 3) full.push_back(key);
      }
      counts.push_back(static_cast<int32_t>(partial.size()));
      full_counts.push_back(static_cast<int32_t>(full.size()));
      // Behind the listed ones anything may stand.
      partial.resize(static_cast<std::size_t>(keys), 12345);
      full.resize(static_cast<std::size_t>(keys), -7);
      indices.insert(indices.end(), partial.begin(), partial.end());
      full_indices.insert(full_indices.end(), full.begin(), full.end());
    }
    c.options.mask_block_q = block_q;
    c.options.mask_block_k = block_k;
    c.tensors.kv_num_blocks = Tensor::bhqk(counts.data(), DType::int32, 1, heads, 1, rows);
    c.tensors.kv_indices = Tensor::bhqk(indices.data(), DType::int32, 1, heads, rows, keys);
    if (random.chance(0.3)) return;
    c.tensors.full_kv_num_blocks =
        Tensor::bhqk(full_counts.data(), DType::int32, 1, heads, 1, rows);
    c.tensors.full_kv_indices =
        Tensor::bhqk(full_indices.data(), DType::int32, 1, heads, rows, keys);
  }
};

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
