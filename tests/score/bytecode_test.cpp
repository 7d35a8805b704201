// Bytecode over a tile beside the evaluation of each pair.
#include "score/bytecode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/isa/scalar.h"
#include "cpu/tile/function_tile.h"
#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

constexpr int kKeys = 7;

// All results of a graph over a tile of kKeys keys: [results][kKeys][kBlockM]; ints as floats.
std::vector<double> over_tile(const score::Graph& graph, const score::Elements* elements,
                              const cpu::FunctionPlace& place, const std::vector<float>& scores) {
  const score::Bytecode code = score::compile(graph);
  std::vector<float> scratch(static_cast<std::size_t>(cpu::register_floats(code)), NAN);
  cpu::FunctionTile<cpu::Scalar> tile({&code, elements}, place, scratch.data());
  std::vector<double> values;
  values.resize(graph.results.size() * kKeys * cpu::kBlockM);
  tile.begin(kKeys);
  for (int key = 0; key < kKeys; ++key) {
    if (key % cpu::kFunctionKeys == 0) tile.pairs(scores.data() + key * cpu::kBlockM, key);
    for (std::size_t r = 0; r < graph.results.size(); ++r) {
      const float* from = tile.result(static_cast<int>(r), key);
      const bool real =
          graph.nodes[static_cast<std::size_t>(graph.results[r])].type == score::Type::real;
      for (int i = 0; i < cpu::kBlockM; ++i) {
        values[(r * kKeys + static_cast<std::size_t>(key)) * cpu::kBlockM +
               static_cast<std::size_t>(i)] =
            real ? static_cast<double>(from[i])
                 : static_cast<double>(reinterpret_cast<const int32_t*>(from)[i]);
      }
    }
  }
  return values;
}

void expect_same(const score::Graph& graph, const Tables& tables, Random& random,
                 const std::string& text) {
  const TableElements elements(tables);
  const cpu::FunctionPlace place{random.between(0, 3), random.between(0, 6), random.between(0, 99),
                                 random.between(0, 99)};
  std::vector<float> scores(8 * cpu::kBlockM);
  for (float& score : scores) score = random.normal();
  const std::vector<double> got = over_tile(graph, elements.of, place, scores);
  std::vector<score::BasicValue<float>> values(graph.nodes.size());
  for (int key = 0; key < kKeys; ++key) {
    for (int i = 0; i < cpu::kBlockM; ++i) {
      const auto at = static_cast<std::size_t>(key * cpu::kBlockM + i);
      score::evaluate<float>(
          graph.nodes, elements.of,
          {scores[at], static_cast<int32_t>(place.batch), static_cast<int32_t>(place.head),
           static_cast<int32_t>(place.row + i), static_cast<int32_t>(place.key + key)},
          values.data());
      for (std::size_t r = 0; r < graph.results.size(); ++r) {
        const auto node = static_cast<std::size_t>(graph.results[r]);
        const double x = got[r * kKeys * cpu::kBlockM + at];
        if (graph.nodes[node].type != score::Type::real) {
          ASSERT_EQ(x, values[node].integer) << text;
          continue;
        }
        const double want = values[node].real;
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(x)) << text;
        } else if (std::isinf(want)) {
          ASSERT_EQ(x, want) << text;
        } else {
          ASSERT_NEAR(x, want, 2e-4 * (1 + std::abs(want))) << text;
        }
      }
    }
  }
}

// Smooth ones: a rounding moves no step. Derivatives and indices come with them.
TEST(ScoreBytecode, GivesWhatEachPairDoes) {
  Random random(7);
  const Tables tables(random);
  for (int i = 0; i < 120; ++i) {
    RandomExpressions make(random, tables, true);
    const Expression<double> e = make.real(static_cast<int>(random.between(0, 4)));
    const auto functions = functions_of(e.text, "", true);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    expect_same(functions->impl()->score, tables, random, e.text);
    expect_same(functions->impl()->gradient, tables, random, e.text);
  }
}

// Ints and bools exactly.
TEST(ScoreBytecode, MasksAreExact) {
  Random random(8);
  const Tables tables(random);
  for (int i = 0; i < 200; ++i) {
    RandomExpressions make(random, tables, true);
    make.with_score = false;
    const Expression<bool> e = make.boolean(static_cast<int>(random.between(1, 4)));
    const auto functions = functions_of("", e.text);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    expect_same(functions->impl()->mask, tables, random, e.text);
  }
}

// Towards minus infinity, by 0 it is 0, and the least number by -1 is itself.
TEST(ScoreBytecode, DivisionsOfIntegers) {
  Random random(9);
  const auto numbers_of = [&](int bits) {
    return static_cast<int32_t>(
        static_cast<uint32_t>(random.between(-(int64_t{1} << bits), (int64_t{1} << bits) - 1)));
  };
  constexpr int32_t kLeast = INT32_MIN, kMost = INT32_MAX;
  std::vector<int32_t> numbers{0, 1, -1, 2, -2, 3, -3, kLeast, kLeast + 1, kMost, kMost - 1};
  for (int i = 0; i < 60; ++i) numbers.push_back(numbers_of(1 + i % 31));
  for (const int32_t a : numbers) {
    for (const int32_t b : numbers) {
      const auto quotient =
          b == 0 ? int64_t{0} : static_cast<int64_t>(std::floor(static_cast<long double>(a) / b));
      const int64_t rest = b == 0 ? 0 : a - quotient * b;
      EXPECT_EQ(cpu::quotient_of(a, b), static_cast<int32_t>(static_cast<uint64_t>(quotient)))
          << a << " // " << b;
      EXPECT_EQ(cpu::rest_of(a, b), rest) << a << " % " << b;
    }
  }
}

// Beside the C library's, over the whole range, infinities and NaN.
TEST(ScoreBytecode, TranscendentalFunctionsAreAccurate) {
  const auto at = [](auto function, float x) {
    float lanes[4];
    cpu::Scalar::store(lanes, function(cpu::Scalar::set1(x)));
    return lanes[0];
  };
  const auto near = [](double got, double want, double relative, double absolute) {
    return std::isnan(want)   ? std::isnan(got)
           : std::isinf(want) ? got == want
                              : std::abs(got - want) <= relative * std::abs(want) + absolute;
  };
  std::vector<float> points{0.0F,    -0.0F,   1e-30F, -1e-5F, 88.7F,    90.0F,     127.5F, 128.0F,
                            -127.0F, -140.0F, 1e30F,  -1e30F, INFINITY, -INFINITY, NAN};
  for (int i = -1000; i <= 1000; ++i) points.push_back(static_cast<float>(i) * 0.0891F);
  for (const float x : points) {
    EXPECT_TRUE(near(at(cpu::exp_of<cpu::Scalar>, x),
                     std::exp(double{x}) > 3.4028235e38 ? INFINITY : std::exp(double{x}), 1e-6,
                     1e-37))
        << x;
    EXPECT_TRUE(near(at(cpu::exp2_of<cpu::Scalar>, x),
                     std::exp2(double{x}) > 3.4028235e38 ? INFINITY : std::exp2(double{x}), 1e-6,
                     1e-37))
        << x;
    EXPECT_TRUE(near(at(cpu::tanh_of<cpu::Scalar>, x), std::tanh(double{x}), 1e-6, 1e-37)) << x;
    EXPECT_TRUE(
        near(at(cpu::sigmoid_of<cpu::Scalar>, x), 1 / (1 + std::exp(-double{x})), 2e-6, 1e-37))
        << x;
  }
}

}  // namespace
}  // namespace fulmen::testing
