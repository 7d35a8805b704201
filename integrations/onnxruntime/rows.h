// What GroupQueryAttention does to new rows before they are attended: norm, rotation, format.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.h"
#include "value.h"

namespace fulmen_ort {

// Rotary embedding by cosines and sines [positions, rotary_dim / 2].
struct Rotary {
  Value cosines, sines;
  bool interleaved = false;  // pairs are neighbours, else the halves
  int64_t positions() const { return cosines.dims[0]; }
  void rotate(float* row, int64_t position) const;
};
// Checks the shapes against each other and head_dim.
Rotary as_rotary(const Value& cosines, const Value& sines, int64_t head_dim, bool interleaved);

// What each row of a tensor goes through; the members that are empty do nothing.
struct Preparation {
  std::vector<float> norm_weight;  // RMS norm of each head: weight [head_dim]
  float epsilon = 0;
  const Rotary* rotary = nullptr;
  // The factors of the cache's numbers, [1 or heads * head_dim].
  std::vector<float> scales;
  int64_t bits = 0;  // 4: two numbers a byte; 8: int8 or fp8; 0: the rows' own dtype
  bool changes() const { return !norm_weight.empty() || rotary != nullptr; }
  bool copies() const { return !changes() && bits == 0; }
};

// Rows of `from` [batch, seqlen, heads, head_dim], prepared, become rows from[b]... of `to`, which
// has the format's bytes as elements where bits is not 0. positions: [batch * seqlen] of each row.
void write_rows(const fulmen_tensor& from, const Preparation& prepared,
                const std::vector<int64_t>& positions, const fulmen_tensor& to,
                const std::vector<int64_t>& first);

}  // namespace fulmen_ort
