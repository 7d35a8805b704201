// The oracle against results worked out by hand, and against the contract's formulas written down
// once more without any of its code.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/attention_case.h"

namespace fulmen::testing {
namespace {

struct Oracle {
  std::vector<double> out;
  std::vector<double> lse;
  explicit Oracle(const Case& c)
      : out(static_cast<std::size_t>(c.spec.batch * c.spec.seqlen_q * c.spec.num_heads *
                                     c.spec.head_dim_v)),
        lse(static_cast<std::size_t>(c.spec.batch * c.spec.num_heads * c.spec.seqlen_q)) {
    EXPECT_TRUE(attention_reference(c.problem(), c.tensors, out.data(), lse.data()).ok());
  }
};

// One head, head_dim 1, one value a key: q = 1, k = log of the weights.
Case weights_case(const std::vector<double>& weights, const std::vector<double>& values,
                  CaseSpec spec = {}) {
  Random random(1);
  spec.seqlen_k = static_cast<int64_t>(weights.size());
  spec.scale = spec.scale == 0 ? 1 : spec.scale;
  Case c(spec, random);
  for (int64_t i = 0; i < spec.seqlen_q; ++i) Case::set(c.tensors.q, {0, i, 0, 0}, 1);
  for (int64_t j = 0; j < spec.seqlen_k; ++j) {
    Case::set(c.tensors.k, {0, j, 0, 0},
              static_cast<float>(std::log(weights[static_cast<std::size_t>(j)])));
    Case::set(c.tensors.v, {0, j, 0, 0}, static_cast<float>(values[static_cast<std::size_t>(j)]));
  }
  return c;
}

constexpr double kFloat = 1e-6;  // the inputs above are logarithms rounded to float

TEST(Oracle, WeighsValues) {
  const Oracle result(weights_case({1, 3}, {4, 8}));
  EXPECT_NEAR(result.out[0], 7, kFloat);
  EXPECT_NEAR(result.lse[0], std::log(4), kFloat);
}

TEST(Oracle, ScaleMultipliesScores) {
  CaseSpec spec;
  spec.scale = 2;
  const Oracle result(weights_case({1, 3}, {0, 10}, spec));
  EXPECT_NEAR(result.out[0], 9, kFloat);  // weights 1 and 9
}

TEST(Oracle, DefaultScaleIsOneOverRootOfHeadDim) {
  Random random(2);
  CaseSpec spec;
  spec.head_dim = 4;
  spec.seqlen_k = 2;
  Case c(spec, random);
  for (int64_t d = 0; d < 4; ++d) {
    Case::set(c.tensors.q, {0, 0, 0, d}, 1);
    Case::set(c.tensors.k, {0, 0, 0, d}, 0);
    // q.k = 2 log 3, halved by the scale.
    Case::set(c.tensors.k, {0, 1, 0, d}, static_cast<float>(std::log(3) / 2));
  }
  Case::set(c.tensors.v, {0, 0, 0, 0}, 4);
  Case::set(c.tensors.v, {0, 1, 0, 0}, 8);
  EXPECT_NEAR(Oracle(c).out[0], 7, kFloat);
}

TEST(Oracle, CausalBottomRight) {
  CaseSpec spec;
  spec.seqlen_q = 2;
  spec.causal = Causal::bottom_right;
  const Oracle result(weights_case({1, 1, 2}, {1, 3, 6}, spec));
  EXPECT_NEAR(result.out[0], 2, kFloat);  // keys 0 and 1
  EXPECT_NEAR(result.out[1], 4, kFloat);  // all
}

TEST(Oracle, CausalTopLeft) {
  CaseSpec spec;
  spec.seqlen_q = 2;
  spec.causal = Causal::top_left;
  const Oracle result(weights_case({1, 1, 2}, {1, 3, 6}, spec));
  EXPECT_NEAR(result.out[0], 1, kFloat);
  EXPECT_NEAR(result.out[1], 2, kFloat);
}

TEST(Oracle, CausalWithMoreQueriesThanKeysLeavesRowsEmpty) {
  CaseSpec spec;
  spec.seqlen_q = 3;
  spec.causal = Causal::bottom_right;
  const Oracle result(weights_case({1, 1}, {5, 7}, spec));
  EXPECT_EQ(result.out[0], 0);
  EXPECT_EQ(result.lse[0], -HUGE_VAL);
  EXPECT_NEAR(result.out[1], 5, kFloat);
  EXPECT_NEAR(result.out[2], 6, kFloat);
}

TEST(Oracle, WindowHasBothEndsInside) {
  CaseSpec spec;
  spec.seqlen_q = 4;
  spec.window_left = 1;
  spec.window_right = 0;
  const Oracle result(weights_case({1, 1, 1, 1}, {1, 2, 4, 8}, spec));
  EXPECT_NEAR(result.out[0], 1, kFloat);
  EXPECT_NEAR(result.out[1], 1.5, kFloat);
  EXPECT_NEAR(result.out[2], 3, kFloat);
  EXPECT_NEAR(result.out[3], 6, kFloat);
}

TEST(Oracle, SoftcapThenBias) {
  CaseSpec spec;
  spec.softcap = 2;
  spec.bias = true;
  Case c = weights_case({1, std::exp(5.0)}, {0, 1}, spec);
  Case::set(c.tensors.bias, {0, 0, 0, 0}, 1);
  Case::set(c.tensors.bias, {0, 0, 0, 1}, -3);
  const double score = 2 * std::tanh(5.0 / 2) - 3;
  EXPECT_NEAR(Oracle(c).out[0], std::exp(score) / (std::exp(score) + std::exp(1)), kFloat);
}

TEST(Oracle, AlibiFollowsTheDiagonal) {
  CaseSpec spec;
  spec.seqlen_q = 2;
  spec.alibi = 1;
  Case c = weights_case({1, 1, 1}, {1, 10, 100}, spec);
  Case::set(c.tensors.alibi_slopes, {0, 0, 0, 0}, static_cast<float>(std::log(2)));
  // Query 0 stands at key 1 when aligned bottom-right (only causal alignment moves the diagonal:
  // see the next line).
  const int64_t diagonal = c.problem().diagonal;
  const auto expected = [&](int64_t i) {
    double sum = 0;
    double weights = 0;
    for (int64_t j = 0; j < 3; ++j) {
      const double weight = std::pow(0.5, std::abs(i + diagonal - j));
      weights += weight;
      sum += weight * std::pow(10, j);
    }
    return sum / weights;
  };
  const Oracle result(c);
  EXPECT_NEAR(result.out[0], expected(0), 1e-5);
  EXPECT_NEAR(result.out[1], expected(1), 1e-5);
}

TEST(Oracle, SinkTakesItsShareAndIsInTheLse) {
  CaseSpec spec;
  spec.sinks = true;
  Case c = weights_case({1, 2}, {6, 6}, spec);
  Case::set(c.tensors.sinks, {0, 0, 0, 0}, static_cast<float>(std::log(3)));
  const Oracle result(c);
  EXPECT_NEAR(result.out[0], 3, kFloat);
  EXPECT_NEAR(result.lse[0], std::log(6), kFloat);
}

TEST(Oracle, FullyMaskedRowIsZeroAndItsLseTheSinkOrNothing) {
  for (const bool sinks : {false, true}) {
    CaseSpec spec;
    spec.keep = true;
    spec.sinks = sinks;
    Case c = weights_case({1, 2}, {6, NAN}, spec);
    static_cast<uint8_t*>(c.tensors.keep_mask.data)[0] = 0;
    static_cast<uint8_t*>(c.tensors.keep_mask.data)[1] = 0;
    const Oracle result(c);
    EXPECT_EQ(result.out[0], 0);
    if (sinks) {
      EXPECT_EQ(result.lse[0], Case::get(c.tensors.sinks, {0, 0, 0, 0}));
    } else {
      EXPECT_EQ(result.lse[0], -HUGE_VAL);
    }
  }
}

TEST(Oracle, MinusInfinityBiasIsAScore) {
  CaseSpec spec;
  spec.bias = true;
  Case c = weights_case({1, 1}, {3, 5}, spec);
  Case::set(c.tensors.bias, {0, 0, 0, 0}, -HUGE_VALF);
  Case::set(c.tensors.bias, {0, 0, 0, 1}, 0);
  const Oracle one(c);
  EXPECT_NEAR(one.out[0], 5, kFloat);
  Case::set(c.tensors.bias, {0, 0, 0, 1}, -HUGE_VALF);
  const Oracle none(c);
  EXPECT_EQ(none.out[0], 0);
  EXPECT_EQ(none.lse[0], -HUGE_VAL);
}

// What int8 may do to k follows from the range of all keys. A NaN among the masked ones once left
// nothing of it. The keys 8 and -8 have a range of 8, whatever the third one holds.
TEST(Oracle, BoundOfInt8DoesNotDependOnWhatMaskedKeysHold) {
  const auto bound_with = [](float masked) {
    CaseSpec spec;
    spec.precision = Precision::int8;
    spec.keep = true;
    spec.lse = false;
    Case c = weights_case({1, 1, 1}, {3, 5, 0}, spec);
    Case::set(c.tensors.q, {0, 0, 0, 0}, 0.03125F);
    Case::set(c.tensors.k, {0, 0, 0, 0}, 8);
    Case::set(c.tensors.k, {0, 1, 0, 0}, -8);
    Case::set(c.tensors.k, {0, 2, 0, 0}, masked);
    auto* const keep = static_cast<uint8_t*>(c.tensors.keep_mask.data);
    keep[0] = keep[1] = 1;
    keep[2] = 0;
    const Oracle exact(c);
    Case::set(c.tensors.out, {0, 0, 0, 0}, static_cast<float>(exact.out[0]));
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(report.ok) << report.message;
    return report.bound;
  };
  const double bound = bound_with(0);
  EXPECT_GT(bound, 1e-3);
  EXPECT_NEAR(bound_with(NAN), bound, 1e-3 * bound);
}

// docs/contract.md, one element at a time: no running sums, no ranges, long double.
void expect_formulas(const Case& c) {
  const CaseSpec& s = c.spec;
  const Oracle result(c);
  const long double scale =
      s.scale != 0 ? s.scale : 1.0L / std::sqrt(static_cast<long double>(s.head_dim));
  const int64_t diagonal = s.causal == Causal::top_left ? 0 : s.seqlen_k - s.seqlen_q;
  std::size_t row = 0;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      for (int64_t i = 0; i < s.seqlen_q; ++i, ++row) {
        const int64_t kv_head = h * s.num_kv_heads / s.num_heads;
        std::vector<long double> weighted(static_cast<std::size_t>(s.head_dim_v));
        long double total =
            s.sinks ? std::exp(static_cast<long double>(Case::get(c.tensors.sinks, {0, 0, 0, h})))
                    : 0;
        for (int64_t j = 0; j < s.seqlen_k; ++j) {
          if (s.causal != Causal::none && j > i + diagonal) continue;
          if (s.window_left >= 0 && j < i + diagonal - s.window_left) continue;
          if (s.window_right >= 0 && j > i + diagonal + s.window_right) continue;
          const auto in = [](const Tensor& t, int64_t n0, int64_t n1, int64_t n2) {
            return std::array<int64_t, 3>{t.shape[0] == 1 ? 0 : n0, t.shape[1] == 1 ? 0 : n1,
                                          t.shape[2] == 1 ? 0 : n2};
          };
          if (s.keep) {
            const Tensor& keep = c.tensors.keep_mask;
            const auto at = in(keep, b, h, i);
            const int64_t element =
                ((at[0] * keep.shape[1] + at[1]) * keep.shape[2] + at[2]) * keep.shape[3] + j;
            if (static_cast<const uint8_t*>(keep.data)[element] == 0) continue;
          }
          long double score = 0;
          for (int64_t d = 0; d < s.head_dim; ++d) {
            score += static_cast<long double>(Case::get(c.tensors.q, {b, i, h, d})) *
                     Case::get(c.tensors.k, {b, j, kv_head, d});
          }
          score *= scale;
          if (s.softcap > 0) score = s.softcap * std::tanh(score / s.softcap);
          if (s.bias) {
            const auto at = in(c.tensors.bias, b, h, i);
            score += Case::get(c.tensors.bias, {at[0], at[1], at[2], j});
          }
          if (s.alibi != 0) {
            score -= Case::get(c.tensors.alibi_slopes, {s.alibi == 2 ? b : 0, 0, 0, h}) *
                     std::abs(static_cast<long double>(i + diagonal - j));
          }
          const long double weight = std::exp(score);
          total += weight;
          for (int64_t d = 0; d < s.head_dim_v; ++d) {
            weighted[static_cast<std::size_t>(d)] +=
                weight * Case::get(c.tensors.v, {b, j, kv_head, d});
          }
        }
        const double lse = total == 0 ? -HUGE_VAL : static_cast<double>(std::log(total));
        if (total == 0) {
          ASSERT_EQ(result.lse[row], lse) << to_string(s);
        } else {
          // The Problem's scale is a float.
          ASSERT_NEAR(result.lse[row], lse, 1e-6) << to_string(s);
        }
        for (int64_t d = 0; d < s.head_dim_v; ++d) {
          const double expected =
              total == 0 ? 0 : static_cast<double>(weighted[static_cast<std::size_t>(d)] / total);
          const auto element =
              static_cast<std::size_t>(((b * s.seqlen_q + i) * s.num_heads + h) * s.head_dim_v + d);
          ASSERT_NEAR(result.out[element], expected, 1e-6)
              << to_string(s) << " at " << b << ' ' << i << ' ' << h << ' ' << d;
        }
      }
    }
  }
}

TEST(Oracle, AgreesWithTheFormulasOnRandomCases) {
  Random random(3);
  for (int n = 0; n < 60; ++n) {
    CaseSpec spec = random_spec(random);
    spec.huge_bias = false;  // this formula has no maximum to subtract
    spec.seqlen_q = std::min<int64_t>(spec.seqlen_q, 20);
    spec.seqlen_k = std::min<int64_t>(spec.seqlen_k, 40);
    spec.head_dim = std::min<int64_t>(spec.head_dim, 24);
    spec.head_dim_v = std::min<int64_t>(spec.head_dim_v, 24);
    expect_formulas(Case(spec, random));
    if (HasFatalFailure()) return;
  }
}

TEST(Oracle, RowsBeyondOneTaskAndSeveralHeadsAThread) {
  Random random(4);
  CaseSpec spec;
  spec.seqlen_q = 270;
  spec.seqlen_k = 33;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 3;
  spec.head_dim_v = 2;
  spec.batch = 2;
  expect_formulas(Case(spec, random));
}

}  // namespace
}  // namespace fulmen::testing
