// Compiled code of score functions over a tile beside the evaluation of each pair.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpu/isa/instruction_sets.h"
#include "cpu/isa/scalar.h"
#include "cpu/pairs_source.h"
#include "cpu/tile/function_tile.h"
#include "gpu/compile/host_code.h"
#include "score/evaluate.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

constexpr int kPairKeys = 7;

// Appends a graph's nodes and results, so that one compilation serves many.
void append(score::Graph& all, const score::Graph& one) {
  const auto first = static_cast<int32_t>(all.nodes.size());
  for (score::Node node : one.nodes) {
    for (int a = 0; a < node.arguments; ++a) node.args[static_cast<std::size_t>(a)] += first;
    all.nodes.push_back(node);
  }
  for (const int32_t result : one.results) all.results.push_back(result + first);
}

class CompiledScoreTest : public ::testing::Test {
 protected:
  // A set that has compiled code and that this processor has; null: none.
  static const cpu::IsaTable* table() {
    for (const cpu::InstructionSet& isa : cpu::instruction_sets()) {
      if (isa.available && isa.table->numbers != nullptr) return isa.table;
    }
    return nullptr;
  }
  void SetUp() override {
    if (table() == nullptr) GTEST_SKIP() << "no instruction set of this processor has such code";
  }

  static void expect_same(const score::Graph& graph,
                          const std::vector<ScoreFunctions::Tensor>& tensors,
                          const std::vector<score::Elements>& elements,
                          const std::vector<float>& scores, Random& random) {
    const score::Bytecode code = score::compile(graph);
    HostSource source{"functions of a test", table()->name, {}, {}, cpu::kPairsSymbol};
    for (std::string_view flags = table()->flags; !flags.empty();) {
      const std::size_t end = std::min(flags.find(' '), flags.size());
      source.flags.emplace_back(flags.substr(0, end));
      flags.remove_prefix(std::min(end + 1, flags.size()));
    }
    source.text = cpu::pairs_source(code, tensors, table()->numbers);
    const Result<HostCode> host = gpu::make_host_code(source);
    if (host.status().code() == StatusCode::unavailable) GTEST_SKIP() << host.status().message();
    ASSERT_TRUE(host.ok()) << host.status().message();
    std::array<cpu::PairsTensor, score::kMaxTensors> pair_tensors{};
    for (std::size_t t = 0; t < elements.size(); ++t) {
      pair_tensors[t].data = elements[t].data;
      std::copy_n(elements[t].shape.begin(), 4, pair_tensors[t].shape);
      std::copy_n(elements[t].strides.begin(), 4, pair_tensors[t].strides);
    }
    const cpu::FunctionPlace place{random.between(0, 3), random.between(0, 6),
                                   random.between(0, 99), random.between(0, 99)};
    std::vector<float> scratch(static_cast<std::size_t>(cpu::register_floats(code)), NAN);
    const auto pairs = reinterpret_cast<cpu::PairsFunction>(host->function);
    cpu::FunctionTile<cpu::Scalar> tile({&code, elements.data(), pairs, pair_tensors.data()}, place,
                                        scratch.data());
    tile.begin(kPairKeys);
    std::vector<score::BasicValue<float>> values(graph.nodes.size());
    for (int key = 0; key < kPairKeys; ++key) {
      const auto row = static_cast<std::size_t>(key * cpu::kBlockM);
      if (key % cpu::kFunctionKeys == 0) tile.pairs(scores.data() + row, key);
      for (int i = 0; i < cpu::kBlockM; ++i) {
        score::evaluate<float>(
            graph.nodes, elements.data(),
            {scores[row + static_cast<std::size_t>(i)], static_cast<int32_t>(place.batch),
             static_cast<int32_t>(place.head), static_cast<int32_t>(place.row + i),
             static_cast<int32_t>(place.key + key)},
            values.data());
        for (std::size_t r = 0; r < graph.results.size(); ++r) {
          const auto node = static_cast<std::size_t>(graph.results[r]);
          const auto result = static_cast<int>(r);
          const score::BasicValue<float> want = values[node];
          if (graph.nodes[node].type != score::Type::real) {
            ASSERT_EQ(tile.integers(result, key)[i], want.integer) << "result " << r;
            continue;
          }
          const float got = tile.result(result, key)[i];
          if (std::isfinite(want.real)) {
            ASSERT_NEAR(got, want.real, 2e-4 * (1 + std::abs(want.real))) << "result " << r;
          } else {
            ASSERT_EQ(std::isnan(got), std::isnan(want.real)) << "result " << r;
            ASSERT_TRUE(std::isnan(got) || got == want.real) << "result " << r;
          }
        }
      }
    }
  }

  static std::vector<float> random_scores(Random& random) {
    std::vector<float> scores(8 * cpu::kBlockM);
    for (float& score : scores) score = random.normal();
    return scores;
  }
};

// Random functions, derivatives and places of loads among them, and masks.
TEST_F(CompiledScoreTest, GivesWhatEachPairDoes) {
  Random random(17);
  for (int round = 0; round < (long_run() ? 8 : 1); ++round) {
    const Tables tables(random);
    const TableElements elements(tables);
    score::Graph all;
    std::vector<ScoreFunctions::Tensor> tensors;
    for (int i = 0; i < 16; ++i) {
      RandomExpressions make(random, tables, true);
      const Expression<double> e = make.real(static_cast<int>(random.between(0, 4)));
      const auto functions = functions_of(e.text, "", true);
      ASSERT_TRUE(functions.ok()) << functions.status().message();
      append(all, functions->impl()->score);
      append(all, functions->impl()->gradient);
      tensors = functions->impl()->tensors;
      make.with_score = false;
      const auto mask = functions_of("", make.boolean(static_cast<int>(random.between(1, 4))).text);
      ASSERT_TRUE(mask.ok()) << mask.status().message();
      append(all, mask->impl()->mask);
    }
    expect_same(all, tensors, {elements.of[0], elements.of[1]}, random_scores(random), random);
  }
}

// Every operation, of scores of every kind: what the contract says about NaN, infinities, divisions
// by zero and ints.
TEST_F(CompiledScoreTest, EveryOperationOnUnusualNumbers) {
  Random random(18);
  score::Graph all;
  const auto add = [&](const std::string& score_mod, const std::string& mask_mod) {
    const auto functions = functions_of(score_mod, mask_mod);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    append(all, score_mod.empty() ? functions->impl()->mask : functions->impl()->score);
  };
  for (const char* one : {"-score",
                          "abs(score)",
                          "exp(score)",
                          "exp2(score)",
                          "log(score)",
                          "log2(score)",
                          "tanh(score)",
                          "sqrt(score)",
                          "rsqrt(score)",
                          "sigmoid(score)",
                          "floor(score)",
                          "ceil(score)",
                          "round(score)",
                          "trunc(score)",
                          "erf(score)",
                          "score + score * score",
                          "score - 1e30",
                          "1.0 / score",
                          "score / abs(score)",
                          "pow(abs(score), 0.5 * k)",
                          "min(score, 0.5)",
                          "max(score, 0.5)",
                          "min(q - 40.0, score)",
                          "max(score, score - k)",
                          "select(isnan(score), 1.0, score)",
                          "select(score < 1.0, 2.0, score)",
                          "select(score <= q, 2.0, 3.0)",
                          "select(score == inf, 1.0, 0.0)",
                          "select(score != score, 1.0, 0.0)",
                          "1.0 * int(score)",
                          "1.0 * (int(score * 1e9) // 7)",
                          "1.0 * (int(score) % 5)",
                          "sin(min(max(score, -9.0), 9.0))",
                          "cos(min(max(score, -9.0), 9.0)) * q"})
    add(one, "");
  for (const char* one :
       {"q * k % 7 == 3", "q * k // (k - 50) > 4", "(q - 60) * k % (q - 50) < 3", "abs(q * k) < 9",
        "-(q * k) < -500", "~(q * k) >= -300", "(q * k) << (q - k) > 0", "(q * k - 999) >> k < -2",
        "min(q * k, 900) != max(q * k, 800)", "(q * k & 12) == (q ^ k)", "(q | k) * q != 77",
        "!(q * k > 900) && q + k < 80 || k == 3", "q * 65537 * k * 65539 <= k"})
    add("", one);
  std::vector<float> scores = random_scores(random);
  constexpr float kMost = std::numeric_limits<float>::max();
  const float unusual[] = {0.0F,    INFINITY, -INFINITY, NAN,     kMost, -kMost,  1e-40F,
                           -1e-40F, 127.5F,   128.0F,    -127.0F, 88.8F, -104.0F, 0.5F,
                           1.5F,    -2.5F,    2.2e9F,    -2.2e9F, 1e30F, -1e30F};
  for (std::size_t i = 0; i < scores.size(); i += 2)
    scores[i] = unusual[i / 2 % std::size(unusual)];
  expect_same(all, {}, {}, scores, random);
}

// Elements of every type, at places in and out of range, by strides of both signs.
TEST_F(CompiledScoreTest, TensorsOfEveryType) {
  Random random(19);
  std::vector<ScoreFunctions::Tensor> tensors;
  std::vector<score::Elements> elements;
  std::vector<std::vector<unsigned char>> data;
  score::Graph all;
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16, DType::int32, DType::int64,
                            DType::int8, DType::uint8, DType::boolean}) {
    const int dims = static_cast<int>(tensors.size()) % 3 + 1;
    ScoreFunctions::Tensor tensor{
        .name = "t" + std::to_string(tensors.size()), .dims = dims, .dtype = dtype};
    int64_t count = 1;
    for (int d = 0; d < dims; ++d) {
      const auto dim = static_cast<std::size_t>(d);
      tensor.shape[dim] = 3 + d;
      tensor.strides[dim] = d == 0 ? -count : count;
      count *= tensor.shape[dim];
    }
    data.emplace_back(static_cast<std::size_t>(16 * count));
    for (unsigned char& byte : data.back())
      byte = static_cast<unsigned char>(random.between(0, 255));
    // The first dim runs backward from here.
    const int64_t bytes = dtype == DType::int64                           ? 8
                          : dtype == DType::fp32 || dtype == DType::int32 ? 4
                          : dtype == DType::fp16 || dtype == DType::bf16  ? 2
                                                                          : 1;
    elements.push_back({data.back().data() + 2 * bytes, dtype, dims, tensor.shape, tensor.strides});
    tensors.push_back(tensor);
  }
  for (const ScoreFunctions::Tensor& tensor : tensors) {
    std::string indices = "q * k % 6 - 1";
    for (int d = 1; d < tensor.dims; ++d) indices += ", (q + 2 * k) * q % 5";
    const std::string element = tensor.name + "[" + indices + "]";
    const bool real =
        tensor.dtype == DType::fp32 || tensor.dtype == DType::fp16 || tensor.dtype == DType::bf16;
    const auto functions = score::make_functions(
        real ? element : "", real ? "" : element + (tensor.dtype == DType::boolean ? "" : " > 9"),
        tensors, false);
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    append(all, real ? functions->impl()->score : functions->impl()->mask);
  }
  expect_same(all, tensors, elements, random_scores(random), random);
}

}  // namespace
}  // namespace fulmen::testing
