// The machine-code emulator's matrix instructions against plain products, by the documents' lane
// maps.
#include "support/lane_maps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "isa/machine.h"
#include "runtime/float_formats.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

std::vector<LaneMap> amd_maps() {
  std::vector<LaneMap> maps;
  for (const LaneMap& map : lane_maps()) {
    if (map.fp16 != nullptr || map.bf16 != nullptr) maps.push_back(map);
  }
  // No kernel of ours has it.
  maps.push_back(
      {.name = "gfx950_mfma_f32_32x32x16",
       .target = "cdna4",
       .call = nullptr,
       .fp16 = "v_mfma_f32_32x32x16_f16",
       .bf16 = "v_mfma_f32_32x32x16_bf16",
       .m = 32,
       .n = 32,
       .k = 16,
       .lanes = 64,
       .a_elements = 8,
       .b_elements = 8,
       .d_elements = 16,
       .a = [](int i, int k) { return std::vector{LanePlace{i + 32 * (k / 8), k % 8}}; },
       .b = [](int k, int j) { return std::vector{LanePlace{j + 32 * (k / 8), k % 8}}; },
       .d = [](int i, int j) { return LanePlace{j + 32 * (i / 4 % 2), 4 * (i / 8) + i % 4}; }});
  return maps;
}

std::vector<CodeMap> amd_code_maps() {
  std::vector<CodeMap> maps;
  for (const CodeMap& map : code_maps()) {
    if (map.machine_name != nullptr) maps.push_back(map);
  }
  return maps;
}

std::string chip_of(const LaneMap& map) {
  for (const gpu::Target* target : gpu::targets()) {
    if (target->name == map.target) return std::string(target->test_chips.front());
  }
  return {};
}

// "v[4:7]".
std::string vector_registers(int first, int count) {
  return "v[" + std::to_string(first) + ":" + std::to_string(first + count - 1) + "]";
}

// Two elements of 16 bits a register.
void put_half(Machine& m, DType dtype, int first, const LanePlace& place, float x) {
  uint16_t bits = 0;
  reference::store_float(&bits, dtype, 0, x);
  uint32_t& word = m.vector(first + place.element / 2, place.lane);
  const int shift = 16 * (place.element % 2);
  word = (word & ~(0xFFFFU << shift)) | static_cast<uint32_t>(bits) << shift;
}

TEST(MachineCodeLaneMaps, AreOfEveryAmdTarget) {
  const std::vector<LaneMap> maps = amd_maps();
  for (const gpu::Target* target : gpu::targets()) {
    if (!is_amd(*target) || !extends_none(*target)) continue;
    EXPECT_TRUE(std::any_of(maps.begin(), maps.end(), [&](const LaneMap& map) {
      return target->name == map.target;
    })) << target->name;
  }
}

class MachineCodeLaneMap : public ::testing::TestWithParam<std::tuple<std::size_t, DType, bool>> {};

TEST_P(MachineCodeLaneMap, IsTheProduct) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const LaneMap map = amd_maps()[std::get<0>(GetParam())];
  const DType dtype = std::get<1>(GetParam());
  if (map.machine_code(dtype) == nullptr) GTEST_SKIP() << "of the other dtype";
  const int a_at = map.d_elements, b_at = a_at + map.a_elements / 2;
  // gfx908's sums are accumulators alone.
  const bool apart = chip_of(map) == "gfx908";
  const int d_at = apart ? 256 : 0;
  const std::string d = (apart ? "a" : "v") + vector_registers(0, map.d_elements).substr(1);
  const auto assembled = assemble({std::string(map.machine_code(dtype)) + " " + d + ", " +
                                   vector_registers(a_at, map.a_elements / 2) + ", " +
                                   vector_registers(b_at, map.b_elements / 2) + ", " + d},
                                  chip_of(map));
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  ASSERT_EQ(m.size(), map.lanes);
  m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFFU;
  m.wave().scalars[gpu::kExecLow + 1] = m.size() == 64 ? 0xFFFFFFFFU : 0;

  const MatrixProblem problem(map, dtype, std::get<2>(GetParam()), 8200 + std::get<0>(GetParam()));
  const auto size = [](int x) { return static_cast<std::size_t>(x); };
  for (int k = 0; k < map.k; ++k) {
    for (int i = 0; i < map.m; ++i) {
      for (const LanePlace& place : map.a(i, k))
        put_half(m, dtype, a_at, place, problem.a[size(i * map.k + k)]);
    }
    for (int j = 0; j < map.n; ++j) {
      for (const LanePlace& place : map.b(k, j))
        put_half(m, dtype, b_at, place, problem.b[size(k * map.n + j)]);
    }
  }
  for (int i = 0; i < map.m; ++i) {
    for (int j = 0; j < map.n; ++j) {
      const LanePlace place = map.d(i, j);
      m.vector(d_at + place.element, place.lane) =
          std::bit_cast<uint32_t>(problem.c[size(i * map.n + j)]);
    }
  }
  ASSERT_EQ(m.run(assembled->code[0]), "");
  for (int i = 0; i < map.m; ++i) {
    for (int j = 0; j < map.n; ++j) {
      const LanePlace place = map.d(i, j);
      const double expected = problem.expected(map, i, j);
      EXPECT_NEAR(std::bit_cast<float>(m.vector(d_at + place.element, place.lane)), expected,
                  1e-5 * (1 + std::fabs(expected)))
          << map.name << " " << i << " " << j;
    }
  }
}

// Operands of fp32 have a number a lane: row l % size, k = l / size.
TEST(MachineCodeLaneMaps, OfFp32) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const auto assembled = assemble({"v_mfma_f32_16x16x4_f32 v[0:3], v20, v21, v[0:3]",
                                   "v_mfma_f32_32x32x2_f32 v[0:15], v20, v21, v[0:15]"},
                                  "gfx942");
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  m.wave().scalars[gpu::kExecLow] = m.wave().scalars[gpu::kExecLow + 1] = 0xFFFFFFFFU;
  for (const int size : {16, 32}) {
    const auto a = [&](int i, int k) {
      return static_cast<float>(i + 1) / static_cast<float>(k + 3);
    };
    const auto b = [&](int k, int j) {
      return static_cast<float>(j - 7) / static_cast<float>(k + 5);
    };
    for (int l = 0; l < 64; ++l) {
      for (int r = 0; r < size * size / 64; ++r) m.vector(r, l) = std::bit_cast<uint32_t>(0.5F);
      m.vector(20, l) = std::bit_cast<uint32_t>(a(l % size, l / size));
      m.vector(21, l) = std::bit_cast<uint32_t>(b(l / size, l % size));
    }
    ASSERT_EQ(m.run(assembled->code[size == 16 ? 0 : 1]), "");
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        double expected = 0.5;
        for (int k = 0; k < 64 / size; ++k) expected += static_cast<double>(a(i, k)) * b(k, j);
        const LanePlace place = size == 16 ? LanePlace{j + 16 * (i / 4), i % 4}
                                           : LanePlace{j + 32 * (i / 4 % 2), 4 * (i / 8) + i % 4};
        EXPECT_NEAR(std::bit_cast<float>(m.vector(place.element, place.lane)), expected, 1e-4)
            << size << ": " << i << " " << j;
      }
    }
  }
}

// WMMA takes each of A and B as signed or not.
class MachineCodeCodeMap : public ::testing::TestWithParam<std::size_t> {};

TEST_P(MachineCodeCodeMap, IsTheProduct) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const CodeMap map = amd_code_maps()[GetParam()];
  const int words = map.a_elements / 4, a_at = map.d_elements, b_at = a_at + 2;
  const int b_from = words > 2 ? a_at + words : b_at;
  const bool apart = chip_of(map) == "gfx908";
  const int d_at = apart ? 256 : 0;
  const std::string d = (apart ? "a" : "v") + vector_registers(0, map.d_elements).substr(1);
  const auto operand = [&](int at) {
    return words == 1 ? "v" + std::to_string(at) : vector_registers(at, words);
  };
  const std::string product = std::string(map.machine_name) + " " + d + ", " + operand(a_at) +
                              ", " + operand(b_from) + ", ";
  std::vector<std::string> lines{product + d};
  if (map.chooses_signs) {
    for (const char* signs : {"1,0", "0,1", "1,1"})
      lines.push_back(product + d + " neg_lo:[" + signs + ",0]");
  }
  const bool takes_constants = !apart;
  if (takes_constants)
    lines.push_back(product + "0" + (map.chooses_signs ? " neg_lo:[1,1,0]" : ""));
  const auto assembled = assemble(lines, chip_of(map));
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  ASSERT_EQ(m.size(), map.lanes);
  m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFFU;
  m.wave().scalars[gpu::kExecLow + 1] = m.size() == 64 ? 0xFFFFFFFFU : 0;
  const auto size = [](int x) { return static_cast<std::size_t>(x); };
  const auto put = [&](int first, const LanePlace& place, uint8_t code) {
    uint32_t& word = m.vector(first + place.element / 4, place.lane);
    const int shift = 8 * (place.element % 4);
    word = (word & ~(0xFFU << shift)) | uint32_t{code} << shift;
  };
  for (std::size_t n = 0; n < lines.size(); ++n) {
    CodeProblem problem(map, 8400 + 16 * GetParam() + n);
    const bool adds_to_zero = takes_constants && n + 1 == lines.size(),
               both = !map.chooses_signs || adds_to_zero;
    if (adds_to_zero) std::fill(problem.c.begin(), problem.c.end(), 0U);
    for (int k = 0; k < map.k; ++k) {
      for (int i = 0; i < map.m; ++i) {
        for (const LanePlace& place : map.a(i, k)) put(a_at, place, problem.a[size(i * map.k + k)]);
      }
      for (int j = 0; j < map.n; ++j) {
        for (const LanePlace& place : map.b(k, j))
          put(b_from, place, problem.b[size(k * map.n + j)]);
      }
    }
    for (int i = 0; i < map.m; ++i) {
      for (int j = 0; j < map.n; ++j) {
        const LanePlace place = map.d(i, j);
        m.vector(d_at + place.element, place.lane) =
            adds_to_zero ? 12345U : problem.c[size(i * map.n + j)];
      }
    }
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int i = 0; i < map.m; ++i) {
      for (int j = 0; j < map.n; ++j) {
        const LanePlace place = map.d(i, j);
        ASSERT_EQ(m.vector(d_at + place.element, place.lane),
                  problem.expected(map, i, j, both || n == 1 || n == 3, both || n >= 2))
            << lines[n] << ": " << i << " " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MachineCodeCodeMap,
                         ::testing::Range<std::size_t>(0, amd_code_maps().size()),
                         [](const auto& info) { return amd_code_maps()[info.param].name; });

INSTANTIATE_TEST_SUITE_P(All, MachineCodeLaneMap,
                         ::testing::Combine(::testing::Range<std::size_t>(0, amd_maps().size()),
                                            ::testing::Values(DType::fp16, DType::bf16),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(amd_maps()[std::get<0>(info.param)].name) + "_" +
                                  to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_subnormal" : "");
                         });

}  // namespace
}  // namespace fulmen::testing
