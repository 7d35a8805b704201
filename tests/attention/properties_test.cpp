// Properties that hold for any input, for every kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/float_formats.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

struct Outcome {
  std::vector<float> out;
  std::vector<float> lse;
};

Outcome run(Case& c, const std::string& kernel) {
  const Status status = run_kernel(c, kernel);
  EXPECT_TRUE(status.ok()) << kernel << ": " << status.message();
  return {c.out_values(), c.lse_values()};
}

// Twice what rounding to the dtype can do to values of order one, and the rule's absolute part.
double tolerance(DType dtype) {
  return dtype == DType::fp32 ? 2e-5 : dtype == DType::fp16 ? 4e-3 : 3e-2;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, double bound,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (got[n] == want[n]) continue;  // infinities
    ASSERT_NEAR(got[n], want[n], bound * std::max(1.0F, std::fabs(want[n])))
        << what << " element " << n;
  }
}

CaseSpec property_spec(Random& random) {
  CaseSpec spec;
  spec.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
  spec.batch = 2;
  spec.seqlen_q = random.pick<int64_t>({1, 5, 64, 90});
  spec.seqlen_k = random.between(2, 200);
  spec.num_kv_heads = 2;
  spec.num_heads = random.pick<int64_t>({2, 4});
  spec.head_dim = spec.head_dim_v = random.pick<int64_t>({16, 32, 59, 64});
  spec.lse = true;
  return spec;
}

// Copies the rows source[j] of one sequence tensor [batch, seqlen, head, dim] into rows j of
// another.
void copy_rows(const Tensor& to, const Tensor& from, const std::vector<int64_t>& source) {
  for (int64_t b = 0; b < to.shape[0]; ++b) {
    for (std::size_t j = 0; j < source.size(); ++j) {
      for (int64_t h = 0; h < to.shape[2]; ++h) {
        for (int64_t d = 0; d < to.shape[3]; ++d) {
          Case::set(to, {b, static_cast<int64_t>(j), h, d}, Case::get(from, {b, source[j], h, d}));
        }
      }
    }
  }
}

std::vector<int64_t> counted_from(int64_t first, int64_t count) {
  std::vector<int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

TEST(Properties, PermutingKeysChangesNothing) {
  Random random(300);
  for (int n = 0; n < 8; ++n) {
    const CaseSpec spec = property_spec(random);
    Case c(spec, random);
    Case permuted(spec, random);
    std::vector<int64_t> order = counted_from(0, spec.seqlen_k);
    for (std::size_t j = order.size() - 1; j > 0; --j)
      std::swap(order[j],
                order[static_cast<std::size_t>(random.between(0, static_cast<int64_t>(j)))]);
    copy_rows(permuted.tensors.q, c.tensors.q, counted_from(0, spec.seqlen_q));
    copy_rows(permuted.tensors.k, c.tensors.k, order);
    copy_rows(permuted.tensors.v, c.tensors.v, order);
    for (const std::string& kernel : kernels_for(c.problem())) {
      const Outcome straight = run(c, kernel);
      const Outcome shuffled = run(permuted, kernel);
      expect_close(shuffled.out, straight.out, tolerance(spec.dtype),
                   kernel + " out " + to_string(spec));
      expect_close(shuffled.lse, straight.lse, 2e-5, kernel + " lse " + to_string(spec));
    }
  }
}

TEST(Properties, AConstantAddedToARowsBiasMovesOnlyTheLse) {
  Random random(301);
  for (int n = 0; n < 8; ++n) {
    CaseSpec spec = property_spec(random);
    spec.bias = true;
    Case c(spec, random);
    // Multiples of 1/64 and constants that are whole numbers: the sums are exact in fp32.
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t h = 0; h < spec.num_heads; ++h) {
        for (int64_t i = 0; i < spec.seqlen_q; ++i) {
          for (int64_t j = 0; j < spec.seqlen_k; ++j) {
            Case::set(c.tensors.bias, {b, h, i, j},
                      static_cast<float>(random.between(-64, 64)) / 64);
          }
        }
      }
    }
    for (const std::string& kernel : kernels_for(c.problem())) {
      const Outcome before = run(c, kernel);
      const auto shift = [&](float sign) {
        for (int64_t b = 0; b < spec.batch; ++b) {
          for (int64_t h = 0; h < spec.num_heads; ++h) {
            for (int64_t i = 0; i < spec.seqlen_q; ++i) {
              for (int64_t j = 0; j < spec.seqlen_k; ++j) {
                const float old = Case::get(c.tensors.bias, {b, h, i, j});
                Case::set(c.tensors.bias, {b, h, i, j},
                          old + sign * static_cast<float>(3 * h - i % 7));
              }
            }
          }
        }
      };
      shift(1);
      Outcome after = run(c, kernel);
      shift(-1);
      std::size_t row = 0;
      for (int64_t b = 0; b < spec.batch; ++b) {
        for (int64_t h = 0; h < spec.num_heads; ++h) {
          for (int64_t i = 0; i < spec.seqlen_q; ++i)
            after.lse[row++] -= static_cast<float>(3 * h - i % 7);
        }
      }
      expect_close(after.out, before.out, tolerance(spec.dtype),
                   kernel + " out " + to_string(spec));
      expect_close(after.lse, before.lse, 3e-5, kernel + " lse " + to_string(spec));
    }
  }
}

TEST(Properties, SplittingKeysAndMergingByLseEqualsOnePass) {
  Random random(302);
  for (int n = 0; n < 8; ++n) {
    CaseSpec spec = property_spec(random);
    Case whole(spec, random);
    const int64_t first_part = random.between(1, spec.seqlen_k - 1);
    CaseSpec left_spec = spec;
    CaseSpec right_spec = spec;
    left_spec.seqlen_k = first_part;
    right_spec.seqlen_k = spec.seqlen_k - first_part;
    Case left(left_spec, random);
    Case right(right_spec, random);
    for (Case* part : {&left, &right}) {
      const std::vector<int64_t> rows = part == &left
                                            ? counted_from(0, first_part)
                                            : counted_from(first_part, spec.seqlen_k - first_part);
      copy_rows(part->tensors.q, whole.tensors.q, counted_from(0, spec.seqlen_q));
      copy_rows(part->tensors.k, whole.tensors.k, rows);
      copy_rows(part->tensors.v, whole.tensors.v, rows);
    }
    const std::vector<std::string> right_kernels = kernels_for(right.problem());
    const std::vector<std::string> left_kernels = kernels_for(left.problem());
    for (const std::string& kernel : kernels_for(whole.problem())) {
      const auto takes = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), kernel) != names.end();
      };
      if (!takes(left_kernels) || !takes(right_kernels)) continue;
      const Outcome one = run(whole, kernel);
      const Outcome a = run(left, kernel);
      const Outcome b = run(right, kernel);
      Outcome merged = one;
      for (int64_t batch = 0; batch < spec.batch; ++batch) {
        for (int64_t i = 0; i < spec.seqlen_q; ++i) {
          for (int64_t h = 0; h < spec.num_heads; ++h) {
            const auto lse_row =
                static_cast<std::size_t>((batch * spec.num_heads + h) * spec.seqlen_q + i);
            const double lse =
                std::max(a.lse[lse_row], b.lse[lse_row]) +
                std::log1p(std::exp(-std::fabs(double{a.lse[lse_row]} - b.lse[lse_row])));
            merged.lse[lse_row] = static_cast<float>(lse);
            const double share = std::exp(a.lse[lse_row] - lse);
            for (int64_t d = 0; d < spec.head_dim_v; ++d) {
              const auto element = static_cast<std::size_t>(
                  ((batch * spec.seqlen_q + i) * spec.num_heads + h) * spec.head_dim_v + d);
              merged.out[element] =
                  static_cast<float>(share * a.out[element] + (1 - share) * b.out[element]);
            }
          }
        }
      }
      expect_close(merged.out, one.out, tolerance(spec.dtype), kernel + " out " + to_string(spec));
      expect_close(merged.lse, one.lse, 2e-5, kernel + " lse " + to_string(spec));
    }
  }
}

TEST(Properties, MaskedKeysMayHoldNan) {
  Random random(303);
  for (int n = 0; n < 12; ++n) {
    CaseSpec spec = property_spec(random);
    spec.keep = true;
    // One mask for all queries, so that whole keys are hidden.
    spec.keep_broadcast = {n % 2 == 0, true, true};
    spec.causal = random.pick({Causal::none, Causal::top_left});
    spec.bias = random.chance(0.3);
    Case clean(spec, random);
    auto* keep = static_cast<uint8_t*>(clean.tensors.keep_mask.data);
    keep[random.between(0, spec.seqlen_k - 1)] = 0;
    std::vector<std::pair<std::string, Outcome>> before;
    for (const std::string& kernel : kernels_for(clean.problem()))
      before.emplace_back(kernel, run(clean, kernel));
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t j = 0; j < spec.seqlen_k; ++j) {
        if (keep[(n % 2 == 0 ? 0 : b * spec.seqlen_k) + j] != 0) continue;
        for (int64_t h = 0; h < spec.num_kv_heads; ++h) {
          for (int64_t d = 0; d < spec.head_dim; ++d)
            Case::set(clean.tensors.k, {b, j, h, d}, d % 2 == 0 ? NAN : HUGE_VALF);
          for (int64_t d = 0; d < spec.head_dim_v; ++d)
            Case::set(clean.tensors.v, {b, j, h, d}, d % 3 == 0 ? HUGE_VALF : NAN);
        }
      }
    }
    for (const auto& [kernel, outcome] : before) {
      const Outcome after = run(clean, kernel);
      expect_close(after.out, outcome.out, 1e-6, kernel + " out " + to_string(spec));
      expect_close(after.lse, outcome.lse, 1e-6, kernel + " lse " + to_string(spec));
    }
  }
}

// v of ones gives ones: the probabilities sum to one.
TEST(Properties, ProbabilitiesSumToOne) {
  Random random(304);
  for (int n = 0; n < 6; ++n) {
    const CaseSpec spec = property_spec(random);
    Case c(spec, random);
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t j = 0; j < spec.seqlen_k; ++j) {
        for (int64_t h = 0; h < spec.num_kv_heads; ++h) {
          for (int64_t d = 0; d < spec.head_dim_v; ++d) Case::set(c.tensors.v, {b, j, h, d}, 1);
        }
      }
    }
    for (const std::string& kernel : kernels_for(c.problem())) {
      for (const float value : run(c, kernel).out)
        ASSERT_NEAR(value, 1, tolerance(spec.dtype)) << kernel << ' ' << to_string(spec);
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
