// Packed results, and which of their rows belong to no sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen {

// A packed result as [row, head, dim], strides in elements.
struct PackedRows {
  const char* name;
  void* data;
  DType dtype;
  int64_t rows, heads, dims;
  int64_t row_stride, head_stride;
  bool of_keys;  // rows are those of k, else of q
};

// Those of the problem's pass that it has, and that have elements: out and lse; dq, dk and dv.
std::vector<PackedRows> packed_results(const Problem& problem, const AttentionTensors& tensors);

// Sets to 0 what belongs to no sequence, in host memory. Lengths are checked.
void zero_rows_of_no_sequence(const Problem& problem, const AttentionTensors& tensors);

}  // namespace fulmen
