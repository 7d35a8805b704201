#include "support/lane_maps.h"

#include <cmath>

#include "runtime/float_formats.h"
#include "support/random.h"

namespace fulmen::testing {

const std::vector<LaneMap>& lane_maps() {
  using Places = std::vector<LanePlace>;
  static const std::vector<LaneMap> maps{
      {"gfx11_wmma_f32_16x16x16", "gfx11", "wmma_f32_16x16x16", "v_wmma_f32_16x16x16_f16",
       "v_wmma_f32_16x16x16_bf16", 16, 16, 16, 32, 16, 16, 8,
       [](int i, int k) { return Places{{i, k}, {i + 16, k}}; },
       [](int k, int j) { return Places{{j, k}, {j + 16, k}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i % 2), i / 2}; }},
      // k = 8 (e / 4) + 4 (l / 16) + e % 4
      {"gfx12_wmma_f32_16x16x16", "gfx12", "wmma_f32_16x16x16", "v_wmma_f32_16x16x16_f16",
       "v_wmma_f32_16x16x16_bf16", 16, 16, 16, 32, 8, 8, 8,
       [](int i, int k) { return Places{{i + 16 * (k / 4 % 2), 4 * (k / 8) + k % 4}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 4 % 2), 4 * (k / 8) + k % 4}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i / 8), i % 8}; }},
      {"gfx942_mfma_f32_16x16x16", "cdna3", "mfma_f32_16x16x16", "v_mfma_f32_16x16x16_f16",
       "v_mfma_f32_16x16x16_bf16", 16, 16, 16, 64, 4, 4, 4,
       [](int i, int k) { return Places{{i + 16 * (k / 4), k % 4}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 4), k % 4}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i / 4), i % 4}; }},
      {"gfx942_mfma_f32_32x32x8", "cdna3", "mfma_f32_32x32x8", "v_mfma_f32_32x32x8_f16",
       "v_mfma_f32_32x32x8_bf16", 32, 32, 8, 64, 4, 4, 16,
       [](int i, int k) { return Places{{i + 32 * (k / 4), k % 4}}; },
       [](int k, int j) { return Places{{j + 32 * (k / 4), k % 4}}; },
       [](int i, int j) { return LanePlace{j + 32 * (i / 4 % 2), 4 * (i / 8) + i % 4}; }},
      {"gfx90a_mfma_f32_16x16x16", "cdna2", "mfma_f32_16x16x16", "v_mfma_f32_16x16x16f16",
       "v_mfma_f32_16x16x16bf16_1k", 16, 16, 16, 64, 4, 4, 4,
       [](int i, int k) { return Places{{i + 16 * (k / 4), k % 4}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 4), k % 4}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i / 4), i % 4}; }, true},
      {"gfx908_mfma_f32_16x16x16", "cdna1", "mfma_f32_16x16x16", "v_mfma_f32_16x16x16f16", nullptr,
       16, 16, 16, 64, 4, 4, 4, [](int i, int k) { return Places{{i + 16 * (k / 4), k % 4}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 4), k % 4}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i / 4), i % 4}; }, true},
      {"gfx908_mfma_f32_16x16x8", "cdna1", "mfma_f32_16x16x8", nullptr, "v_mfma_f32_16x16x8bf16",
       16, 16, 8, 64, 2, 2, 4, [](int i, int k) { return Places{{i + 16 * (k / 2), k % 2}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 2), k % 2}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i / 4), i % 4}; }, true},
      // Eight consecutive k a lane.
      {"gfx950_mfma_f32_16x16x32", "cdna4", "mfma_f32_16x16x32", "v_mfma_f32_16x16x32_f16",
       "v_mfma_f32_16x16x32_bf16", 16, 16, 32, 64, 8, 8, 4,
       [](int i, int k) { return Places{{i + 16 * (k / 8), k % 8}}; },
       [](int k, int j) { return Places{{j + 16 * (k / 8), k % 8}}; },
       [](int i, int j) { return LanePlace{j + 16 * (i / 4), i % 4}; }},
      // groupID = lane / 4, threadID_in_group = lane % 4
      {"sm80_mma_f32_16x8x16", "sm80", "mma_f32_16x8x16", nullptr, nullptr, 16, 8, 16, 32, 8, 4, 4,
       [](int i, int k) {
         return Places{{i % 8 * 4 + k % 8 / 2, k % 2 + 2 * (i / 8) + 4 * (k / 8)}};
       },
       [](int k, int j) { return Places{{j * 4 + k % 8 / 2, k % 2 + 2 * (k / 8)}}; },
       [](int i, int j) { return LanePlace{i % 8 * 4 + j / 2, j % 2 + 2 * (i / 8)}; }},
  };
  return maps;
}

const std::vector<CodeMap>& code_maps() {
  using Places = std::vector<LanePlace>;
  const auto of_16 = [](int i, int j) { return LanePlace{j + 16 * (i / 4), i % 4}; };
  static const std::vector<CodeMap> maps{
      {{"gfx11_wmma_i32_16x16x16", "gfx11", "wmma_i32_16x16x16", nullptr, nullptr, 16, 16, 16, 32,
        16, 16, 8, [](int i, int k) { return Places{{i, k}, {i + 16, k}}; },
        [](int k, int j) { return Places{{j, k}, {j + 16, k}}; },
        [](int i, int j) { return LanePlace{j + 16 * (i % 2), i / 2}; }},
       "v_wmma_i32_16x16x16_iu8",
       true},
      // k = 8 (l / 16) + e: neighbours, which elements of 16 bits are by fours.
      {{"gfx12_wmma_i32_16x16x16", "gfx12", "wmma_i32_16x16x16", nullptr, nullptr, 16, 16, 16, 32,
        8, 8, 8, [](int i, int k) { return Places{{i + 16 * (k / 8), k % 8}}; },
        [](int k, int j) { return Places{{j + 16 * (k / 8), k % 8}}; },
        [](int i, int j) { return LanePlace{j + 16 * (i / 8), i % 8}; }},
       "v_wmma_i32_16x16x16_iu8",
       true},
      {{"gfx942_mfma_i32_16x16x32", "cdna3", "mfma_i32_16x16x32", nullptr, nullptr, 16, 16, 32, 64,
        8, 8, 4, [](int i, int k) { return Places{{i + 16 * (k / 8), k % 8}}; },
        [](int k, int j) { return Places{{j + 16 * (k / 8), k % 8}}; }, of_16},
       "v_mfma_i32_16x16x32_i8",
       false},
      {{"gfx90a_mfma_i32_16x16x16", "cdna2", "mfma_i32_16x16x16", nullptr, nullptr, 16, 16, 16, 64,
        4, 4, 4, [](int i, int k) { return Places{{i + 16 * (k / 4), k % 4}}; },
        [](int k, int j) { return Places{{j + 16 * (k / 4), k % 4}}; }, of_16},
       "v_mfma_i32_16x16x16i8",
       false},
      {{"gfx908_mfma_i32_16x16x16", "cdna1", "mfma_i32_16x16x16", nullptr, nullptr, 16, 16, 16, 64,
        4, 4, 4, [](int i, int k) { return Places{{i + 16 * (k / 4), k % 4}}; },
        [](int k, int j) { return Places{{j + 16 * (k / 4), k % 4}}; }, of_16},
       "v_mfma_i32_16x16x16i8",
       false},
      {{"sm80_mma_s32_16x8x32", "sm80", "mma_s32_16x8x32", nullptr, nullptr, 16, 8, 32, 32, 16, 8,
        4,
        [](int i, int k) {
          return Places{{i % 8 * 4 + k % 16 / 4, k % 4 + 4 * (i / 8) + 8 * (k / 16)}};
        },
        [](int k, int j) { return Places{{j * 4 + k % 16 / 4, k % 4 + 4 * (k / 16)}}; },
        [](int i, int j) { return LanePlace{i % 8 * 4 + j / 2, j % 2 + 2 * (i / 8)}; }},
       nullptr,
       false},
  };
  return maps;
}

CodeProblem::CodeProblem(const LaneMap& map, uint64_t seed)
    : a(static_cast<std::size_t>(map.m * map.k)),
      b(static_cast<std::size_t>(map.k * map.n)),
      c(static_cast<std::size_t>(map.m * map.n)) {
  Random random(seed);
  for (std::vector<uint8_t>* codes : {&a, &b}) {
    for (uint8_t& code : *codes) code = static_cast<uint8_t>(random.between(0, 255));
  }
  for (uint32_t& sum : c) sum = static_cast<uint32_t>(random.between(0, 0xFFFFFFFF));
}

uint32_t CodeProblem::expected(const LaneMap& map, int i, int j, bool a_signed,
                               bool b_signed) const {
  const auto number = [](uint8_t code, bool is_signed) {
    return is_signed ? int{static_cast<int8_t>(code)} : int{code};
  };
  uint32_t sum = c[static_cast<std::size_t>(i * map.n + j)];
  for (int k = 0; k < map.k; ++k) {
    sum += static_cast<uint32_t>(number(a[static_cast<std::size_t>(i * map.k + k)], a_signed) *
                                 number(b[static_cast<std::size_t>(k * map.n + j)], b_signed));
  }
  return sum;
}

MatrixProblem::MatrixProblem(const LaneMap& map, DType dtype, bool subnormal, uint64_t seed)
    : a(static_cast<std::size_t>(map.m * map.k)),
      b(static_cast<std::size_t>(map.k * map.n)),
      c(static_cast<std::size_t>(map.m * map.n)),
      flushed_(subnormal && map.flushes) {
  Random random(seed);
  const float smallest_normal = dtype == DType::fp16 ? 0x1p-14F : 0x1p-126F;
  const auto rounded = [&](float x) { return reference::round_to(dtype, x); };
  // Of 20,000 normal numbers one is subnormal as fp16.
  const auto not_subnormal = [&] {
    const float x = random.normal();
    return std::fabs(x) < smallest_normal ? smallest_normal : x;
  };
  for (float& x : a)
    x = rounded(subnormal ? smallest_normal / static_cast<float>(random.between(2, 9))
                          : not_subnormal());
  const float large = dtype == DType::fp16 ? 0x1p8F : 0x1p120F;
  for (float& x : b) x = rounded(not_subnormal() * (subnormal ? large : 1.0F));
  for (float& x : c) x = subnormal ? 0.0F : random.normal();
}

double MatrixProblem::expected(const LaneMap& map, int i, int j) const {
  double sum = c[static_cast<std::size_t>(i * map.n + j)];
  for (int n = 0; n < map.k && !flushed_; ++n) {
    sum += static_cast<double>(a[static_cast<std::size_t>(i * map.k + n)]) *
           b[static_cast<std::size_t>(n * map.n + j)];
  }
  return sum;
}

}  // namespace fulmen::testing
