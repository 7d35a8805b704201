// Bands of mask functions beside every pair: what a conjunction says of k - q, and the problem
// that kernels get of it.
#include "score/band.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/function_options.h"
#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

// A condition on k - q, in one of the ways to write it.
std::string drawn_band(Random& random, int64_t most) {
  const int64_t c = random.between(-most, most);
  switch (random.between(0, 11)) {
    case 0:
      return "q >= k";
    case 1:
      return fmt::format("k <= q + {}", c);
    case 2:
      return fmt::format("q - k < {}", c);
    case 3:
      return fmt::format("{} <= k - q", c);
    case 4:
      return fmt::format("abs(q - k) <= {}", c);
    case 5:
      return fmt::format("{} > abs(k + {} - q)", std::abs(c), random.between(0, 3));
    case 6:
      return fmt::format("!(q < k + {})", c);
    case 7:
      return fmt::format("!(k > q | k + {} < q)", c);
    case 8:
      return fmt::format("2 * q - k >= q - {}", c);
    case 9:
      return fmt::format("-k + {} >= -q", c);
    case 10:
      return "k == q";
    default:
      return fmt::format("!(k - q != {})", c);
  }
}

// Conditions that are no bands, some because their integers wrap.
std::string drawn_condition(Random& random) {
  return random.pick({"k < 9", "numbers[q % 16] == numbers[k % 16]", "h != 1", "q // 4 == k // 4",
                      "q >= k | k < 3", "2 * q >= k", "abs(q - k) >= 2", "q - k != 1",
                      "q + 2147483647 >= k", "q * 1073741824 * 2 >= k", "float(q) >= float(k)",
                      "!(q >= k & k > 4)", "q >= k + h", "abs(k - q - 2147483647 - 1) <= 5"});
}

std::string drawn_mask(Random& random, int64_t most) {
  std::string text;
  for (int64_t n = random.between(1, 4); n > 0; --n) {
    const std::string one = random.chance(0.7) ? drawn_band(random, most) : drawn_condition(random);
    text += fmt::format("{}({})", text.empty() ? "" : random.chance(0.5) ? " & " : " && ", one);
  }
  return random.chance(0.2) ? fmt::format("!!({})", text) : text;
}

bool evaluated(const score::Graph& graph, std::size_t result, const Tables& tables,
               const score::PairOf<double>& at) {
  std::vector<score::Value> values(graph.nodes.size());
  score::evaluate<double>(graph.nodes, TableElements(tables).of, at, values.data());
  return values[result].integer != 0;
}
bool evaluated(const score::Graph& graph, const Tables& tables, const score::PairOf<double>& at) {
  return graph.nodes.empty() ||
         evaluated(graph, static_cast<std::size_t>(graph.results[0]), tables, at);
}

TEST(ScoreBands, AreWhatEachPairGives) {
  Random random(21);
  const Tables tables(random);
  int bands = 0, others = 0;
  for (int i = 0; i < 150; ++i) {
    const int64_t queries = random.between(1, 12), keys = random.between(1, 12);
    const std::string text = drawn_mask(random, 6);
    SCOPED_TRACE(text);
    const auto functions = functions_of("", text);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    const score::Graph& mask = functions->impl()->mask;
    const auto conjuncts = score::conjuncts_of(mask, queries, keys);
    const score::Distances taken{-random.between(0, 6), random.between(0, 6)};
    const score::Graph left = score::without_bands(mask, conjuncts, taken);
    for (const score::Conjunct& one : conjuncts) ++(one.is_band ? bands : others);
    for (int32_t q = 0; q < queries; ++q) {
      for (int32_t k = 0; k < keys; ++k) {
        const score::PairOf<double> at{0, 0, static_cast<int32_t>(random.between(0, 2)), q, k};
        for (const score::Conjunct& one : conjuncts) {
          if (!one.is_band) continue;
          const bool is = evaluated(mask, static_cast<std::size_t>(one.node), tables, at);
          ASSERT_EQ(is != one.negated, one.distances.least <= k - q && k - q <= one.distances.most)
              << "q " << q << " k " << k;
        }
        if (k - q < taken.least || k - q > taken.most) continue;
        ASSERT_EQ(evaluated(left, tables, at), evaluated(mask, tables, at)) << q << " " << k;
      }
    }
  }
  EXPECT_GT(bands, 100);
  EXPECT_GT(others, 50);
}

struct Lengths {
  int64_t queries, keys;
};
// Whether the windows have the pair, in a sequence of these lengths.
bool windows_have(const Problem& p, const Lengths& one, int64_t q, int64_t k) {
  const int64_t diagonal = !p.variable_lengths() ? p.diagonal
                           : p.top_left          ? 0
                                                 : one.keys - one.queries;
  return (p.window_left < 0 || k >= q + diagonal - p.window_left) &&
         (p.window_right < 0 || k <= q + diagonal + p.window_right);
}

Problem drawn_problem(Random& random) {
  Problem p;
  p.batch = p.num_heads = 3;
  p.seqlen_q = random.between(1, 12), p.seqlen_k = random.between(1, 12);
  p.cu_seqlens_q.present = p.cu_seqlens_k.present = random.chance(0.4);
  if (random.chance(0.4)) p.window_left = random.between(0, 8);
  if (random.chance(0.4)) p.window_right = random.between(0, 8);
  p.top_left = random.chance(0.4);
  if (random.chance(0.3)) p.window_right = 0;
  p.diagonal = p.variable_lengths() || p.top_left ? 0 : p.seqlen_k - p.seqlen_q;
  p.alibi_slopes.present = random.chance(0.2);
  p.kv_indices.present = !p.variable_lengths() && random.chance(0.2);
  p.full_kv_indices.present = p.kv_indices.present && random.chance(0.5);
  return p;
}

TEST(ScoreBands, OfKernelsProblemsAreTheSameRows) {
  Random random(22);
  const Tables tables(random);
  int changed = 0, nothing_left = 0;
  for (int i = 0; i < 400; ++i) {
    Problem p = drawn_problem(random);
    const std::string text = drawn_mask(random, 8);
    auto functions = functions_of(random.chance(0.3) ? "score * 2.0" : "", text);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    p.functions = *functions;
    const Problem to = for_kernels(p);
    SCOPED_TRACE(to_string(p) + " -> " + to_string(to));
    EXPECT_EQ(to.functions.score_mod(), p.functions.score_mod());
    EXPECT_EQ(options_of_functions(p, to).empty(), p == to);
    if (p.alibi_slopes.present) {
      EXPECT_EQ(to.diagonal, p.diagonal);
      EXPECT_EQ(to.top_left, p.top_left);
    }
    // A diagonal that options can say: small problems and backends of programs make it anew.
    if (!p.variable_lengths()) {
      EXPECT_EQ(to.diagonal, to.top_left ? 0 : p.seqlen_k - p.seqlen_q);
    }
    changed += p == to ? 0 : 1;
    const auto* left = to.functions.impl();
    const score::Graph rest = left == nullptr ? score::Graph{} : left->mask;
    nothing_left += rest.nodes.empty() ? 1 : 0;
    const auto attended = [&](const Problem& of, const score::Graph& mask, const Lengths& one,
                              int32_t q, int32_t k) {
      return windows_have(of, one, q, k) && evaluated(mask, tables, {0, 0, 1, q, k});
    };
    for (int n = 0; n < 4; ++n) {
      // The longest sequence, then shorter ones.
      const bool shorter = n > 0 && p.variable_lengths();
      const Lengths one{shorter ? random.between(0, p.seqlen_q) : p.seqlen_q,
                        shorter ? random.between(0, p.seqlen_k) : p.seqlen_k};
      for (int32_t q = 0; q < one.queries; ++q) {
        for (int32_t k = 0; k < one.keys; ++k) {
          ASSERT_EQ(attended(to, rest, one, q, k), attended(p, p.functions.impl()->mask, one, q, k))
              << "q " << q << " k " << k << " of " << one.queries << " x " << one.keys;
          // Full blocks know nothing of mask_mod.
          if (!p.full_kv_indices.present) continue;
          ASSERT_EQ(windows_have(to, one, q, k), windows_have(p, one, q, k));
        }
      }
    }
  }
  EXPECT_GT(changed, 50);
  EXPECT_GT(nothing_left, 20);
}

// A window by mask_mod is the built-in one: kernels get the same problem.
TEST(ScoreBands, OfCausalMasksAndWindowsAreTheBuiltInOnes) {
  Problem p;
  p.seqlen_q = p.seqlen_k = 4096;
  const auto of = [&](const char* text) {
    Problem one = p;
    one.functions = *functions_of("", text);
    return for_kernels(one);
  };
  Problem want = p;
  want.window_right = 0;
  EXPECT_EQ(of("q >= k"), want);
  want.window_left = 1024;
  EXPECT_EQ(of("q >= k & q - k <= 1024"), want);
  want.window_right = 1024;
  EXPECT_EQ(of("abs(q - k) <= 1024"), want);
  EXPECT_EQ(of("q - k < 4096 & true"), p);
  // A sequence of documents keeps its function, inside the causal band.
  const Problem documents = of("numbers[q] == numbers[k] & q >= k");
  EXPECT_EQ(documents.window_right, 0);
  ASSERT_TRUE(documents.functions.any());
  EXPECT_LT(documents.functions.impl()->mask.nodes.size(), std::size_t{6});
}

}  // namespace
}  // namespace fulmen::testing
