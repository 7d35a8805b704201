// The emulated wgmma, and stmatrix, against plain products. Where an element lies is written here
// once more, in the terms of the PTX manual: accumulators and A in registers as mma.m16n8k16's, a
// wave 16 rows; operands in LDS in the canonical layouts with swizzled rows of 128 bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulator/emulated_kernel.h"
#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"
#include "support/random.h"

namespace fulmen::testing {
namespace {

constexpr int kRows = 64, kMmaK = 16;

struct Product {
  DType dtype;
  int columns;
  bool a_in_lds, turn_a, turn_b;
};

std::string name_of(const ::testing::TestParamInfo<Product>& info) {
  const Product& p = info.param;
  return fmt::format("{}_{}{}{}{}", to_string(p.dtype), p.columns,
                     p.a_in_lds ? "_lds" : "_registers", p.turn_a ? "_turned" : "",
                     p.turn_b ? "_turned_b" : "");
}

// Byte of element (line, column) of a tile of `lines` lines: panels of 64 columns; in each a line
// has 8 pieces of 8 elements, piece p lies where p ^ line % 8 says.
int place(int line, int column, int lines) {
  const int panel = column / 64, piece = column % 64 / 8;
  return panel * lines * 128 + line * 128 + (piece ^ line % 8) * 16 + column % 8 * 2;
}

class WarpgroupProduct : public ::testing::TestWithParam<Product> {};

TEST_P(WarpgroupProduct, IsTheProduct) {
  const Product p = GetParam();
  Random random(8200);
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  // The operands' tiles are larger than the product, which begins at the second 16 of the depth,
  // and of b's columns.
  constexpr int kMmaSteps = 64, kMmaStepBegin = 16;
  const int b_columns = p.columns < 64 ? 64 : p.columns, b_begin = b_columns - p.columns;
  std::vector<float> a(size(kRows * kMmaSteps)), b(size(kMmaSteps * b_columns)),
      c(size(kRows * p.columns));
  for (auto* values : {&a, &b}) {
    for (float& x : *values) x = reference::round_to(p.dtype, random.normal());
  }
  for (float& x : c) x = random.normal();

  // Memory: sums [128 lanes][columns / 2] floats; the bytes of both tiles; a's words of lanes.
  const int sums = p.columns / 2, a_bytes = kRows * kMmaSteps * 2,
            b_bytes = kMmaSteps * b_columns * 2, words_at = a_bytes + b_bytes;
  const DeviceArray x(size(128 * sums * 4 + words_at + 128 * 16));
  auto* d = x.as<float>();
  auto* bytes = reinterpret_cast<uint8_t*>(d + 128 * sums);
  const auto store = [&](int at, float value) {
    reference::store_float(reinterpret_cast<uint16_t*>(bytes + at), p.dtype, 0, value);
  };
  for (int i = 0; i < kRows; ++i) {
    for (int k = 0; k < kMmaSteps; ++k) {
      store(p.turn_a ? place(k, i, kMmaSteps) : place(i, k, kRows), a[size(i * kMmaSteps + k)]);
      if (k < kMmaStepBegin || k >= kMmaStepBegin + kMmaK) continue;
      const int lane = i / 16 * 32 + i % 8 * 4 + k % 8 / 2,
                element = k % 2 + 2 * (i % 16 / 8) + 4 * (k % kMmaK / 8);
      store(words_at + lane * 16 + element * 2, a[size(i * kMmaSteps + k)]);
    }
  }
  for (int k = 0; k < kMmaSteps; ++k) {
    for (int j = 0; j < b_columns; ++j) {
      store(a_bytes + (p.turn_b ? place(k, j, kMmaSteps) : place(j, k, b_columns)),
            b[size(k * b_columns + j)]);
    }
  }
  const auto sum_of = [&](int i, int j) {
    return (i / 16 * 32 + i % 8 * 4 + j % 8 / 2) * sums + j / 8 * 4 + i % 16 / 8 * 2 + j % 2;
  };
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < p.columns; ++j) d[sum_of(i, j)] = c[size(i * p.columns + j)];
  }

  const std::string element = p.dtype == DType::fp16 ? "Half" : "Bfloat16";
  const auto further = [](bool turned, int depth, int begin, int lines) {
    // Transposed: lines are the depth; columns are whole panels, or 16 at a time within one.
    return turned ? fmt::format(".rows_further({}).columns_further({}, {})", depth, begin, lines)
                  : fmt::format(".columns_further({}, {}).rows_further({})", depth, lines, begin);
  };
  const std::string b_matrix =
      fmt::format("LdsMatrix::of({}, {}){}", a_bytes, p.turn_b ? kMmaSteps : b_columns,
                  further(p.turn_b, kMmaStepBegin, b_begin, p.turn_b ? kMmaSteps : b_columns));
  const std::string a_matrix =
      fmt::format("LdsMatrix::of(0, 64){}", further(p.turn_a, kMmaStepBegin, 0, 64));
  const std::string call =
      p.a_in_lds ? fmt::format("wgmma<{}, {}, {}>(d, {}, {}, true);", element, p.turn_a, p.turn_b,
                               a_matrix, b_matrix)
                 : fmt::format("wgmma<{}, {}>(d, rows, {}, true);", element, p.turn_b, b_matrix);
  const KernelText text{
      .arch = "sm_90a",
      .body = fmt::format(
          "float d[{0}][8];\nconst int l = thread_id();\n"
          "for (int e = 0; e < {1}; ++e) d[e / 8][e % 8] = global_load(a.x + l * {1} + e);\n"
          "const auto* pieces = reinterpret_cast<const Words<4>*>(a.x + 128 * {1});\n"
          "for (int n = l; n < {2}; n += 128) lds_store(16 * n, global_load(pieces + n));\n"
          "const Words<4> rows = global_load(pieces + {2} + l);\n"
          "lds_fence_for_matrices();\nbarrier();\nwgmma_fence();\n{3}\nwgmma_commit();\nwgmma_wait<"
          "0>();\n"
          "for (int e = 0; e < {1}; ++e) global_store(a.x + l * {1} + e, d[e / 8][e % 8]);",
          p.columns / 16, sums, words_at / 16, call),
      .headers = "#include \"targets/sm90/target.h\"\n",
      .workgroup_size = 128,
      .lds_bytes = words_at};
  const Status status = run_text(text, x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < p.columns; ++j) {
      double expected = c[size(i * p.columns + j)];
      for (int k = kMmaStepBegin; k < kMmaStepBegin + kMmaK; ++k) {
        expected +=
            static_cast<double>(a[size(i * kMmaSteps + k)]) * b[size(k * b_columns + b_begin + j)];
      }
      ASSERT_NEAR(d[sum_of(i, j)], expected, 1e-5 * (1 + std::fabs(expected))) << i << " " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WarpgroupProduct,
                         ::testing::Values(Product{DType::bf16, 32, true, false, false},
                                           Product{DType::fp16, 64, true, false, false},
                                           Product{DType::bf16, 32, true, true, true},
                                           Product{DType::bf16, 64, true, true, true},
                                           Product{DType::fp16, 128, true, true, true},
                                           Product{DType::bf16, 128, true, false, true},
                                           Product{DType::bf16, 64, false, false, true},
                                           Product{DType::fp16, 128, false, false, true}),
                         name_of);

// E4M3, from every code that is a number: the depth is 32, words of a are four neighbours of a row
// (PTX's A of wgmma.m64nNk32), and operands are never transposed. The product begins at the second
// 32 of the depth.
TEST(WarpgroupProductOfE4m3, IsTheProduct) {
  constexpr int kDepth = 32, kColumns = 64, kSteps = 64, kSums = kColumns / 2;
  constexpr int kABytes = kRows * 128, kBBytes = kColumns * 128, kWordsAt = kABytes + kBBytes;
  const auto number = [](uint8_t code) {
    return double{reference::from_fp8(DType::fp8_e4m3, code)};
  };
  const auto byte_at = [](int line, int byte) {
    return line * 128 + (byte / 16 ^ line % 8) * 16 + byte % 16;
  };
  for (const bool in_lds : {true, false}) {
    Random random(in_lds ? 8210 : 8211);
    const auto code = [&] {
      const auto x = static_cast<uint8_t>(random.between(0, 255));
      return x % 128 == 127 ? uint8_t{0} : x;
    };
    const DeviceArray x(128 * kSums * 4 + kWordsAt + 128 * 16);
    auto* d = x.as<float>();
    auto* bytes = reinterpret_cast<uint8_t*>(d + 128 * kSums);
    uint8_t a[kRows][kSteps], b[kColumns][kSteps];
    for (int k = 0; k < kSteps; ++k) {
      for (int i = 0; i < kRows; ++i) bytes[byte_at(i, k)] = a[i][k] = code();
      for (int j = 0; j < kColumns; ++j) bytes[kABytes + byte_at(j, k)] = b[j][k] = code();
    }
    for (int i = 0; i < kRows; ++i) {
      for (int k = 0; k < kDepth; ++k) {
        const int lane = i / 16 * 32 + i % 8 * 4 + k % 16 / 4, word = i % 16 / 8 + 2 * (k / 16);
        bytes[kWordsAt + lane * 16 + 4 * word + k % 4] = a[i][kDepth + k];
      }
    }
    std::fill(d, d + 128 * kSums, 1.0F);
    const std::string b_matrix = fmt::format("LdsMatrix::of({}, 64).further(32)", kABytes);
    const std::string call =
        in_lds ? fmt::format(
                     "wgmma<E4m3, false, false>(d, LdsMatrix::of(0, 64).further(32), {}, true);",
                     b_matrix)
               : fmt::format("wgmma<E4m3, false>(d, rows, {}, true);", b_matrix);
    const KernelText text{
        .arch = "sm_90a",
        .body = fmt::format(
            "float d[{0}][8];\nconst int l = thread_id();\n"
            "for (int e = 0; e < {1}; ++e) d[e / 8][e % 8] = global_load(a.x + l * {1} + e);\n"
            "const auto* pieces = reinterpret_cast<const Words<4>*>(a.x + 128 * {1});\n"
            "for (int n = l; n < {2}; n += 128) lds_store(16 * n, global_load(pieces + n));\n"
            "const Words<4> rows = global_load(pieces + {2} + l);\n"
            "lds_fence_for_matrices();\nbarrier();\nwgmma_fence();\n{3}\nwgmma_commit();\n"
            "wgmma_wait<0>();\n"
            "for (int e = 0; e < {1}; ++e) global_store(a.x + l * {1} + e, d[e / 8][e % 8]);",
            kColumns / 16, kSums, kWordsAt / 16, call),
        .headers = "#include \"targets/sm90/target.h\"\n",
        .workgroup_size = 128,
        .lds_bytes = kWordsAt};
    const Status status = run_text(text, x.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        double expected = 1, size = 1;
        for (int k = kDepth; k < 2 * kDepth; ++k) {
          expected += number(a[i][k]) * number(b[j][k]);
          size += std::fabs(number(a[i][k]) * number(b[j][k]));
        }
        const int lane = i / 16 * 32 + i % 8 * 4 + j % 8 / 2,
                  element = j / 8 * 4 + i % 16 / 8 * 2 + j % 2;
        ASSERT_NEAR(d[lane * kSums + element], expected, 1e-6 * size) << i << " " << j;
      }
    }
  }
}

// Matrix m's row r at the address of lane 8 m + r; of it word m of lane 4 r + c holds elements 2 c
// and the next.
TEST(Stmatrix, StoresRowsAtTheLanesAddresses) {
  const DeviceArray x(32 * 16);
  for (int w = 0; w < 128; ++w) x.as<unsigned>()[w] = static_cast<unsigned>(w * 0x01000193);
  const std::vector<unsigned> before(x.as<unsigned>(), x.as<unsigned>() + 128);
  const KernelText text{.arch = "sm_90a",
                        .body =
                            "auto* words = reinterpret_cast<Words<4>*>(a.x) + lane_id();\n"
                            "const int at = lane_id() * 16;\n"
                            "stmatrix_x4(at, global_load(words));\nbarrier();\nglobal_store(words, "
                            "lds_load<Words<4>>(at));",
                        .headers = "#include \"targets/sm90/target.h\"\n",
                        .workgroup_size = 32,
                        .lds_bytes = 512};
  const Status status = run_text(text, x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  for (int m = 0; m < 4; ++m) {
    for (int r = 0; r < 8; ++r) {
      for (int c = 0; c < 4; ++c) {
        EXPECT_EQ(x.as<unsigned>()[4 * (8 * m + r) + c],
                  before[static_cast<std::size_t>(4 * (4 * r + c) + m)])
            << m << r << c;
      }
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
