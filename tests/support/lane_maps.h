// One lane map a matrix instruction, as data, in the words of the documents: AMD's matrix
// instruction calculator (lane and register of each A[i][k], B[k][j], D[i][j]) and the PTX manual
// (row and column of each register of mma.m16n8k16 and m16n8k32). The source emulator
// (targets/*/emulated.h) and the machine-code emulator (instructions/matrix.cpp) have maps of their
// own, so that neither repeats the other's mistake. Both are compared with these.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fulmen/tensor.h"

namespace fulmen::testing {

struct LanePlace {
  int lane, element;
};

struct LaneMap {
  const char* name;
  const char* target;
  const char* call;  // in the source: of float d[...], Words<> a, b
  // AMD's names; null: no such instruction, or nothing executes it.
  const char* fp16;
  const char* bf16;
  int m, n, k;
  int lanes, a_elements, b_elements, d_elements;
  // All places that hold the element: gfx11 has each operand twice.
  std::function<std::vector<LanePlace>(int i, int k)> a;
  std::function<std::vector<LanePlace>(int k, int j)> b;
  std::function<LanePlace(int i, int j)> d;
  bool flushes = false;  // subnormal operands count as 0

  const char* machine_code(DType dtype) const { return dtype == DType::fp16 ? fp16 : bf16; }
};

const std::vector<LaneMap>& lane_maps();

// The same of int8 codes, which both emulators have in maps of their own, too. `fp16` and `bf16`
// are null.
struct CodeMap : LaneMap {
  const char* machine_name;  // AMD's
  bool chooses_signs;        // WMMA: neg_lo says which of A and B is signed; else both are
};
const std::vector<CodeMap>& code_maps();

// Codes for D = A B + C, in 32 bits that wrap.
struct CodeProblem {
  std::vector<uint8_t> a, b;  // [m, k], [k, n]
  std::vector<uint32_t> c;    // [m, n]

  CodeProblem(const LaneMap& map, uint64_t seed);
  uint32_t expected(const LaneMap& map, int i, int j, bool a_signed, bool b_signed) const;
};

// Numbers for D = A B + C, of A and B such as the dtype holds. subnormal: all of A; those of B are
// so large that D is not small, and C is 0.
struct MatrixProblem {
  std::vector<float> a, b, c;  // [m, k], [k, n], [m, n]

  MatrixProblem(const LaneMap& map, DType dtype, bool subnormal, uint64_t seed);
  double expected(const LaneMap& map, int i, int j) const;

 private:
  bool flushed_;
};

}  // namespace fulmen::testing
