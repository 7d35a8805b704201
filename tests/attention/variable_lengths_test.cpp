// Sequences of different lengths, packed, padded and paged: the oracle against calls of one
// sequence each, and every kernel against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

CaseSpec short_spec() {
  CaseSpec s;
  s.batch = 4;
  s.seqlen_q = 9;
  s.seqlen_k = 13;
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim = 6;
  s.head_dim_v = 5;
  return s;
}

const int* numbers(const Tensor& tensor) { return static_cast<const int*>(tensor.data); }

// Sequence b as a call of its own with contiguous q, k and v, gathered by the contract's words.
struct OneSequence {
  OneSequence(const Case& c, int64_t b) {
    const CaseSpec& s = c.spec;
    const AttentionTensors& t = c.tensors;
    q_row = s.packed_q ? numbers(t.cu_seqlens_q)[b] : 0;
    q_len = s.packed_q ? numbers(t.cu_seqlens_q)[b + 1] - q_row : s.seqlen_q;
    int64_t k_begin = s.leftpad_k ? numbers(t.leftpad_k)[b] : 0;
    int64_t k_end = s.used_k ? numbers(t.seqlens_k)[b] : s.seqlen_k;
    if (s.packed_k) {
      k_begin = numbers(t.cu_seqlens_k)[b];
      k_end = numbers(t.cu_seqlens_k)[b + 1];
    }
    k_len = k_end - k_begin;
    for (int64_t i = 0; i < q_len; ++i) append(q, t.q, s.packed_q ? 0 : b, q_row + i);
    for (int64_t row = k_begin; row < k_end; ++row) {
      int64_t batch = s.packed_k ? 0 : b, at = row;
      if (s.page_size > 0) {
        batch = numbers(t.block_table)[b * t.block_table.strides[2] + row / s.page_size];
        at = row % s.page_size;
      }
      append(k, t.k, batch, at);
      append(v, t.v, batch, at);
    }
    out.resize(static_cast<std::size_t>(q_len * s.num_heads * s.head_dim_v));
    lse.resize(static_cast<std::size_t>(q_len * s.num_heads));
    tensors.q = Tensor::bshd(q.data(), DType::fp32, 1, q_len, s.num_heads, s.head_dim);
    tensors.k = Tensor::bshd(k.data(), DType::fp32, 1, k_len, s.num_kv_heads, s.head_dim);
    tensors.v = Tensor::bshd(v.data(), DType::fp32, 1, k_len, s.num_kv_heads, s.head_dim_v);
    tensors.out = Tensor::bshd(nullptr, DType::fp32, 1, q_len, s.num_heads, s.head_dim_v);
    options = c.options;
    options.max_seqlen_q = options.max_seqlen_k = -1;
    if (s.alibi != 0) {
      slopes.resize(static_cast<std::size_t>(s.num_heads));
      for (std::size_t h = 0; h < slopes.size(); ++h) {
        slopes[h] = Case::get(
            t.alibi_slopes, {t.alibi_slopes.shape[0] == 1 ? 0 : b, 0, 0, static_cast<int64_t>(h)});
      }
      tensors.alibi_slopes = {slopes.data(), DType::fp32, {1, 1, 1, s.num_heads}, {0, 0, 0, 1}};
    }
    if (s.sinks) tensors.sinks = t.sinks;
    if (s.bias) {
      for (int64_t h = 0; h < s.num_heads; ++h) {
        for (int64_t i = 0; i < q_len; ++i) {
          for (int64_t j = 0; j < k_len; ++j) bias.push_back(Case::get(t.bias, {b, h, i, j}));
        }
      }
      tensors.bias = Tensor::bhqk(bias.data(), DType::fp32, 1, s.num_heads, q_len, k_len);
    }
    const Result<Problem> problem = make_problem(tensors, options);
    EXPECT_TRUE(problem.ok()) << problem.status().message();
    if (problem.ok()) {
      EXPECT_TRUE(attention_reference(problem.value(), tensors, out.data(), lse.data()).ok());
    }
  }
  static void append(std::vector<float>& to, const Tensor& tensor, int64_t batch, int64_t row) {
    for (int64_t h = 0; h < tensor.shape[2]; ++h) {
      for (int64_t d = 0; d < tensor.shape[3]; ++d)
        to.push_back(Case::get(tensor, {batch, row, h, d}));
    }
  }
  int64_t q_row = 0, q_len = 0, k_len = 0;
  std::vector<float> q, k, v, bias, slopes;
  std::vector<double> out, lse;
  AttentionTensors tensors;
  AttentionOptions options;
};

void expect_sequences_alone(const CaseSpec& spec, uint64_t stream) {
  Random random(stream);
  const Case c(spec, random);
  const Problem p = c.problem();
  const auto elements = [](const Problem::Shape& s) {
    return static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]);
  };
  std::vector<double> out(elements(p.out_shape())), lse(elements(p.lse_shape()));
  EXPECT_TRUE(attention_reference(p, c.tensors, out.data(), lse.data()).ok());
  const int64_t heads = spec.num_heads, dim = spec.head_dim_v, rows = p.lse_shape()[2];
  for (int64_t b = 0; b < spec.batch; ++b) {
    const OneSequence alone(c, b);
    for (int64_t i = 0; i < alone.q_len; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t row = spec.packed_q ? alone.q_row + i : b * spec.seqlen_q + i;
        const int64_t number = spec.packed_q ? h * rows + row : (b * heads + h) * rows + i;
        const double expected = alone.lse[static_cast<std::size_t>(h * alone.q_len + i)];
        if (std::isfinite(expected)) {
          EXPECT_NEAR(lse[static_cast<std::size_t>(number)], expected, 1e-12)
              << to_string(spec) << " b=" << b << " i=" << i;
        } else {
          EXPECT_EQ(lse[static_cast<std::size_t>(number)], expected);
        }
        for (int64_t d = 0; d < dim; ++d) {
          EXPECT_NEAR(out[static_cast<std::size_t>((row * heads + h) * dim + d)],
                      alone.out[static_cast<std::size_t>((i * heads + h) * dim + d)], 1e-12)
              << to_string(spec) << " b=" << b << " i=" << i << " h=" << h << " d=" << d;
        }
      }
    }
  }
}

TEST(VariableLengthsOracle, EachSequenceIsACallOfItsOwn) {
  uint64_t stream = 1000;
  for (const bool packed_q : {false, true}) {
    for (const int kind : {0, 1, 2, 3, 4}) {
      CaseSpec s = short_spec();
      s.packed_q = packed_q;
      s.packed_k = kind == 1;
      s.used_k = kind >= 2;
      s.leftpad_k = kind == 3;
      s.page_size = kind == 4 ? 4 : 0;
      if (!variable_lengths(s)) continue;
      expect_sequences_alone(s, ++stream);
      s.causal = Causal::bottom_right;
      s.alibi = 2;
      s.sinks = true;
      expect_sequences_alone(s, ++stream);
      s.causal = Causal::top_left;
      s.window_left = 3;
      s.bias = true;
      s.softcap = 4;
      expect_sequences_alone(s, ++stream);
    }
  }
}

// With a block_table cu_seqlens_k gives lengths, and its first number has no meaning.
TEST(VariableLengthsOracle, CumulativeLengthsOfPages) {
  Random random(1100);
  CaseSpec s = short_spec();
  s.packed_q = s.used_k = true;
  s.page_size = 4;
  Case c(s, random);
  std::vector<int> cu{7};
  for (int64_t b = 0; b < s.batch; ++b) cu.push_back(cu.back() + numbers(c.tensors.seqlens_k)[b]);
  const auto reference = [&] {
    const Problem p = c.problem();
    std::vector<double> out(
        static_cast<std::size_t>(p.out_shape()[1] * s.num_heads * s.head_dim_v));
    EXPECT_TRUE(attention_reference(p, c.tensors, out.data(), nullptr).ok());
    return out;
  };
  const std::vector<double> expected = reference();
  c.tensors.seqlens_k = {};
  c.tensors.cu_seqlens_k = {cu.data(), DType::int32, {1, 1, 1, s.batch + 1}, {0, 0, 0, 1}};
  EXPECT_EQ(std::memcmp(reference().data(), expected.data(), expected.size() * sizeof(double)), 0);
}

// cache_batch_idx of other interfaces: sequences share the pool's rows, a page each.
TEST(VariableLengthsOracle, SequencesMayShareAPage) {
  Random random(1101);
  CaseSpec s = short_spec();
  s.used_k = true;
  s.page_size = s.seqlen_k;
  Case c(s, random);
  auto* table = static_cast<int*>(c.tensors.block_table.data);
  auto* used = static_cast<int*>(c.tensors.seqlens_k.data);
  table[1] = table[0];
  used[0] = used[1] = std::max(used[0], 1);
  if (table[0] < 0) table[0] = table[1] = 0;
  EXPECT_TRUE(check_sequences(c.problem(), c.tensors).ok());
}

TEST(VariableLengths, CasesOfAnyFeatures) {
  for (int n = 0; n < 30; ++n) {
    Random random(1200 + static_cast<uint64_t>(n));
    CaseSpec spec = random_spec(random);
    if (random.chance(0.15)) spec.dropout = random.pick({0.1F, 0.5F});
    if (random.chance(0.4)) spec.seqlen_q = random.between(1, 4);
    draw_variable_lengths(spec, random);
    Case c(spec, random);
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
}

TEST(VariableLengths, GradientsOfAnyFeatures) {
  for (int n = 0; n < 20; ++n) {
    Random random(1300 + static_cast<uint64_t>(n));
    CaseSpec spec = random_backward_spec(random);
    draw_variable_lengths(spec, random);
    Case c(spec, random);
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
}

// Long enough for several splits of the keys, of one sequence and not of another.
TEST(VariableLengths, LongSequencesAreSplit) {
  for (const int64_t page_size : {0, 16, 37}) {
    Random random(1350 + static_cast<uint64_t>(page_size));
    CaseSpec s = short_spec();
    s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    s.batch = 3;
    s.seqlen_q = 2;
    s.seqlen_k = 6000;
    s.head_dim = s.head_dim_v = 32;
    s.used_k = true;
    s.page_size = page_size;
    s.packed_q = page_size == 16;
    s.causal = Causal::bottom_right;
    if (page_size == 37) s.window_left = 3000;
    Case c(s, random);
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
  Random random(1360);
  CaseSpec s = short_spec();
  s.backward = true;
  s.batch = 6;  // short ones among them

  s.seqlen_q = 150;
  s.seqlen_k = 1100;
  s.num_heads = 2;
  s.num_kv_heads = 1;
  s.head_dim = s.head_dim_v = 24;
  s.packed_q = s.packed_k = s.sinks = true;
  Case c(s, random);
  EXPECT_GT(expect_all_kernels_verified(c), 0);
}

// No sequences, and sequences without rows: exactly what must be written is written.
TEST(VariableLengths, NothingThere) {
  for (const bool backward : {false, true}) {
    for (const int kind : {0, 1, 2, 3}) {
      Random random(1365 + static_cast<uint64_t>(kind));
      CaseSpec s = short_spec();
      s.backward = backward;
      s.sinks = true;
      s.packed_q = true;
      s.packed_k = backward || kind % 2 == 0;
      s.used_k = !s.packed_k;
      s.page_size = s.packed_k ? 0 : 4;
      s.even_lengths = kind != 3;
      s.batch = kind == 0 ? 0 : 3;
      if (kind == 1) s.seqlen_q = 0;
      if (kind == 2) s.seqlen_k = 0;
      Case c(s, random);
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

// The bits do not depend on the number of threads.
TEST(VariableLengths, AnyNumberOfThreadsGivesTheSameBits) {
  for (const int kind : {0, 1, 2}) {
    Random random(1370 + static_cast<uint64_t>(kind));
    CaseSpec s = short_spec();
    s.batch = 5;
    s.seqlen_q = kind == 1 ? 1 : 150;
    s.seqlen_k = kind == 1 ? 5000 : 700;
    s.packed_q = true;
    s.packed_k = kind != 1;
    s.page_size = kind == 1 ? 16 : 0;
    s.used_k = kind == 1;
    s.backward = kind == 2;
    Case c(s, random);
    for (const std::string& kernel : kernels_for(c.problem())) {
      std::vector<float> expected;
      for (const int threads : {1, 2, 5}) {
        AttentionOptions options = c.options;
        options.num_threads = threads;
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        const std::vector<float> got = c.output_values();
        if (threads == 1) expected = got;
        EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
            << kernel << " " << threads;
      }
    }
  }
}

// No family falls back silently to a slower one.
TEST(VariableLengths, EveryFamilyRunsThem) {
  Random random(1380);
  CaseSpec s = short_spec();
  s.packed_q = s.used_k = true;
  const auto kernels = [&] {
    const Case c(s, random);
    return kernels_for(c.problem());
  };
  const auto has = [](const std::vector<std::string>& names, const char* family) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.rfind(family, 0) == 0; });
  };
  EXPECT_TRUE(has(kernels(), "cpu.prefill."));
  EXPECT_TRUE(has(kernels(), "cpu.short."));
  EXPECT_TRUE(has(kernels(), "cpu.standard.plain"));
  s.page_size = 16;
  EXPECT_TRUE(has(kernels(), "cpu.prefill."));
  EXPECT_FALSE(has(kernels(), "cpu.short."));
  s.seqlen_q = 1;
  EXPECT_TRUE(has(kernels(), "cpu.decode."));
  s.page_size = 0;
  s.used_k = false;
  s.packed_k = s.backward = true;
  EXPECT_TRUE(has(kernels(), "cpu.backward."));
}

// All sequences of the most queries and keys: the bits of the same call without packing.
TEST(VariableLengths, EvenLengthsAreThePlainCall) {
  Random random(1400);
  CaseSpec s = short_spec();
  s.seqlen_q = 70;
  s.seqlen_k = 150;
  s.head_dim = s.head_dim_v = 32;
  const Case plain(s, random);
  for (const std::string& kernel : kernels_for(plain.problem())) {
    std::vector<float> expected(
        static_cast<std::size_t>(s.batch * s.seqlen_q * s.num_heads * s.head_dim_v)),
        packed(expected);
    AttentionTensors t = plain.tensors;
    t.lse = {};
    t.out.data = expected.data();
    AttentionOptions options = plain.options;
    options.kernel = kernel;
    ASSERT_TRUE(attention(t, options).ok());
    std::vector<int> cu_q, cu_k;
    for (int b = 0; b <= s.batch; ++b) {
      cu_q.push_back(b * static_cast<int>(s.seqlen_q));
      cu_k.push_back(b * static_cast<int>(s.seqlen_k));
    }
    t.cu_seqlens_q = {cu_q.data(), DType::int32, {1, 1, 1, s.batch + 1}, {0, 0, 0, 1}};
    t.cu_seqlens_k = {cu_k.data(), DType::int32, {1, 1, 1, s.batch + 1}, {0, 0, 0, 1}};
    t.q = Tensor::bshd(t.q.data, DType::fp32, 1, s.batch * s.seqlen_q, s.num_heads, s.head_dim);
    t.k = Tensor::bshd(t.k.data, DType::fp32, 1, s.batch * s.seqlen_k, s.num_kv_heads, s.head_dim);
    t.v =
        Tensor::bshd(t.v.data, DType::fp32, 1, s.batch * s.seqlen_k, s.num_kv_heads, s.head_dim_v);
    t.out = Tensor::bshd(packed.data(), DType::fp32, 1, s.batch * s.seqlen_q, s.num_heads,
                         s.head_dim_v);
    options.max_seqlen_q = s.seqlen_q;
    options.max_seqlen_k = s.seqlen_k;
    const Status status = attention(t, options);
    if (status.code() == StatusCode::unsupported) continue;  // other tests check refusals
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(std::memcmp(expected.data(), packed.data(), expected.size() * sizeof(float)), 0)
        << kernel;
  }
}

}  // namespace
}  // namespace fulmen::testing
