// Where the tiles of backward/backward.h and backward/backward_atomic.h lie in LDS, in bytes: the
// same formulas for the host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/transposed_rows.h"

namespace fulmen::kernels {

struct BackwardShape {
  int transposed_depth;   // keys of a product that takes values transposed; 0: as rows
  bool reads_transposed;  // from rows
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;
  bool rows_in_lds;
  // Whether a product takes the first (q or k), or second (dout or v), columns as values.
  bool first_values, second_values;
  int dim_groups = 1;        // waves that share their rows, or keys
  bool direct_rows = false;  // rows that registers hold do not pass LDS
};

// LDS of backward.h: the columns' tiles as rows, and transposed where a product takes them as
// values and LDS does not transpose; numbers of each column; and the workgroup's own rows, where
// they stay there.
struct BackwardLayout {
  // The pitch of columns and rows alike: 8 rows' pieces lie in different banks; NVIDIA: swizzled.
  int first_pitch, second_pitch;
  int value_pitch;                                                         // of transposed tiles
  int first_at, second_at, first_values_at, second_values_at, numbers_at;  // in a buffer
  int buffer_bytes;
  int first_rows_at, second_rows_at, total;

  FULMEN_ALGORITHM static BackwardLayout of(const BackwardShape& s) {
    BackwardLayout l{};
    const int padding = algorithm::row_padding(s.transposed_depth, s.reads_transposed);
    const bool copies = s.transposed_depth > 0 && !s.reads_transposed;
    l.first_pitch = 2 * s.head_dim + padding;
    l.second_pitch = 2 * s.head_dim_v + padding;
    l.value_pitch = algorithm::transposed_pitch(s.block_n, s.transposed_depth);
    l.second_at = s.block_n * l.first_pitch;
    l.first_values_at = l.second_at + s.block_n * l.second_pitch;
    l.second_values_at =
        l.first_values_at +
        (copies && s.first_values
             ? round(algorithm::transposed_row(s.head_dim, s.block_n, s.transposed_depth))
             : 0);
    l.numbers_at =
        l.second_values_at +
        (copies && s.second_values
             ? round(algorithm::transposed_row(s.head_dim_v, s.block_n, s.transposed_depth))
             : 0);
    l.buffer_bytes = l.numbers_at + round(8 * s.block_n);
    l.first_rows_at = s.buffers * l.buffer_bytes;
    l.second_rows_at = l.first_rows_at + (s.rows_in_lds ? s.block_m * l.first_pitch : 0);
    l.total = l.second_rows_at + (s.rows_in_lds ? s.block_m * l.second_pitch : 0);
    // Rows that registers hold are loaded by way of LDS, where that has room for them.
    const int pass =
        s.rows_in_lds || s.direct_rows || !rows_pass_lds(s.head_dim, s.head_dim_v)
            ? 0
            : s.block_m * (l.first_pitch > l.second_pitch ? l.first_pitch : l.second_pitch);
    if (l.total < pass) l.total = pass;
    return l;
  }
  FULMEN_ALGORITHM static int round(int bytes) { return (bytes + 15) / 16 * 16; }
  FULMEN_ALGORITHM static bool rows_pass_lds(int head_dim, int head_dim_v) {
    return head_dim <= 256 && head_dim_v <= 256;
  }
};

// LDS of backward.h: that of its tiles; and where waves share rows, each wave's parts of q.k and
// dout.v, in fp32, of a tile of 16 columns.
struct SharedRowsLayout {
  BackwardLayout tiles;
  int parts_at, total;

  FULMEN_ALGORITHM static SharedRowsLayout of(const BackwardShape& s) {
    constexpr int kTile = 16, kBytes = 2 * 4 * kTile;
    SharedRowsLayout l{};
    l.tiles = BackwardLayout::of(s);
    l.parts_at = l.tiles.total;
    l.total = l.parts_at + (s.dim_groups > 1 ? s.block_m * s.dim_groups * kBytes : 0);
    return l;
  }
};

// LDS of backward_atomic.h: that of backward.h; the keys, unless they stay there anyway; dS^T, and
// what waves that share keys exchange.
struct AtomicLayout {
  BackwardLayout tiles;
  int keys_at;
  int score_pitch;                   // bytes from key to key of [key][query]: 8 rows' pieces lie in
                                     // different banks; pairs: swizzled
  int gradients_at, gradient_bytes;  // dS^T of two tiles; a pair's P^T is in its place first
  int probabilities_at;              // of two pairs: P^T
  int weights_at, total;             // and what dv takes for it where that is something else

  FULMEN_ALGORITHM static AtomicLayout of(const BackwardShape& s) {
    AtomicLayout l{};
    l.tiles = BackwardLayout::of(s);
    l.keys_at = s.rows_in_lds ? l.tiles.first_rows_at : l.tiles.total;
    l.score_pitch = 2 * s.block_n + (s.dim_groups > 1 ? 0 : 16);
    l.gradients_at = l.tiles.total + (s.rows_in_lds ? 0 : s.block_m * l.tiles.first_pitch);
    l.gradient_bytes = s.block_m * l.score_pitch;
    l.probabilities_at = l.gradients_at + 2 * l.gradient_bytes;
    l.weights_at = l.probabilities_at + l.gradient_bytes;
    l.total = s.dim_groups == 4 ? l.weights_at + l.gradient_bytes : l.probabilities_at;
    return l;
  }
};

}  // namespace fulmen::kernels
