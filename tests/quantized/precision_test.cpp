// Products in 8 bits: how far they are from exact attention, what verify says of wrong ones, and
// what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/attention_case.h"
#include "support/exact_cosine.h"
#include "support/random.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr Precision kPrecisions[] = {Precision::int8, Precision::fp8};

CaseSpec spec_of(Precision precision, int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim) {
  CaseSpec spec;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_k = seqlen_k;
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = spec.head_dim_v = head_dim;
  spec.precision = precision;
  return spec;
}

// The root mean square of the difference from exact attention, relative to that of the output.
double relative_error(const Case& c) {
  Problem problem = c.problem();
  problem.precision = Precision::exact;
  const std::vector<float> out = c.out_values();
  std::vector<double> exact(out.size());
  EXPECT_TRUE(attention_reference(problem, c.tensors, exact.data(), nullptr).ok());
  double error = 0, size = 0;
  for (std::size_t n = 0; n < out.size(); ++n) {
    error += (out[n] - exact[n]) * (out[n] - exact[n]);
    size += exact[n] * exact[n];
  }
  return std::sqrt(error / size);
}

TEST(PrecisionTest, RandomProblemsAreWithinTheRule) {
  Random random(20'481);
  for (int round = 0; round < 24; ++round) {
    CaseSpec spec = random_spec(random);
    spec.precision = kPrecisions[round % 2];
    spec.nan_in_masked = false;  // masked keys count in scales
    spec.huge_bias = false;
    if (spec.dtype != DType::fp32) spec.lse = false;  // plain loops round scores to the dtype
    Case c(spec, random);
    EXPECT_GT(expect_all_kernels_verified(c), 0) << to_string(c.problem());
  }
}

TEST(PrecisionTest, ErrorsAreThoseOfTheRoundedNumbers) {
  Random random(20'482);
  for (const Precision precision : kPrecisions) {
    for (const bool outliers : {false, true}) {
      Case c(spec_of(precision, 96, 256, 64), random);
      if (outliers) shift_channels(c);
      reference::Expected expected;
      for (const std::string& kernel : kernels_for(c.problem())) {
        ASSERT_TRUE(verified(c, kernel, {}, &expected));
        const double error = relative_error(c);
        if (precision == Precision::int8) {
          EXPECT_GE(exact_cosine(c), kInt8Cosine) << kernel << (outliers ? " outliers" : "");
        }
        EXPECT_GT(error, 1e-3) << kernel << ": nothing was rounded";
        EXPECT_LT(error, precision == Precision::int8 ? 0.02
                         : outliers                   ? 0.3
                                                      : 0.06)
            << kernel << " " << to_string(precision) << (outliers ? " outliers" : "");
      }
    }
  }
}

TEST(PrecisionTest, VerifyRefusesAnotherProblemsResult) {
  Random random(20'483);
  for (const Precision precision : kPrecisions) {
    Case c(spec_of(precision, 40, 300, 64), random);
    ASSERT_TRUE(verified(c, "cpu.standard.plain"));
    const Tensor& out = c.tensors.out;
    for (int64_t d = 0; d < 64; ++d) Case::set(out, {0, 7, 1, d}, Case::get(out, {0, 8, 1, d}));
    EXPECT_FALSE(verify_result(c.problem(), c.tensors).ok) << to_string(precision);
  }
}

TEST(PrecisionTest, RefusalsNameWhatIsAccepted) {
  Random random(20'484);
  Case c(spec_of(Precision::int8, 4, 4, 16), random);
  AttentionOptions options;
  options.precision = static_cast<Precision>(3);
  EXPECT_EQ(make_problem(c.tensors, options).status().message(),
            "precision is 3: exact (0), int8 (1) and fp8 (2) are accepted");
  options.precision = Precision::fp8;
  options.kernel = "cpu.prefill.scalar";
  const Status refused = plan(make_problem(c.tensors, options).value(), "cpu", options).status();
  EXPECT_NE(refused.message().find("it has no products in fp8"), std::string::npos)
      << refused.message();

  CaseSpec spec = spec_of(Precision::exact, 4, 4, 16);
  spec.backward = true;
  Case backward(spec, random);
  backward.options.precision = Precision::fp8;
  EXPECT_EQ(make_backward_problem(backward.tensors, backward.options).status().message(),
            "precision is fp8: gradients are of exact products");
}

}  // namespace
}  // namespace fulmen::testing
