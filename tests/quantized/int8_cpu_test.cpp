// cpu.prefill_int8 on this processor's instruction sets, and with the products of VNNI, NEON and
// AMX emulated: the tolerance rule over its options, lengths and dims, codes of many parts of keys,
// and what is not a number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "quantized/int8_emulated.h"
#include "support/attention_case.h"
#include "support/random.h"
#include "support/run_kernel.h"

namespace fulmen::testing {

namespace {

class Int8Cpu : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(register_emulated_int8()); }
  // The family's kernels of the device.
  static std::vector<std::string> kernels(const Problem& problem, const std::string& device) {
    std::vector<std::string> names = kernels_for(problem, device);
    std::erase_if(names, [](const std::string& name) {
      return name.find("prefill_int8") == std::string::npos;
    });
    return names;
  }
  static void check(CaseSpec spec, Random& random) {
    spec.precision = Precision::int8;
    spec.nan_in_masked = spec.huge_bias = false;  // masked keys count in scales
    Case c(spec, random);
    int count = 0;
    for (const char* device : {"cpu", kEmulated}) {
      for (const std::string& kernel : kernels(c.problem(), device)) {
        EXPECT_TRUE(verified(c, kernel, Where{device})) << to_string(spec);
        ++count;
      }
    }
    EXPECT_GT(count, spec.page_size > 0 ? -1 : 1) << to_string(spec);
  }
  static CaseSpec spec_of(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim) {
    CaseSpec spec;
    spec.seqlen_q = seqlen_q;
    spec.seqlen_k = seqlen_k;
    spec.num_heads = 2;
    spec.head_dim = spec.head_dim_v = head_dim;
    spec.num_kv_heads = 1;
    spec.precision = Precision::int8;
    return spec;
  }
};

// A kernel of each instruction set that exact prefill has here: one that refused everything would
// be missed by no other test.
TEST_F(Int8Cpu, EverySetThatPrefillHasServes) {
  Random random(48'099);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    CaseSpec spec = spec_of(70, 90, 64);
    spec.dtype = dtype;
    Case eight(spec, random);
    spec.precision = Precision::exact;
    Case exact(spec, random);
    const std::vector<std::string> served = kernels(eight.problem(), "cpu");
    int sets = 0;
    for (const std::string& name : kernels_for(exact.problem(), "cpu")) {
      const std::string prefix = "cpu.prefill.";
      if (!name.starts_with(prefix)) continue;
      const std::string own = "cpu.prefill_int8." + name.substr(prefix.size());
      EXPECT_EQ(std::count(served.begin(), served.end(), own), 1) << own << to_string(spec);
      ++sets;
    }
    EXPECT_GE(sets, 1);
  }
}

TEST_F(Int8Cpu, TakesAnyOption) {
  Random random(48'100);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 40; ++i) {
    CaseSpec spec = random_spec(random);
    if (i % 4 == 1) draw_variable_lengths(spec, random);
    if (i % 4 == 2) draw_quantized(spec, random);
    check(spec, random);
  }
}

TEST_F(Int8Cpu, LengthsAndDims) {
  Random random(48'101);
  SCOPED_TRACE(test_seed());
  // All codes of one dim are +-127, so that the rule bounds the LSE closer than the sums of rounded
  // probabilities on matrix tiles are: as these are in exact calls, too.
  for (const int64_t head_dim : {2, 3, 16, 40, 59, 64, 96, 111, 128, 256}) {
    CaseSpec spec = spec_of(random.between(1, 150), random.between(1, 300), head_dim);
    spec.head_dim_v = random.between(1, 128);
    spec.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    spec.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    check(spec, random);
  }
}

TEST_F(Int8Cpu, GroupsOfHeads) {
  Random random(48'102);
  SCOPED_TRACE(test_seed());
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {4, 2}, {6, 2}, {5, 1}}) {
    CaseSpec spec = spec_of(70, 130, 32);
    spec.batch = 2;
    spec.num_heads = heads;
    spec.num_kv_heads = kv_heads;
    spec.dtype = random.pick({DType::fp32, DType::bf16});
    check(spec, random);
  }
}

// More than one part of keys, and parts of more than their least size; windows that leave out whole
// parts.
TEST_F(Int8Cpu, ManyKeys) {
  Random random(48'103);
  SCOPED_TRACE(test_seed());
  for (const int64_t keys : {513, 1300, 2177}) {
    CaseSpec spec = spec_of(65, keys, 24);
    spec.dtype = random.pick({DType::fp32, DType::bf16});
    check(spec, random);
    spec.dtype = DType::bf16;
    spec.lse = false;
    spec.causal = Causal::bottom_right;
    spec.window_left = random.between(1, 200);
    check(spec, random);
  }
}

TEST_F(Int8Cpu, SequencesOfDifferentLengths) {
  Random random(48'104);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 6; ++i) {
    CaseSpec spec = spec_of(90, 700, 40);
    spec.batch = 5;
    spec.packed_q = i % 2 == 0;
    spec.packed_k = i % 3 != 2;
    spec.used_k = !spec.packed_k;
    spec.leftpad_k = !spec.packed_k && !spec.packed_q;
    spec.dtype = i % 2 == 0 ? DType::bf16 : DType::fp32;
    spec.causal = i < 3 ? Causal::none : Causal::bottom_right;
    check(spec, random);
  }
}

// Keys with a large mean, equal keys and zeros: what the mean takes from the codes comes back.
TEST_F(Int8Cpu, MeansOfKeys) {
  Random random(48'105);
  SCOPED_TRACE(test_seed());
  for (const int kind : {0, 1, 2}) {
    Case c(spec_of(33, 200, 64), random);
    const Tensor k{const_cast<void*>(c.tensors.k.data), c.tensors.k.dtype, c.tensors.k.shape,
                   c.tensors.k.strides};
    for (int64_t j = 0; j < 200; ++j) {
      for (int64_t d = 0; d < 64; ++d) {
        const float x = Case::get(k, {0, j, 0, d});
        Case::set(k, {0, j, 0, d},
                  kind == 0   ? x + static_cast<float>(d % 7)
                  : kind == 1 ? static_cast<float>(d)
                              : 0.0F);
      }
    }
    for (const char* device : {"cpu", kEmulated}) {
      for (const std::string& kernel : kernels(c.problem(), device))
        EXPECT_TRUE(verified(c, kernel, Where{device})) << kind;
    }
  }
}

// A row's offset, which matrix tiles keep, no longer serves.
TEST_F(Int8Cpu, LaterScoresThatAreMuchLarger) {
  Random random(48'110);
  SCOPED_TRACE(test_seed());
  CaseSpec spec = spec_of(40, 600, 64);
  spec.dtype = DType::bf16;
  spec.lse = false;
  Case c(spec, random);
  const Tensor k{const_cast<void*>(c.tensors.k.data), c.tensors.k.dtype, c.tensors.k.shape,
                 c.tensors.k.strides};
  for (int64_t j = 300; j < 600; ++j) {
    for (int64_t d = 0; d < 64; ++d) Case::set(k, {0, j, 0, d}, 8 * Case::get(k, {0, j, 0, d}));
  }
  int count = 0;
  for (const char* device : {"cpu", kEmulated}) {
    for (const std::string& kernel : kernels(c.problem(), device)) {
      EXPECT_TRUE(verified(c, kernel, Where{device}));
      ++count;
    }
  }
  EXPECT_GT(count, 2);
}

TEST_F(Int8Cpu, ResultsAreBitEqualForAnyNumberOfThreads) {
  Random random(48'106);
  CaseSpec spec = spec_of(200, 1300, 40);
  spec.batch = 2;
  Case c(spec, random);
  for (const std::string& kernel : kernels(c.problem(), "cpu")) {
    std::vector<float> first;
    for (const int threads : {1, 2, 3, 7}) {
      AttentionOptions options = c.options;
      options.num_threads = threads;
      ASSERT_TRUE(run_kernel(c, kernel, options).ok());
      const std::vector<float> out = c.out_values();
      if (threads == 1) first = out;
      EXPECT_EQ(out, first) << kernel << " " << threads;
    }
  }
}

// A NaN in a row of q, or in a head's keys, stays in that row, or in that head's queries.
TEST_F(Int8Cpu, NansStayWhereTheyAre) {
  Random random(48'107);
  CaseSpec spec = spec_of(70, 140, 32);
  spec.num_kv_heads = 2;
  Case c(spec, random);
  const auto writable = [](const Tensor& t) {
    return Tensor{const_cast<void*>(t.data), t.dtype, t.shape, t.strides};
  };
  for (const char* device : {"cpu", kEmulated}) {
    for (const std::string& kernel : kernels(c.problem(), device)) {
      ASSERT_TRUE(run_kernel(c, kernel, Where{device}).ok());
      const std::vector<float> before = c.out_values();
      const auto differ = [&](const Tensor& input, std::array<int64_t, 4> at, float number,
                              const auto& may_differ) {
        const float old = Case::get(input, at);
        Case::set(writable(input), at, number);
        EXPECT_TRUE(run_kernel(c, kernel, Where{device}).ok());
        Case::set(writable(input), at, old);
        for (int64_t i = 0; i < 70; ++i) {
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t d = 0; d < 32; ++d) {
              const float now = Case::get(c.tensors.out, {0, i, h, d});
              const float was = before[static_cast<std::size_t>((i * 2 + h) * 32 + d)];
              if (!may_differ(i, h)) {
                EXPECT_EQ(now, was) << kernel << " " << i << " " << h << " " << d;
              }
            }
          }
        }
      };
      constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                      kInf = std::numeric_limits<float>::infinity();
      for (const float number : {kNan, kInf}) {
        differ(c.tensors.q, {0, 5, 1, 3}, number,
               [](int64_t i, int64_t h) { return i == 5 && h == 1; });
        differ(c.tensors.k, {0, 99, 0, 7}, number, [](int64_t, int64_t h) { return h == 0; });
      }
    }
  }
}

// Rows without keys are 0 with an LSE of -inf, even where their head's keys are no numbers.
TEST_F(Int8Cpu, RowsWithoutKeys) {
  Random random(48'108);
  CaseSpec spec = spec_of(80, 20, 16);
  spec.causal = Causal::bottom_right;  // the first 60 rows have none
  Case c(spec, random);
  const Tensor k{const_cast<void*>(c.tensors.k.data), c.tensors.k.dtype, c.tensors.k.shape,
                 c.tensors.k.strides};
  Case::set(k, {0, 3, 0, 2}, std::numeric_limits<float>::quiet_NaN());
  for (const char* device : {"cpu", kEmulated}) {
    for (const std::string& kernel : kernels(c.problem(), device)) {
      ASSERT_TRUE(run_kernel(c, kernel, Where{device}).ok());
      for (int64_t i = 0; i < 60; ++i) {
        for (int64_t d = 0; d < 16; ++d)
          EXPECT_EQ(Case::get(c.tensors.out, {0, i, 1, d}), 0.0F) << kernel << " " << i;
      }
    }
  }
}

TEST_F(Int8Cpu, IsChosenWhereItIsAskedForAlone) {
  Random random(48'109);
  Case c(spec_of(64, 64, 64), random);
  AttentionOptions options = c.options;
  const auto chosen = plan(make_problem(c.tensors, options).value(), "cpu", options);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen.value().config().kernel.rfind("cpu.prefill_int8.", 0), 0U)
      << chosen.value().config().kernel;
  options.precision = Precision::exact;
  const auto exact = plan(make_problem(c.tensors, options).value(), "cpu", options);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact.value().config().kernel.find("int8"), std::string::npos);
  options.kernel = "cpu.prefill_int8.scalar";
  const Status refused = plan(make_problem(c.tensors, options).value(), "cpu", options).status();
  EXPECT_NE(refused.message().find("its products are in 8 bits alone (precision)"),
            std::string::npos)
      << refused.message();
}

}  // namespace
}  // namespace fulmen::testing
