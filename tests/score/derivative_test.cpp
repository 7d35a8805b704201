// Symbolic derivatives beside finite differences of the same function.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

double result(const score::Graph& graph, int at, const Tables& tables, const Pair& pair) {
  std::vector<score::Value> values(score::kMaxDerivativeNodes);
  score::evaluate(graph.nodes, TableElements(tables).of, pair_of(pair), values.data());
  return values[static_cast<std::size_t>(graph.results[static_cast<std::size_t>(at)])].real;
}

// Of a derivative by the elements of the table, all loads of an element together.
void table_gradient(const ScoreFunctions::Impl& impl, const Tables& tables, const Pair& pair,
                    double (&to)[5][7]) {
  std::vector<score::Value> values(score::kMaxDerivativeNodes);
  score::evaluate(impl.gradient.nodes, TableElements(tables).of, pair_of(pair), values.data());
  const auto at = [&](int i) {
    return values[static_cast<std::size_t>(impl.gradient.results[static_cast<std::size_t>(i)])];
  };
  for (const LoadResult& load : impl.loads) {
    ASSERT_EQ(load.tensor, 0);
    const int32_t i = at(load.index).integer, j = at(load.index + 1).integer;
    if (i >= 0 && i < 5 && j >= 0 && j < 7) to[i][j] += at(load.by).real;
  }
}

TEST(ScoreDerivatives, AreFiniteDifferences) {
  Random random(3);
  Tables tables(random);
  int compared = 0;
  for (int i = 0; i < 300; ++i) {
    RandomExpressions make(random, tables, true);
    const Expression<double> e = make.real(static_cast<int>(random.between(1, 4)));
    const auto functions = functions_of(e.text, "", true);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    const ScoreFunctions::Impl& impl = *functions->impl();
    Pair pair = random_pair(random);
    pair.q %= 8;
    pair.k %= 8;
    constexpr double kStep = 1e-5;
    Pair up = pair, down = pair;
    up.score += kStep;
    down.score -= kStep;
    const double slope = (e.value(up) - e.value(down)) / (2 * kStep),
                 curve = std::abs(e.value(up) + e.value(down) - 2 * e.value(pair)) / kStep,
                 got = result(impl.gradient, 0, tables, pair);
    EXPECT_NEAR(got, slope, 1e-6 + 1e-4 * std::abs(slope) + curve) << e.text;

    double by[5][7] = {};
    table_gradient(impl, tables, pair, by);
    const auto row = static_cast<int>(pair.h);
    for (int column = 0; row < 5 && column < 7; ++column) {
      float& element = tables.table[row][column];
      const float kept = element, high = kept + 0x1p-10F, low = kept - 0x1p-10F;
      element = high;
      const double above = e.value(pair);
      element = low;
      const double below = e.value(pair);
      element = kept;
      const double width = static_cast<double>(high) - low,
                   bend = std::abs(above + below - 2 * e.value(pair)) / width,
                   difference = (above - below) / width;
      EXPECT_NEAR(by[row][column], difference, 1e-4 + 0.02 * std::abs(difference) + bend) << e.text;
      compared += difference != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 10);
}

TEST(ScoreDerivatives, AtTheirEdgesAreThoseOfTheContract) {
  Random random(4);
  const Tables tables(random);
  const auto slope = [&](const char* text, double score) {
    const auto functions = functions_of(text, "", true);
    EXPECT_TRUE(functions.ok()) << functions.status().message();
    return result(functions->impl()->gradient, 0, tables, {.score = score});
  };
  EXPECT_EQ(slope("abs(score)", 0), 0);
  EXPECT_EQ(slope("abs(score)", -2), -1);
  EXPECT_EQ(slope("max(score, 0.0)", 0), 0.5);
  EXPECT_EQ(slope("min(score, 1.0)", 0.5), 1);
  EXPECT_EQ(slope("floor(score) + round(score) + ceil(score) + trunc(score)", 0.3), 0);
  EXPECT_EQ(slope("float(int(score))", 0.3), 0);
  EXPECT_EQ(slope("select(score > 0.0, 3.0 * score, score)", 1), 3);
  EXPECT_EQ(slope("pow(score, 0.0)", 0), 0);
  EXPECT_EQ(slope("pow(score, 2.0)", 3), 6);
  EXPECT_EQ(slope("7.0", 1), 0);
}

}  // namespace
}  // namespace fulmen::testing
