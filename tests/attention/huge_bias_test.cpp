// Rows whose bias is large everywhere are ordinary rows: any finite bias is, on every CPU kernel,
// forward and backward.
#include "support/huge_bias.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr std::array kHugeBiasDTypes{DType::fp32, DType::fp16, DType::bf16};

// Checks each kernel by the tolerance rule, and by values that are computed without the oracle.
void expect_right_with_huge_bias(const CaseSpec& spec, Random& random) {
  Case c(spec, random);
  c.make_inputs_read_only();
  const std::vector<std::string> kernels = kernels_for(c.problem());
  EXPECT_FALSE(kernels.empty());
  const SoftmaxOfDifferences expected(c);
  reference::Expected by_oracle;
  for (const std::string& kernel : kernels) {
    EXPECT_TRUE(verified(c, kernel, {}, &by_oracle));
    EXPECT_TRUE(expected.matches()) << kernel << " " << to_string(spec);
  }
}

CaseSpec huge_bias_spec(DType dtype, DType bias_dtype, int64_t seqlen_q, int64_t seqlen_k) {
  CaseSpec s;
  s.dtype = dtype;
  s.batch = 2;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim = 32;
  s.head_dim_v = 40;
  s.bias = s.huge_bias = true;
  s.bias_dtype = bias_dtype;
  return s;
}

TEST(HugeBias, Forward) {
  Random random(2200);
  for (const DType dtype : kHugeBiasDTypes) {
    for (const DType bias_dtype : kHugeBiasDTypes) {
      expect_right_with_huge_bias(huge_bias_spec(dtype, bias_dtype, 40, 70), random);
      CaseSpec s = huge_bias_spec(dtype, bias_dtype, 70, 150);
      s.batch = 1;
      s.causal = Causal::bottom_right;
      s.sinks = true;
      expect_right_with_huge_bias(s, random);
      s = huge_bias_spec(dtype, bias_dtype, 5, 700);  // decode, by splits
      s.sinks = random.chance(0.5);
      s.bias_broadcast = {true, false, false};
      expect_right_with_huge_bias(s, random);
    }
  }
}

TEST(HugeBias, Backward) {
  Random random(2210);
  for (const DType dtype : kHugeBiasDTypes) {
    for (const DType bias_dtype : kHugeBiasDTypes) {
      CaseSpec s = huge_bias_spec(dtype, bias_dtype, 40, 70);
      s.backward = true;
      expect_right_with_huge_bias(s, random);
      s.sinks = s.dlse = true;
      s.bias_broadcast = {false, true, false};
      expect_right_with_huge_bias(s, random);
      s = huge_bias_spec(dtype, bias_dtype, 45, 600);  // several blocks of keys
      s.backward = true;
      s.batch = 1;
      s.causal = random.pick({Causal::none, Causal::bottom_right});
      expect_right_with_huge_bias(s, random);
    }
  }
}

// A bound is no wider than the error that fp32 may cause in a row, however large its scores. Errors
// that were once accepted are not.
TEST(HugeBias, TheRuleSeesWrongRows) {
  Random random(2220);
  for (const DType dtype : kHugeBiasDTypes) {
    CaseSpec s = huge_bias_spec(dtype, DType::fp32, 40, 70);
    Case c(s, random);
    ASSERT_TRUE(verified(c, "cpu.reference.double"));
    EXPECT_LT(verify_result(c.problem(), c.tensors).bound, 0.5);
    for (int64_t i = 4; i < 14; ++i) {  // of one size everywhere: the mean of v
      for (const float wrong : {0.0F, NAN}) {
        const float right = Case::get(c.tensors.out, {1, i, 2, 5});
        if (wrong == 0 && std::fabs(right) < 0.05F) continue;
        Case::set(c.tensors.out, {1, i, 2, 5}, wrong);
        EXPECT_FALSE(verify_result(c.problem(), c.tensors).ok)
            << "query " << i << " " << wrong << " for " << right;
        Case::set(c.tensors.out, {1, i, 2, 5}, right);
      }
    }
    s.backward = true;
    Case back(s, random);
    ASSERT_TRUE(verified(back, "cpu.reference.backward"));
    const VerifyReport report = verify_result(back.problem(), back.tensors);
    for (const TensorError& one : report.gradients) EXPECT_LT(one.bound, 2) << one.tensor;
    for (Tensor* gradient :
         {&back.tensors.dq, &back.tensors.dk, &back.tensors.dv, &back.tensors.dbias}) {
      // About the result if a probability were too large by a factor of the number of keys, and at
      // least 8 from the right one.
      const bool bias = gradient == &back.tensors.dbias;
      const std::array<int64_t, 4> at{1, bias ? 1 : 6, bias ? 6 : 1, 5};
      const float right = Case::get(*gradient, at);
      Case::set(*gradient, at, 70 * right + std::copysign(8.0F, right));
      const VerifyReport wrong = verify_result(back.problem(), back.tensors);
      EXPECT_FALSE(wrong.ok) << wrong.tensor << ": " << wrong.worst_error << " within "
                             << wrong.bound << ", " << right;
      Case::set(*gradient, at, right);
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
