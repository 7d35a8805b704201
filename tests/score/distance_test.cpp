// What is found to follow from q - k alone, and what such values are in a tile's registers.
#include "score/distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu/isa/scalar.h"
#include "cpu/tile/function_tile.h"
#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

bool follows(const std::string& score, const std::string& mask = "") {
  const auto functions = functions_of(score, mask);
  EXPECT_TRUE(functions.ok()) << functions.status().message();
  const score::Graph& graph = mask.empty() ? functions->impl()->score : functions->impl()->mask;
  return score::vary_with_distance(graph.nodes)[static_cast<std::size_t>(graph.results[0])];
}

TEST(ScoreDistance, IsFound) {
  for (const char* score :
       {"0.5 * (k - q)", "table[h, min(max(q - k + 3, 0), 6)]", "table[h, k - (q - 5)]",
        "float((q + b) - (k - h))", "float(3 * q - k * 3 + numbers[h])", "float(-k + q) * 0.5",
        "sqrt(float(abs(q - k)))", "select(q < k, 1.0, exp2(-0.1 * (q - k)))",
        "float((q - 2 * k) + k)"})
    EXPECT_TRUE(follows(score)) << score;
  for (const char* mask : {"q >= k", "k < q", "q == k", "q + 7 != k + b", "(q - k) % 3 == 0",
                           "q >= k & q - k <= 9", "k - q < 4 || q - k > 70"})
    EXPECT_TRUE(follows("", mask)) << mask;
}

TEST(ScoreDistance, IsNotFoundWhereMoreCounts) {
  for (const char* score :
       {"score", "score + (q - k)", "float(b)", "float(q)", "0.5 * (q + k)", "float(q - 2 * k)",
        "float(q) - float(k)", "float(q // 2 - k // 2)", "table[h, numbers[q] - numbers[k]]",
        "float(h * q - h * k)", "float(q - k + k)", "(q - k) * 0.5 + k"})
    EXPECT_FALSE(follows(score)) << score;
  // A sum that wraps turns what is less.
  for (const char* mask : {"q + 1 > k", "q >= k | k < 5", "q < 4", "numbers[q] == k", "q * b >= k"})
    EXPECT_FALSE(follows("", mask)) << mask;
}

// Pairs that are as far apart give the same bits, also where one of them is below 0 or sums wrap.
TEST(ScoreDistance, DecidesTheBits) {
  Random random(11);
  const Tables tables(random);
  const TableElements elements(tables);
  int found = 0;
  for (int i = 0; i < 400; ++i) {
    RandomExpressions make(random, tables, false);
    const auto functions = functions_of(make.real(static_cast<int>(random.between(1, 4))).text, "");
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    const std::vector<score::Node>& nodes = functions->impl()->score.nodes;
    const std::vector<bool> by_distance = score::vary_with_distance(nodes);
    std::vector<score::BasicValue<float>> values(nodes.size()), others(nodes.size());
    for (int n = 0; n < 20; ++n) {
      const auto b = static_cast<int32_t>(random.between(0, 3)),
                 h = static_cast<int32_t>(random.between(0, 6));
      const int64_t q = random.between(0, 300), k = random.between(0, 300),
                    step = random.chance(0.5) ? 2147483000 : -q;
      score::evaluate<float>(nodes, elements.of,
                             {0.5F, b, h, static_cast<int32_t>(q), static_cast<int32_t>(k)},
                             values.data());
      score::evaluate<float>(
          nodes, elements.of,
          {0.25F, b, h, static_cast<int32_t>(q + step), static_cast<int32_t>(k + step)},
          others.data());
      for (std::size_t at = 0; at < nodes.size(); ++at) {
        if (!by_distance[at]) continue;
        ++found;
        ASSERT_EQ(values[at].integer, others[at].integer) << functions->impl()->score_text;
        ASSERT_EQ(std::memcmp(&values[at].real, &others[at].real, sizeof(float)), 0)
            << functions->impl()->score_text;
      }
    }
  }
  EXPECT_GT(found, 1000);
}

// Tiles of any number of keys, in scratch of exactly the floats that are asked for. Operations that
// do not round, so that each pair's bits are known.
TEST(ScoreDistance, TilesHaveEachPairsBits) {
  Random random(12);
  const Tables tables(random);
  const TableElements elements(tables);
  const std::vector<float> scores = [&] {
    std::vector<float> all(static_cast<std::size_t>(cpu::kMaxBlockN) * cpu::kBlockM);
    for (float& score : all) score = random.normal();
    return all;
  }();
  for (const char* text :
       {"score + table[h, min(max(q - k + 3, 0), 6)]", "table[h, (q - k) % 7]",
        "select(q >= k, score, float(q - k))", "select((q - k) % 3 == 0 & k % 2 == 0, score, -inf)",
        "max(score, float(q - k)) + float(k)", "table[(q + k) % 5, abs(k - q) % 7]",
        "float(numbers[abs(q - k) % 16] - k + q)", "float(q) * float(q - k)", "float(k)", "score",
        "float(q)", "0.5", "score + float((q - 2 * k) + k) + float(2 * k)"}) {
    const auto functions = functions_of(text, "");
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    const score::Graph& graph = functions->impl()->score;
    const score::Bytecode& code = functions->impl()->score_code;
    std::vector<score::BasicValue<float>> values(graph.nodes.size());
    for (const int keys : {1, 4, 7, 64, 125, 128}) {
      const cpu::FunctionPlace place{1, random.between(0, 4), random.between(0, 300),
                                     random.between(0, 300)};
      const auto floats = static_cast<std::size_t>(cpu::register_floats(code));
      const std::unique_ptr<float[]> scratch(new float[floats]);
      cpu::FunctionTile<cpu::Scalar> tile({&code, elements.of}, place, scratch.get());
      tile.begin(keys);
      for (int key = 0; key < keys; ++key) {
        const float* row = scores.data() + static_cast<std::ptrdiff_t>(key) * cpu::kBlockM;
        if (key % cpu::kFunctionKeys == 0) tile.pairs(row, key);
        for (int i = 0; i < cpu::kBlockM; ++i) {
          score::evaluate<float>(
              graph.nodes, elements.of,
              {row[i], static_cast<int32_t>(place.batch), static_cast<int32_t>(place.head),
               static_cast<int32_t>(place.row + i), static_cast<int32_t>(place.key + key)},
              values.data());
          const float want = values[static_cast<std::size_t>(graph.results[0])].real;
          ASSERT_EQ(std::memcmp(&want, tile.result(0, key) + i, sizeof want), 0)
              << text << ": key " << key << " of " << keys << ", query " << i << ": " << want
              << " or " << tile.result(0, key)[i];
        }
      }
    }
  }
}

// What a table of biases costs: its places and loads once a tile, one addition a pair.
TEST(ScoreDistance, LeavesOneAdditionOfABias) {
  const auto functions = functions_of("score + table[h, min(max(q - k + 3, 0), 6)]", "");
  ASSERT_TRUE(functions.ok()) << functions.status().message();
  const score::Bytecode& code = functions->impl()->score_code;
  ASSERT_EQ(code.pairs.size(), 1U);
  EXPECT_EQ(code.pairs[0].op, score::Op::add);
  const auto mask = functions_of("", "q >= k & (q - k) % 2 == 0 & q - k < 80");
  ASSERT_TRUE(mask.ok()) << mask.status().message();
  EXPECT_TRUE(mask->impl()->mask_code.pairs.empty());
}

}  // namespace
}  // namespace fulmen::testing
