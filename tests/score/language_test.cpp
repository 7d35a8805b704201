// The language of score functions: precedence, types, errors and their places, limits.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

double value_of(const std::string& text,
                const Pair& pair = {.score = 0.5, .b = 1, .h = 2, .q = 7, .k = 3}) {
  Random random(1);
  Tables tables(random);
  tables.numbers[3] = 11;
  tables.table[2][3] = 0.75F;
  const auto functions = functions_of(text, "");
  EXPECT_TRUE(functions.ok()) << text << ": " << functions.status().message();
  if (!functions.ok()) return NAN;
  const score::Graph& graph = functions->impl()->score;
  std::vector<score::Value> values(score::kMaxDerivativeNodes);
  score::evaluate(graph.nodes, TableElements(tables).of, pair_of(pair), values.data());
  return values[static_cast<std::size_t>(graph.results[0])].real;
}

std::string refusal(const std::string& text, bool mask = false) {
  const auto functions = mask ? functions_of("", text) : functions_of(text, "");
  return functions.ok() ? "" : functions.status().message();
}

TEST(ScoreLanguage, PrecedenceIsThatOfC) {
  EXPECT_EQ(value_of("1 + 2 * 3"), 7);
  EXPECT_EQ(value_of("2 * 3 % 4"), 2);
  EXPECT_EQ(value_of("1 << 2 + 1"), 8);
  EXPECT_EQ(value_of("float(1 < 2 == 3 < 4)"), 1);
  EXPECT_EQ(value_of("6 ^ 3 & 1 | 8"), (6 ^ (3 & 1)) | 8);
  EXPECT_EQ(value_of("7 - 2 - 1"), 4);
  EXPECT_EQ(value_of("-2 * -3"), 6);
  EXPECT_EQ(value_of("float(true || false && false)"), 1);
  EXPECT_EQ(value_of("float(q == 7 & k != 3)"), 0);
  EXPECT_EQ(value_of("~5 + 1"), -5);
  EXPECT_EQ(value_of("float(!false & false)"), 0);
}

TEST(ScoreLanguage, StatementsCommentsAndTensors) {
  EXPECT_EQ(value_of("x = q - k; # a distance\n y = x * x;\n score + y;"), 16.5);
  EXPECT_EQ(value_of("numbers[k] + table[h, k]"), 11.75);
  EXPECT_EQ(value_of("numbers[16] + numbers[-1] + table[5, 0] + table[0, 7]"), 0);
}

TEST(ScoreLanguage, IntsAreThoseOfTheContract) {
  EXPECT_EQ(value_of("-7 // 2"), -4);
  EXPECT_EQ(value_of("-7 % 2"), 1);
  EXPECT_EQ(value_of("7 % -3"), -2);
  EXPECT_EQ(value_of("q // 0 + q % 0"), 0);
  EXPECT_EQ(value_of("2147483647 + 1"), -2147483648.0);
  EXPECT_EQ(value_of("(-2147483647 - 1) // -1"), -2147483648.0);
  EXPECT_EQ(value_of("1 << 33"), 2);
  EXPECT_EQ(value_of("-8 >> 1"), -4);
  EXPECT_EQ(value_of("int(-1.9)"), -1);
  EXPECT_EQ(value_of("int(1e20) + int(nan)"), 2147483647);
  EXPECT_EQ(value_of("7 / 2"), 3.5);
}

TEST(ScoreLanguage, FloatsAreThoseOfTheContract) {
  EXPECT_TRUE(std::isnan(value_of("min(nan, 1.0)")));
  EXPECT_TRUE(std::isnan(value_of("max(score, nan)")));
  EXPECT_EQ(value_of("-1.0 / 0.0"), -HUGE_VAL);
  EXPECT_EQ(value_of("round(2.5) + round(3.5)"), 6);
  EXPECT_EQ(value_of("float(nan == nan)"), 0);
  EXPECT_EQ(value_of("float(isnan(inf - inf))"), 1);
  EXPECT_EQ(value_of("0.1"), 0.1F);  // constants are fp32
}

TEST(ScoreLanguage, RefusalsNameTheirPlaceAndWhatIsAccepted) {
  const struct {
    const char *text, *says;
  } kTexts[] = {
      {"", ""},
      {"score +", "score_mod, line 1, column 8: the end stands where a value is needed"},
      {"score +\n  slop * 2",
       "score_mod, line 2, column 3: 'slop' is no name of this function: "
       "score, b, h, q, k, names assigned before, functions and the tensors "
       "table, numbers are accepted"},
      {"score $ 2", "score_mod, line 1, column 7: '$' is no sign of the language"},
      {"x = 1; x = 2; x", "score_mod, line 1, column 8: 'x' is assigned a second time"},
      {"q = 1; q",
       "score_mod, line 1, column 1: 'q' is a word of the language: it cannot be assigned"},
      {"table = 1; q", "score_mod, line 1, column 1: 'table' is a tensor: it cannot be assigned"},
      {"x = 1;",
       "score_mod, line 1, column 7: the last expression, the function's value, is missing"},
      {"table[h]", "score_mod, line 1, column 1: 'table' has 2 dims, 1 indices are given"},
      {"table[h, 1.0]",
       "score_mod, line 1, column 1: an index of 'table' is float: int is needed; int(x) converts"},
      {"q < k",
       "score_mod, line 1, column 6: the value is bool: score_mod gives a float; float(x) "
       "converts"},
      {"1.0 % 2",
       "score_mod, line 1, column 5: '%' has float for an argument: int is accepted; int(x) "
       "converts"},
      {"score & 1",
       "score_mod, line 1, column 7: '&' has float and int for arguments: ints or bools are "
       "accepted"},
      {"min(1)", "score_mod, line 1, column 1: min takes 2 arguments, 1 are given"},
      {"4294967296",
       "score_mod, line 1, column 1: 4294967296 is beyond the range of int: up to "
       "2147483647 is accepted, 4294967296.0 is a float"},
      {"1e99", "score_mod, line 1, column 1: 1e99 is beyond the range of fp32"},
      {"(q", "score_mod, line 1, column 3: the end stands where ')' is needed"},
      {"q k", "score_mod, line 1, column 3: 'k' follows the function's value: its end is accepted"},
      {"select(q, 1, 2)",
       "score_mod, line 1, column 1: select's first argument is int: bool is needed; bool(x) "
       "converts"},
      {"1 + 2 = 3",
       "score_mod, line 1, column 7: '=' follows the function's value: its end is accepted"},
      {"!q",
       "score_mod, line 1, column 1: '!' has int for an argument: bool is accepted; bool(x) "
       "converts"},
      {"\xff", "score_mod, line 1, column 1: byte 0xff is no sign of the language"},
  };
  for (const auto& [text, says] : kTexts) EXPECT_EQ(refusal(text), says) << text;
  EXPECT_EQ(refusal("q", true),
            "mask_mod, line 1, column 2: the value is int: mask_mod gives a bool");
  EXPECT_EQ(
      refusal("score > 0", true),
      "mask_mod, line 1, column 1: mask_mod has no score: b, h, q, k and tensors are accepted");
}

TEST(ScoreLanguage, LimitsAreRefusedWithoutHarm) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(refusal(text).find(part), std::string::npos) << part << ": " << refusal(text);
  };
  has(std::string(100000, '('), "the text has 100000 bytes");
  has(std::string(300, '('), "inside each other");
  has(std::string(300, '-') + "1", "inside each other");
  std::string deep = "score";
  for (int i = 0; i < 300; ++i) deep += " + sin(score)*" + std::to_string(i) + ".0";
  has(deep, "operations deep");
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "x" + std::to_string(i) + "=q+" + std::to_string(i) + ";";
  has(many + "score", "more than 4096 nodes");
}

TEST(ScoreLanguage, EqualPartsAreOneNodeAndConstantsAreFolded) {
  const auto nodes = [](const char* text) {
    const auto functions = functions_of(text, "");
    return functions.ok() ? functions->impl()->score.nodes.size() : 0;
  };
  EXPECT_EQ(nodes("sin(score) + sin(score)"), 3U);
  EXPECT_EQ(nodes("score * (2.0 * 3.0 - 5.0)"), 1U);
  EXPECT_EQ(nodes("x = exp(q); score"), 1U);
  EXPECT_EQ(nodes("select(1 < 2, score, exp(score))"), 1U);
}

TEST(ScoreLanguage, RandomExpressionsHaveTheirClosuresValues) {
  Random random(2);
  const Tables tables(random);
  const TableElements elements(tables);
  std::vector<score::Value> values(score::kMaxDerivativeNodes);
  int compared = 0;
  constexpr int kExpressions = 400, kPairs = 20;
  for (int i = 0; i < kExpressions; ++i) {
    RandomExpressions make(random, tables, false);
    const Expression<double> e = make.real(static_cast<int>(random.between(0, 5)));
    const auto functions = functions_of(e.text, "");
    ASSERT_TRUE(functions.ok()) << functions.status().message() << "\n" << e.text;
    const score::Graph& graph = functions->impl()->score;
    for (int n = 0; n < kPairs; ++n) {
      const Pair pair = random_pair(random);
      score::evaluate(graph.nodes, elements.of, pair_of(pair), values.data());
      const double got = values[static_cast<std::size_t>(graph.results[0])].real,
                   want = e.value(pair), tolerance = 1e-6 * (1 + std::abs(want));
      // The sine of a huge number, a step beside its edge: the last bit decides.
      bool steady = true;
      for (const uint64_t seed : {1, 2, 3}) {
        const std::optional<double> other = with_other_roundings(e, pair, seed);
        steady = steady && other.has_value() &&
                 (std::isnan(want)   ? std::isnan(*other)
                  : std::isinf(want) ? *other == want
                                     : std::abs(*other - want) <= 0.1 * tolerance);
      }
      if (!steady) continue;
      ++compared;
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << e.text;
      } else if (std::isinf(want)) {
        EXPECT_EQ(got, want) << e.text;
      } else {
        EXPECT_NEAR(got, want, tolerance) << e.text;
      }
    }
  }
  EXPECT_GT(compared, kExpressions * kPairs * 9 / 10);
}

// Functions of calls before are found again, by all that they are made of.
TEST(KeptFunctions, AreThoseOfTheSameTextsAndTensors) {
  const auto first = functions_of("score + table[h, b]", "q >= k");
  const auto again = functions_of("score + table[h, b]", "q >= k");
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first->impl(), again->impl());
  EXPECT_NE(first->impl(), functions_of("score + table[h, b]", "q > k")->impl());
  EXPECT_NE(first->impl(), functions_of("score - table[h, b]", "q >= k")->impl());
  const auto with_gradients = functions_of("score + table[h, b]", "q >= k", true);
  ASSERT_TRUE(with_gradients.ok());
  EXPECT_NE(first->impl(), with_gradients->impl());
  EXPECT_TRUE(with_gradients->impl()->gradient_code.any());
  EXPECT_FALSE(first->impl()->gradient_code.any());
  std::vector<ScoreFunctions::Tensor> tensors(1);
  tensors[0] = {.name = "table", .dims = 2, .shape = {5, 7}, .strides = {7, 1}};
  const auto one = score::make_functions("score + table[h, b]", "", tensors, false);
  tensors[0].strides = {1, 5};
  const auto other = score::make_functions("score + table[h, b]", "", tensors, false);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->impl(), other->impl());
  EXPECT_EQ(other->impl()->tensors[0].strides[1], 5);
  // More than are kept, and one that is refused each time.
  for (int n = 0; n < 600; ++n) {
    const std::string text = "score * " + std::to_string(n) + ".5";
    const auto made = functions_of(text, "");
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->score_mod(), text);
  }
  EXPECT_FALSE(functions_of("score + ", "").ok());
  EXPECT_FALSE(functions_of("score + ", "").ok());
}

}  // namespace
}  // namespace fulmen::testing
