// Where the tiles of forward/prefill_fp32.h, backward/backward_fp32.h and
// backward/bias_gradient_fp32.h lie in LDS, in bytes: the same formulas for the host, which
// reserves it, and for the kernels.
#pragma once

#include "algorithm/transposed_rows.h"

namespace fulmen::kernels {

// A tile of fp32. NVIDIA: rows of fp32, which serve both products. AMD (planes_depth: keys of a
// product): three planes of
// bf16 parts, as rows, and transposed where a product takes them as values.
struct Fp32Tile {
  int row_pitch, row_plane;      // bytes from row to row, and of a part's tile
  int value_pitch, value_plane;  // of the transposed tile
  int values_at;                 // from the tile's start
  int bytes;

  FULMEN_ALGORITHM static Fp32Tile of(int planes_depth, int dims, int rows, bool as_rows,
                                      bool as_values) {
    constexpr int kPlanes = 3;
    Fp32Tile t{};
    if (planes_depth == 0) {
      t.row_pitch = 4 * dims;
      t.bytes = rows * t.row_pitch;
      return t;
    }
    // As in forward/prefill_layout.h.
    t.row_pitch = 2 * dims + 16;
    t.row_plane = rows * t.row_pitch;
    t.value_pitch = algorithm::transposed_pitch(rows, planes_depth);
    t.value_plane = (algorithm::transposed_row(dims, rows, planes_depth) + 15) / 16 * 16;
    t.values_at = as_rows ? kPlanes * t.row_plane : 0;
    t.bytes = t.values_at + (as_values ? kPlanes * t.value_plane : 0);
    return t;
  }
};

struct PrefillFp32Shape {
  int planes_depth;
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;          // of K and V tiles
  bool queries_in_lds;  // AMD: else in registers; NVIDIA: always
};

// K tiles first, then V tiles, then Q.
struct PrefillFp32Layout {
  Fp32Tile keys, values, queries;
  int queries_at, total;

  FULMEN_ALGORITHM static PrefillFp32Layout of(const PrefillFp32Shape& s) {
    PrefillFp32Layout l{};
    l.keys = Fp32Tile::of(s.planes_depth, s.head_dim, s.block_n, true, false);
    l.values = Fp32Tile::of(s.planes_depth, s.head_dim_v, s.block_n, false, true);
    l.queries = Fp32Tile::of(s.planes_depth, s.head_dim, s.block_m, true, false);
    l.queries_at = s.buffers * (l.keys.bytes + l.values.bytes);
    l.total = l.queries_at + (s.planes_depth == 0 || s.queries_in_lds ? l.queries.bytes : 0);
    return l;
  }
};

struct BackwardFp32Shape {
  int planes_depth;
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;  // of the columns' tiles
  bool rows_in_lds;
  // Which tensors of the columns a product takes as values; whether dout.v is wanted.
  bool first_values, second_values, needs_dout;
};

// The columns' buffers, each the first tensor, the second, and numbers of each column; then the
// workgroup's own rows.
struct BackwardFp32Layout {
  Fp32Tile first, second, first_rows, second_rows;
  int second_at, numbers_at, buffer_bytes;
  int first_rows_at, second_rows_at, total;

  FULMEN_ALGORITHM static BackwardFp32Layout of(const BackwardFp32Shape& s) {
    BackwardFp32Layout l{};
    l.first = Fp32Tile::of(s.planes_depth, s.head_dim, s.block_n, true, s.first_values);
    l.second = Fp32Tile::of(s.planes_depth, s.head_dim_v, s.block_n, s.needs_dout, s.second_values);
    l.first_rows = Fp32Tile::of(s.planes_depth, s.head_dim, s.block_m, true, false);
    l.second_rows = Fp32Tile::of(s.planes_depth, s.head_dim_v, s.block_m, true, false);
    l.second_at = l.first.bytes;
    l.numbers_at = l.second_at + l.second.bytes;
    l.buffer_bytes = l.numbers_at + 8 * s.block_n;
    l.first_rows_at = s.buffers * l.buffer_bytes;
    l.second_rows_at = l.first_rows_at + (s.rows_in_lds ? l.first_rows.bytes : 0);
    l.total = l.second_rows_at + (s.rows_in_lds && s.needs_dout ? l.second_rows.bytes : 0);
    return l;
  }
};

// Buffers of a term's tiles. AMD holds rows of q and dout in registers.
struct BiasGradientFp32Layout {
  Fp32Tile first, second;              // of k and q; of v and dout
  int values_at, queries_at, dout_at;  // in a buffer, which begins with keys
  int buffer_bytes, total;

  FULMEN_ALGORITHM static BiasGradientFp32Layout of(int planes_depth, int head_dim, int head_dim_v,
                                                    int block_m, int block_n, int buffers) {
    BiasGradientFp32Layout l{};
    l.first = Fp32Tile::of(planes_depth, head_dim, block_n, true, false);
    l.second = Fp32Tile::of(planes_depth, head_dim_v, block_n, true, false);
    l.values_at = l.first.bytes;
    l.queries_at = l.values_at + l.second.bytes;
    const int rows = planes_depth == 0 ? block_m : 0;
    l.dout_at = l.queries_at + rows * l.first.row_pitch;
    l.buffer_bytes = l.dout_at + rows * l.second.row_pitch;
    l.total = buffers * l.buffer_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
