// The source emulator's matrix instructions against plain products, by the documents' lane maps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "emulator/emulated_kernel.h"
#include "runtime/float_formats.h"
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

class CodeMatrixInstruction : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CodeMatrixInstruction, IsTheProduct) {
  const CodeMap& it = code_maps()[GetParam()];
  ASSERT_NE(target_of(it), nullptr) << it.target;
  const CodeProblem problem(it, 8300 + GetParam());
  const auto size = [](int x) { return static_cast<std::size_t>(x); };
  // Memory: d [lanes][elements], in and out; then a and b as bytes [lanes][elements].
  const int operands_at = it.lanes * it.d_elements;
  const DeviceArray x(4 * size(operands_at) + size(it.lanes * (it.a_elements + it.b_elements)));
  auto* d = x.as<uint32_t>();
  auto* a_places = reinterpret_cast<uint8_t*>(d + operands_at);
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
    for (int j = 0; j < it.n; ++j)
      d[it.d(i, j).lane * it.d_elements + it.d(i, j).element] = problem.c[size(i * it.n + j)];
  }
  const KernelText text{
      .arch = std::string(target_of(it)->test_chips.front()),
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
          it.d_elements, it.a_elements / 4, it.b_elements / 4, it.lanes, it.call),
      .headers = fmt::format("#include \"targets/{}/target.h\"\n", it.target),
      .workgroup_size = it.lanes};
  const Status status = run_text(text, x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < it.m; ++i) {
    for (int j = 0; j < it.n; ++j) {
      const LanePlace p = it.d(i, j);
      ASSERT_EQ(d[p.lane * it.d_elements + p.element], problem.expected(it, i, j, true, true))
          << it.name << " " << i << " " << j;
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
