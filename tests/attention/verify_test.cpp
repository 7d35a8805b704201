// The tolerance rule itself: it accepts what is right and names what is not.
#include <gtest/gtest.h>

#include <cmath>

#include "fulmen/fulmen.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

Case right_case(DType dtype) {
  Random random(10);
  CaseSpec spec;
  spec.dtype = dtype;
  spec.batch = 2;
  spec.seqlen_q = 9;
  spec.seqlen_k = 21;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.head_dim_v = 8;
  Case c(spec, random);
  const Status status = run_kernel(c, "cpu.reference.double");
  EXPECT_TRUE(status.ok()) << status.message();
  return c;
}

TEST(Verify, AcceptsTheReferenceItself) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    const Case c = right_case(dtype);
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(report.ok) << report.message;
    EXPECT_TRUE(report.message.empty());
    EXPECT_GE(report.bound, 2 * report.baseline_error);
    EXPECT_LT(report.baseline_error, dtype == DType::fp32 ? 1e-5 : 0.05);
  }
}

TEST(Verify, NamesTheWorstElement) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    const Case c = right_case(dtype);
    const float value = Case::get(c.tensors.out, {1, 7, 2, 5});
    Case::set(c.tensors.out, {1, 7, 2, 5}, value + 1);
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_FALSE(report.ok);
    EXPECT_NE(report.message.find("out[b, i, h, d] = [1, 7, 2, 5]"), std::string::npos)
        << report.message;
    EXPECT_NEAR(report.worst_error, 1, 0.02);
  }
}

TEST(Verify, Fp32IsHeldToItsRow) {
  Case c = right_case(DType::fp32);
  const Tensor out = c.tensors.out;
  // Values of 1e-3 make a row of 1e-3: an error of 1e-6 is far below the absolute 1e-5 and still
  // 1e-3 of the row.
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < 21; ++j) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 8; ++d)
          Case::set(c.tensors.v, {b, j, h, d}, 1e-3F * Case::get(c.tensors.v, {b, j, h, d}));
      }
    }
  }
  ASSERT_TRUE(run_kernel(c, "cpu.reference.double").ok());
  EXPECT_TRUE(verify_result(c.problem(), c.tensors).ok);
  Case::set(out, {0, 3, 1, 2}, Case::get(out, {0, 3, 1, 2}) + 1e-6F);
  const VerifyReport report = verify_result(c.problem(), c.tensors);
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.message.find("[0, 3, 1, 2]"), std::string::npos) << report.message;
}

TEST(Verify, RefusesNanAndInfinityWhereTheReferenceHasNone) {
  for (const float wrong : {NAN, HUGE_VALF, -HUGE_VALF}) {
    const Case c = right_case(DType::bf16);
    Case::set(c.tensors.out, {0, 0, 0, 0}, wrong);
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_FALSE(report.ok);
    EXPECT_NE(report.message.find("[0, 0, 0, 0]"), std::string::npos) << report.message;
  }
}

TEST(Verify, ExpectsNanWhereTheReferenceHasIt) {
  Case c = right_case(DType::fp32);
  Case::set(c.tensors.q, {1, 2, 3, 0}, NAN);
  EXPECT_FALSE(verify_result(c.problem(), c.tensors).ok);
  ASSERT_TRUE(run_kernel(c, "cpu.reference.double").ok());
  EXPECT_TRUE(std::isnan(Case::get(c.tensors.out, {1, 2, 3, 0})));
  EXPECT_TRUE(verify_result(c.problem(), c.tensors).ok);
}

// Two equal keys and values of 1: standard attention has no error at all, so the bound is R alone.
TEST(Verify, AllowsOneRoundingOfTheProbabilitiesAndOneOfTheOutput) {
  for (const auto& [dtype, ulp] : {std::pair{DType::bf16, 0x1p-7F}, {DType::fp16, 0x1p-10F}}) {
    Random random(11);
    CaseSpec spec;
    spec.dtype = dtype;
    spec.seqlen_k = 2;
    spec.q_size = 0;
    Case c(spec, random);
    for (int64_t j = 0; j < 2; ++j) Case::set(c.tensors.v, {0, j, 0, 0}, 1);
    ASSERT_TRUE(run_kernel(c, "cpu.reference.double").ok());
    Case::set(c.tensors.out, {0, 0, 0, 0}, 1 + ulp);
    const VerifyReport one = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(one.ok) << one.message;
    EXPECT_EQ(one.baseline_error, 0);
    Case::set(c.tensors.out, {0, 0, 0, 0}, 1 + 2 * ulp);
    EXPECT_FALSE(verify_result(c.problem(), c.tensors).ok);
  }
}

// The error of a tile that reaches past its keys: it adds to a row's sum of thousands of right
// terms.
TEST(Verify, SeesFifteenKeysOfScoreZero) {
  Random random(20);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const int64_t keys : {700, 4000, 14000}) {
      CaseSpec spec;
      spec.dtype = dtype;
      spec.seqlen_k = keys;
      spec.head_dim = 64;
      spec.head_dim_v = 8;
      Case c(spec, random);
      const Status status = run_kernel(c, "cpu.reference.double");
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(verify_result(c.problem(), c.tensors).ok);
      const float lse = Case::get(c.tensors.lse, {0, 0, 0, 0});
      Case::set(c.tensors.lse, {0, 0, 0, 0}, lse + std::log1p(15 * std::exp(-lse)));
      EXPECT_FALSE(verify_result(c.problem(), c.tensors).ok) << to_string(c.spec);
    }
  }
}

TEST(Verify, ChecksTheLse) {
  const Case c = right_case(DType::fp16);
  Case::set(c.tensors.lse, {1, 3, 4, 0}, Case::get(c.tensors.lse, {1, 3, 4, 0}) + 1e-3F);
  const VerifyReport report = verify_result(c.problem(), c.tensors);
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.message.find("lse[b, h, i, 0] = [1, 3, 4, 0]"), std::string::npos)
      << report.message;
}

}  // namespace
}  // namespace fulmen::testing
