// The source emulator's matrix instructions against plain products, by the documents' lane maps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/emulated_kernel.h"
#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"
#include "support/lane_maps.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

const gpu::Target* target_of(const LaneMap& it) {
  const auto all = gpu::targets();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const gpu::Target* t) { return t->name == it.target; });
  return found == all.end() ? nullptr : *found;
}

// A target whose instructions stand in no row is one that nobody compares with a document. What a
// warpgroup multiplies has tests of its own (warpgroup_product_test.cpp).
TEST(MatrixInstructions, AreOfEveryTarget) {
  const std::vector<LaneMap>& known = lane_maps();
  for (const gpu::Target* target : gpu::targets()) {
    if (!extends_none(*target)) continue;
    EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const LaneMap& it) {
      return target->name == it.target;
    })) << target->name;
  }
}

class MatrixInstruction : public ::testing::TestWithParam<std::tuple<std::size_t, DType, bool>> {};

TEST_P(MatrixInstruction, IsTheProduct) {
  const LaneMap& it = lane_maps()[std::get<0>(GetParam())];
  ASSERT_NE(target_of(it), nullptr) << it.target;
  const DType dtype = std::get<1>(GetParam());
  const MatrixProblem problem(it, dtype, std::get<2>(GetParam()), 8100 + std::get<0>(GetParam()));
  const auto size = [](int x) { return static_cast<std::size_t>(x); };

  // Memory: d [lanes][elements] floats, in and out; then a and b as 16-bit elements
  // [lanes][elements].
  const int operands_at = it.lanes * it.d_elements;
  const DeviceArray x(4 * size(operands_at) + 2 * size(it.lanes * (it.a_elements + it.b_elements)));
  auto* d = x.as<float>();
  auto* a_places = reinterpret_cast<uint16_t*>(d + operands_at);
  uint16_t* b_places = a_places + it.lanes * it.a_elements;
  for (int i = 0; i < it.m; ++i) {
    for (int k = 0; k < it.k; ++k) {
      for (const LanePlace& p : it.a(i, k)) {
        reference::store_float(a_places, dtype, p.lane * it.a_elements + p.element,
                               problem.a[size(i * it.k + k)]);
      }
    }
    for (int j = 0; j < it.n; ++j)
      d[it.d(i, j).lane * it.d_elements + it.d(i, j).element] = problem.c[size(i * it.n + j)];
  }
  for (int k = 0; k < it.k; ++k) {
    for (int j = 0; j < it.n; ++j) {
      for (const LanePlace& p : it.b(k, j)) {
        reference::store_float(b_places, dtype, p.lane * it.b_elements + p.element,
                               problem.b[size(k * it.n + j)]);
      }
    }
  }

  const KernelText text{
      .arch = std::string(target_of(it)->test_chips.front()),
      .body = fmt::format(
          "float d[{0}];\nWords<{1}> a_words;\nWords<{2}> b_words;\nconst int l = lane_id();\n"
          "for (int e = 0; e < {0}; ++e) d[e] = global_load(a.x + l * {0} + e);\n"
          "const auto* words = reinterpret_cast<const unsigned*>(a.x + {3} * {0});\n"
          "for (int w = 0; w < {1}; ++w) a_words.word[w] = global_load(words + l * {1} + w);\n"
          "for (int w = 0; w < {2}; ++w) b_words.word[w] = global_load(words + {3} * {1} + l * {2} "
          "+ w);\n"
          "{4}<{5}>(d, a_words, b_words);\n"
          "for (int e = 0; e < {0}; ++e) global_store(a.x + l * {0} + e, d[e]);",
          it.d_elements, it.a_elements / 2, it.b_elements / 2, it.lanes, it.call,
          dtype == DType::fp16 ? "Half" : "Bfloat16"),
      .headers = fmt::format("#include \"targets/{}/emulated.h\"\n", it.target),
      .workgroup_size = it.lanes};
  const Status status = run_text(text, x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < it.m; ++i) {
    for (int j = 0; j < it.n; ++j) {
      const double expected = problem.expected(it, i, j);
      const LanePlace p = it.d(i, j);
      EXPECT_NEAR(d[p.lane * it.d_elements + p.element], expected, 1e-5 * (1 + std::fabs(expected)))
          << it.name << " " << i << " " << j;
    }
  }
}

// D = A B + C of codes by the instruction `call`, on a chip: 32 bits of each element of D.
class CodeProduct {
 public:
  CodeProduct(const CodeMap& it, const CodeProblem& problem)
      : it_(it),
        memory_(4 * size(it.lanes * it.d_elements) +
                size(it.lanes * (it.a_elements + it.b_elements))) {
    // Memory: d [lanes][elements], in and out; then a and b as bytes [lanes][elements].
    auto* a_places = reinterpret_cast<uint8_t*>(memory_.as<uint32_t>() + it.lanes * it.d_elements);
    uint8_t* b_places = a_places + it.lanes * it.a_elements;
    for (int k = 0; k < it.k; ++k) {
      for (int i = 0; i < it.m; ++i) {
        for (const LanePlace& p : it.a(i, k))
          a_places[p.lane * it.a_elements + p.element] = problem.a[size(i * it.k + k)];
      }
      for (int j = 0; j < it.n; ++j) {
        for (const LanePlace& p : it.b(k, j))
          b_places[p.lane * it.b_elements + p.element] = problem.b[size(k * it.n + j)];
      }
    }
    for (int i = 0; i < it.m; ++i) {
      for (int j = 0; j < it.n; ++j) at(i, j) = problem.c[size(i * it.n + j)];
    }
  }
  Status run(std::string chip, const char* call) {
    const KernelText text{
        .arch = std::move(chip),
        .body = fmt::format(
            "float d[{0}];\nWords<{1}> a_words;\nWords<{2}> b_words;\nconst int l = lane_id();\n"
            "auto* sums = reinterpret_cast<unsigned*>(a.x);\n"
            "for (int e = 0; e < {0}; ++e) d[e] = bits_float(global_load(sums + l * {0} + e));\n"
            "const auto* words = sums + {3} * {0};\n"
            "for (int w = 0; w < {1}; ++w) a_words.word[w] = global_load(words + l * {1} + w);\n"
            "words += {3} * {1};\n"
            "for (int w = 0; w < {2}; ++w) b_words.word[w] = global_load(words + l * {2} + w);\n"
            "{4}(d, a_words, b_words);\n"
            "for (int e = 0; e < {0}; ++e) global_store(sums + l * {0} + e, float_bits(d[e]));",
            it_.d_elements, it_.a_elements / 4, it_.b_elements / 4, it_.lanes, call),
        .headers = fmt::format("#include \"targets/{}/target.h\"\n", it_.target),
        .workgroup_size = it_.lanes};
    return run_text(text, memory_.data());
  }
  uint32_t& at(int i, int j) {
    const LanePlace p = it_.d(i, j);
    return memory_.as<uint32_t>()[p.lane * it_.d_elements + p.element];
  }

 private:
  static std::size_t size(int x) { return static_cast<std::size_t>(x); }
  const CodeMap& it_;
  DeviceArray memory_;
};

class CodeMatrixInstruction : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CodeMatrixInstruction, IsTheProduct) {
  const CodeMap& it = code_maps()[GetParam()];
  ASSERT_NE(target_of(it), nullptr) << it.target;
  const CodeProblem problem(it, 8300 + GetParam());
  CodeProduct product(it, problem);
  const Status status = product.run(std::string(target_of(it)->test_chips.front()), it.call);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < it.m; ++i) {
    for (int j = 0; j < it.n; ++j)
      ASSERT_EQ(product.at(i, j), problem.expected(it, i, j, true, true)) << i << " " << j;
  }
}

// NVIDIA's codes of E4M3 lie where those of int8 do.
TEST(E4m3MatrixInstruction, IsTheProduct) {
  const auto& maps = code_maps();
  const auto it = std::find_if(maps.begin(), maps.end(), [](const CodeMap& map) {
    return std::string_view(map.target) == "sm80";
  });
  ASSERT_NE(it, maps.end());
  CodeProblem problem(*it, 8390);
  for (std::vector<uint8_t>* codes : {&problem.a, &problem.b}) {
    for (uint8_t& code : *codes) code = (code & 0x7FU) == 0x7FU ? 0x7EU : code;  // no NaN
  }
  for (uint32_t& sum : problem.c) sum = std::bit_cast<uint32_t>(1.0F);
  CodeProduct product(*it, problem);
  const Status status = product.run("sm_89", "mma_f32_16x8x32_e4m3");
  ASSERT_TRUE(status.ok()) << status.message();
  const auto number = [](uint8_t code) {
    return double{reference::from_fp8(DType::fp8_e4m3, code)};
  };
  for (int i = 0; i < it->m; ++i) {
    for (int j = 0; j < it->n; ++j) {
      double sum = 1, size = 1;
      for (int k = 0; k < it->k; ++k) {
        const double one = number(problem.a[static_cast<std::size_t>(i * it->k + k)]) *
                           number(problem.b[static_cast<std::size_t>(k * it->n + j)]);
        sum += one;
        size += std::fabs(one);
      }
      EXPECT_NEAR(std::bit_cast<float>(product.at(i, j)), sum, 1e-5 * size) << i << " " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodeMatrixInstruction,
                         ::testing::Range<std::size_t>(0, code_maps().size()),
                         [](const auto& info) { return code_maps()[info.param].name; });

INSTANTIATE_TEST_SUITE_P(All, MatrixInstruction,
                         ::testing::Combine(::testing::Range<std::size_t>(0, lane_maps().size()),
                                            ::testing::Values(DType::fp16, DType::bf16),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(lane_maps()[std::get<0>(info.param)].name) + "_" +
                                  to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_subnormal" : "");
                         });

}  // namespace
}  // namespace fulmen::testing
