// Interval arithmetic over blocks beside every pair of the block.
#include "score/interval.h"

#include <gtest/gtest.h>

#include <vector>

#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

using score::Verdict;

// By evaluating each pair.
Verdict dense(const score::Graph& graph, const score::Elements* elements, const score::Block& at) {
  std::vector<score::Value> values(score::kMaxDerivativeNodes);
  bool any = false, all = true;
  for (int32_t q = at.query_first; q <= at.query_last; ++q) {
    for (int32_t k = at.key_first; k <= at.key_last; ++k) {
      score::evaluate<double>(graph.nodes, elements, {0, at.batch, at.head, q, k}, values.data());
      const bool one = values[static_cast<std::size_t>(graph.results[0])].integer != 0;
      any |= one;
      all &= one;
    }
  }
  return all ? Verdict::all : any ? Verdict::some : Verdict::none;
}

score::Block random_block(Random& random, int32_t most) {
  const auto first = [&] { return static_cast<int32_t>(random.between(0, most)); };
  score::Block block{static_cast<int32_t>(random.between(0, 3)),
                     static_cast<int32_t>(random.between(0, 6)),
                     first(),
                     0,
                     first(),
                     0};
  block.query_last = block.query_first + static_cast<int32_t>(random.between(0, 9));
  block.key_last = block.key_first + static_cast<int32_t>(random.between(0, 9));
  return block;
}

TEST(ScoreIntervals, ProveOnlyWhatEachPairGives) {
  Random random(5);
  const Tables tables(random);
  const TableElements elements(tables);
  int proofs = 0;
  for (int i = 0; i < 300; ++i) {
    RandomExpressions make(random, tables, false);
    make.with_score = false;
    const Expression<bool> e = make.boolean(static_cast<int>(random.between(1, 4)));
    const auto functions = functions_of("", e.text);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    const score::Graph& graph = functions->impl()->mask;
    std::vector<score::Bounds> scratch(graph.nodes.size());
    score::Intervals intervals(graph, elements.of, scratch.data());
    for (int n = 0; n < 10; ++n) {
      const score::Block block = random_block(random, random.chance(0.5) ? 30 : 1000000);
      const Verdict proved = intervals.of(block);
      if (proved == Verdict::some) continue;
      ++proofs;
      EXPECT_EQ(proved, dense(graph, elements.of, block)) << e.text;
    }
  }
  EXPECT_GT(proofs, 300);
}

TEST(ScoreIntervals, AreExactForBandsAndDocuments) {
  Random random(6);
  Tables tables(random);
  for (int i = 0; i < 16; ++i) tables.numbers[i] = i / 5;
  const TableElements elements(tables);
  const char* const kMasks[] = {
      "q >= k",           "q >= k & q - k <= 7",      "abs(q - k) < 5",
      "k < 12 | q >= k",  "numbers[q] == numbers[k]", "q + 3 >= k - 2 * b",
      "q // 8 == k // 8",
  };
  for (const char* mask : kMasks) {
    const auto functions = functions_of("", mask);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    const score::Graph& graph = functions->impl()->mask;
    std::vector<score::Bounds> scratch(graph.nodes.size());
    score::Intervals intervals(graph, elements.of, scratch.data());
    for (int n = 0; n < 200; ++n) {
      score::Block block = random_block(random, 15);
      // Documents are proved where a block lies in one or has none in common.
      if (mask[0] == 'n') {
        block.query_last = block.query_first;
        block.key_last = block.key_first;
      }
      if (std::string(mask).find("//") != std::string::npos) {
        block.query_first &= ~3, block.query_last = block.query_first + 3;
        block.key_first &= ~3, block.key_last = block.key_first + 3;
      }
      // Two bounds at once may each hold for other pairs of a block: what no single one decides.
      const bool two = std::string(mask).find("&") != std::string::npos ||
                       std::string(mask).find("|") != std::string::npos;
      const Verdict proved = intervals.of(block), each = dense(graph, elements.of, block);
      if (two && proved == Verdict::some) continue;
      EXPECT_EQ(proved, each) << mask << " queries " << block.query_first << " to "
                              << block.query_last << ", keys " << block.key_first << " to "
                              << block.key_last;
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
