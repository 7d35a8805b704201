// Where the tiles of the kernels without matrix instructions lie in LDS, in bytes: the same
// formulas for the host, which reserves it, and for the kernels.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

struct SquareShape {
  bool pairs;      // words are two fp16 numbers, else one fp32 number
  bool rows_stay;  // all dims of the rows are there, else a chunk
  int chunk;       // dims of the columns that are there
  int head_dim, head_dim_v, block_m, block_n;
  bool second_rows;  // the rows are of two tensors
  int weights;       // tiles of weights
  int numbers = 0;   // floats of each pair of rows and columns, in place of columns and weights
};

struct SquareLayout {
  // From a row to the next one: 16 bytes longer than the row, so that the pieces of eight rows lie
  // in different banks.
  int first_pitch, second_pitch, column_pitch, value_pitch, weight_pitch;
  int second_at;   // of the rows
  int columns_at;  // [block_n][chunk] as rows, or as values [words of block_n][chunk]
  int weights_at, weight_bytes, total;

  FULMEN_ALGORITHM static SquareLayout of(const SquareShape& s) {
    const int in_word = s.pairs ? 2 : 1;
    const auto pitch = [&](int count) { return 4 * (count / in_word + 4); };
    SquareLayout l{};
    l.first_pitch = pitch(s.rows_stay ? s.head_dim : s.chunk);
    l.second_pitch = pitch(s.rows_stay ? s.head_dim_v : s.chunk);
    l.column_pitch = pitch(s.chunk);
    l.value_pitch = 4 * (s.chunk + 4);
    l.weight_pitch = pitch(s.block_n);
    l.second_at = s.rows_stay ? s.block_m * l.first_pitch : 0;
    const bool second = s.second_rows && s.rows_stay;
    l.columns_at = s.block_m * (l.first_pitch + (second ? l.second_pitch : 0));
    const int keys = s.block_n * l.column_pitch, values = s.block_n / in_word * l.value_pitch;
    l.weights_at = l.columns_at + (keys > values ? keys : values);
    l.weight_bytes = s.block_m * l.weight_pitch;
    const int all = l.weights_at + s.weights * l.weight_bytes,
              numbers = l.columns_at + 4 * s.numbers * s.block_m * s.block_n;
    l.total = all > numbers ? all : numbers;
    return l;
  }
};

}  // namespace fulmen::kernels
