// The emulated matrix instructions against plain products. The maps are written here once more, in the documents' own terms: AMD's
// matrix instruction calculator (lane and register of each A[i][k], B[k][j], D[i][j]) and the PTX manual (row and column of each
// register of mma.m16n8k16).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "emulator/emulated_kernel.h"
#include "runtime/float_formats.h"
#include "support/random.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

struct Place {
  int lane, element;
};

struct Instruction {
  const char* name;
  const char* target;
  const char* call;  // of float d[...], Words<> a, b
  int m, n, k;
  int lanes, a_elements, b_elements, d_elements;
  // All places that hold the element: gfx11 has each operand twice.
  std::function<std::vector<Place>(int i, int k)> a;
  std::function<std::vector<Place>(int k, int j)> b;
  std::function<Place(int i, int j)> d;
};

std::vector<Instruction> instructions() {
  using Places = std::vector<Place>;
  return {
      {"gfx11_wmma_f32_16x16x16", "gfx11", "wmma_f32_16x16x16", 16, 16, 16, 32, 16, 16, 8,
       [](int i, int k) { return Places{{i, k}, {i + 16, k}}; }, [](int k, int j) { return Places{{j, k}, {j + 16, k}}; },
       [](int i, int j) { return Place{j + 16 * (i % 2), i / 2}; }},
      // k = 8 (e / 4) + 4 (l / 16) + e % 4
      {"gfx12_wmma_f32_16x16x16", "gfx12", "wmma_f32_16x16x16", 16, 16, 16, 32, 8, 8, 8,
       [](int i, int k) { return Places{{i + 16 * (k / 4 % 2), 4 * (k / 8) + k % 4}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 4 % 2), 4 * (k / 8) + k % 4}}; },
       [](int i, int j) { return Place{j + 16 * (i / 8), i % 8}; }},
      {"gfx942_mfma_f32_16x16x16", "cdna3", "mfma_f32_16x16x16", 16, 16, 16, 64, 4, 4, 4,
       [](int i, int k) { return Places{{i + 16 * (k / 4), k % 4}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 4), k % 4}}; }, [](int i, int j) { return Place{j + 16 * (i / 4), i % 4}; }},
      {"gfx942_mfma_f32_32x32x8", "cdna3", "mfma_f32_32x32x8", 32, 32, 8, 64, 4, 4, 16,
       [](int i, int k) { return Places{{i + 32 * (k / 4), k % 4}}; },
       [](int k, int j) { return Places{{j + 32 * (k / 4), k % 4}}; },
       [](int i, int j) { return Place{j + 32 * (i / 4 % 2), 4 * (i / 8) + i % 4}; }},
      // groupID = lane / 4, threadID_in_group = lane % 4
      {"sm80_mma_f32_16x8x16", "sm80", "mma_f32_16x8x16", 16, 8, 16, 32, 8, 4, 4,
       [](int i, int k) { return Places{{i % 8 * 4 + k % 8 / 2, k % 2 + 2 * (i / 8) + 4 * (k / 8)}}; },
       [](int k, int j) { return Places{{j * 4 + k % 8 / 2, k % 2 + 2 * (k / 8)}}; },
       [](int i, int j) { return Place{i % 8 * 4 + j / 2, j % 2 + 2 * (i / 8)}; }},
  };
}

const gpu::Target* target_of(const Instruction& it) {
  const auto all = gpu::targets();
  const auto found = std::find_if(all.begin(), all.end(), [&](const gpu::Target* t) { return t->name == it.target; });
  return found == all.end() ? nullptr : *found;
}

// A target whose instructions stand in no row is one that nobody compares with a document. What a
// warpgroup multiplies has tests of its own (warpgroup_product_test.cpp).
TEST(MatrixInstructions, AreOfEveryTarget) {
  const std::vector<Instruction> known = instructions();
  for (const gpu::Target* target : gpu::targets()) {
    if (!extends_none(*target)) continue;
    EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const Instruction& it) { return target->name == it.target; }))
        << target->name;
  }
}

class MatrixInstruction : public ::testing::TestWithParam<std::tuple<std::size_t, DType>> {};

TEST_P(MatrixInstruction, IsTheProduct) {
  const Instruction it = instructions()[std::get<0>(GetParam())];
  ASSERT_NE(target_of(it), nullptr) << it.target;
  const DType dtype = std::get<1>(GetParam());
  Random random(8100 + std::get<0>(GetParam()));
  const auto size = [](int x) { return static_cast<std::size_t>(x); };
  std::vector<float> a(size(it.m * it.k)), b(size(it.k * it.n)), c(size(it.m * it.n));
  for (auto* values : {&a, &b}) {
    for (float& x : *values) x = reference::round_to(dtype, random.normal());
  }
  for (float& x : c) x = random.normal();

  // Memory: d [lanes][elements] floats, in and out; then a and b as 16-bit elements [lanes][elements].
  const int operands_at = it.lanes * it.d_elements;
  const DeviceArray x(4 * size(operands_at) + 2 * size(it.lanes * (it.a_elements + it.b_elements)));
  auto* d = x.as<float>();
  auto* a_places = reinterpret_cast<uint16_t*>(d + operands_at);
  uint16_t* b_places = a_places + it.lanes * it.a_elements;
  for (int i = 0; i < it.m; ++i) {
    for (int k = 0; k < it.k; ++k) {
      for (const Place& p : it.a(i, k)) {
        reference::store_float(a_places, dtype, p.lane * it.a_elements + p.element, a[size(i * it.k + k)]);
      }
    }
    for (int j = 0; j < it.n; ++j) d[it.d(i, j).lane * it.d_elements + it.d(i, j).element] = c[size(i * it.n + j)];
  }
  for (int k = 0; k < it.k; ++k) {
    for (int j = 0; j < it.n; ++j) {
      for (const Place& p : it.b(k, j)) {
        reference::store_float(b_places, dtype, p.lane * it.b_elements + p.element, b[size(k * it.n + j)]);
      }
    }
  }

  const KernelText text{
      .arch = std::string(target_of(it)->test_chips.front()),
      .body = fmt::format("float d[{0}];\nWords<{1}> a_words;\nWords<{2}> b_words;\nconst int l = lane_id();\n"
                          "for (int e = 0; e < {0}; ++e) d[e] = global_load(a.x + l * {0} + e);\n"
                          "const auto* words = reinterpret_cast<const unsigned*>(a.x + {3} * {0});\n"
                          "for (int w = 0; w < {1}; ++w) a_words.word[w] = global_load(words + l * {1} + w);\n"
                          "for (int w = 0; w < {2}; ++w) b_words.word[w] = global_load(words + {3} * {1} + l * {2} + w);\n"
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
      double expected = c[size(i * it.n + j)];
      for (int k = 0; k < it.k; ++k) expected += static_cast<double>(a[size(i * it.k + k)]) * b[size(k * it.n + j)];
      const Place p = it.d(i, j);
      EXPECT_NEAR(d[p.lane * it.d_elements + p.element], expected, 1e-5 * (1 + std::fabs(expected)))
          << it.name << " " << i << " " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatrixInstruction,
                         ::testing::Combine(::testing::Range<std::size_t>(0, instructions().size()),
                                            ::testing::Values(DType::fp16, DType::bf16)),
                         [](const auto& info) {
                           return std::string(instructions()[std::get<0>(info.param)].name) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace fulmen::testing
