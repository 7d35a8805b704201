// Where the tiles of a kernel lie in LDS, in bytes: the same formulas for the host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// Bytes from row to row of a transposed tile of block_n keys. They are read 8 bytes at a time by 16 lanes of 16 rows, and written 8
// bytes at a time by 16 lanes: of one row with 64 keys, of two rows 8 apart with 32. 8 bytes more put all of these in different
// banks.
FULMEN_ALGORITHM int transposed_pitch(int block_n) { return 2 * block_n + 8; }

// Where row `dim` begins. Tiles of 16 keys are written to four rows at once, 8 apart: the second two would lie in the banks of the
// first.
FULMEN_ALGORITHM int transposed_row(int dim, int block_n) {
  return dim * transposed_pitch(block_n) + (block_n == 16 ? dim / 16 * 32 : 0);
}

struct ForwardShape {
  bool transposed_values;  // V^T in LDS (AMD); NVIDIA's ldmatrix transposes while it reads
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;          // of K and V tiles
  bool queries_in_lds;  // AMD: else in registers; NVIDIA: they are brought there, and stay
  bool persistent;      // NVIDIA: outputs have room of their own, as the next queries are in flight to theirs
};

struct ForwardLayout {
  int key_pitch;  // bytes from row to row, padded so that a column of 16-byte pieces lies in different banks; NVIDIA: swizzled
                  // instead
  int value_pitch;
  int query_pitch;             // AMD
  int key_bytes, value_bytes;  // a tile's
  int queries_at;              // K tiles first, then V tiles, then Q
  int outputs_at, total;       // NVIDIA: outputs before they are stored, in place of Q unless the kernel is persistent

  FULMEN_ALGORITHM static ForwardLayout of(const ForwardShape& s) {
    ForwardLayout l{};
    int query_bytes = 0;
    if (s.transposed_values) {
      // Eight rows' pieces in eight different groups of four banks.
      l.key_pitch = l.query_pitch = 2 * s.head_dim + 16;
      l.value_pitch = transposed_pitch(s.block_n);
      l.value_bytes = (transposed_row(s.head_dim_v, s.block_n) + 15) / 16 * 16;
      if (s.queries_in_lds) query_bytes = s.block_m * l.query_pitch;
    } else {
      l.key_pitch = 2 * s.head_dim;
      l.value_pitch = 2 * s.head_dim_v;
      l.value_bytes = s.block_n * l.value_pitch;
      // Queries, and outputs before they are stored.
      query_bytes = s.block_m * (l.key_pitch < l.value_pitch && !s.persistent ? l.value_pitch : l.key_pitch);
    }
    l.key_bytes = s.block_n * l.key_pitch;
    l.queries_at = s.buffers * (l.key_bytes + l.value_bytes);
    l.outputs_at = l.queries_at + (s.persistent ? query_bytes : 0);
    // 8 of a wave's 16 rows at a time.
    l.total = l.queries_at + query_bytes + (s.persistent ? s.block_m / 2 * l.value_pitch : 0);
    return l;
  }
};

struct BackwardShape {
  bool transposed_values;
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;
  bool rows_in_lds;
  bool first_values, second_values;  // whether a product takes the first (q or k), or second (dout or v), columns as values
  int dim_groups = 1;                // of backward_atomic.h
};

// LDS of backward.h: the columns' tiles as rows, and transposed where a product takes them as values; numbers of each column; and
// the workgroup's own rows, where they stay there.
struct BackwardLayout {
  int first_pitch, second_pitch;  // of columns and rows alike: 8 rows' pieces lie in different banks; NVIDIA: swizzled
  int value_pitch;                // of transposed tiles
  int first_at, second_at, first_values_at, second_values_at, numbers_at;  // in a buffer
  int buffer_bytes;
  int first_rows_at, second_rows_at, total;

  FULMEN_ALGORITHM static BackwardLayout of(const BackwardShape& s) {
    BackwardLayout l{};
    const int padding = s.transposed_values ? 16 : 0;
    l.first_pitch = 2 * s.head_dim + padding;
    l.second_pitch = 2 * s.head_dim_v + padding;
    l.value_pitch = transposed_pitch(s.block_n);
    l.second_at = s.block_n * l.first_pitch;
    l.first_values_at = l.second_at + s.block_n * l.second_pitch;
    l.second_values_at =
        l.first_values_at + (s.transposed_values && s.first_values ? round(transposed_row(s.head_dim, s.block_n)) : 0);
    l.numbers_at =
        l.second_values_at + (s.transposed_values && s.second_values ? round(transposed_row(s.head_dim_v, s.block_n)) : 0);
    l.buffer_bytes = l.numbers_at + round(8 * s.block_n);
    l.first_rows_at = s.buffers * l.buffer_bytes;
    l.second_rows_at = l.first_rows_at + (s.rows_in_lds ? s.block_m * l.first_pitch : 0);
    l.total = l.second_rows_at + (s.rows_in_lds ? s.block_m * l.second_pitch : 0);
    // Rows that registers hold are loaded by way of LDS.
    const int pass = s.rows_in_lds ? 0 : s.block_m * (l.first_pitch > l.second_pitch ? l.first_pitch : l.second_pitch);
    if (l.total < pass) l.total = pass;
    return l;
  }
  FULMEN_ALGORITHM static int round(int bytes) { return (bytes + 15) / 16 * 16; }
};

// LDS of backward_atomic.h: that of backward.h; the keys, unless they stay there anyway; dS^T, and what waves that share keys hand
// over.
struct AtomicLayout {
  BackwardLayout tiles;
  int keys_at;
  int score_pitch;  // bytes from key to key of [key][query]: 8 rows' pieces lie in different banks; pairs: swizzled
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

struct WarpgroupShape {
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;        // of tiles of columns
  bool second_early;  // else there is one of their second tensor
  bool second_rows;   // whether a product takes the second (v or dout) rows
};

// LDS of backward_wgmma.h, all in panels (targets/sm90/target.h): the workgroup's rows, tiles of columns, and numbers of each
// column.
struct WarpgroupLayout {
  int first_rows_at, second_rows_at;
  int first_at, first_bytes, second_at, second_bytes;  // the tiles of columns, a tile's bytes
  int numbers_at, number_bytes, total;

  FULMEN_ALGORITHM static WarpgroupLayout of(const WarpgroupShape& s) {
    WarpgroupLayout l{};
    l.second_rows_at = s.block_m * 2 * s.head_dim;
    l.first_at = l.second_rows_at + (s.second_rows ? s.block_m * 2 * s.head_dim_v : 0);
    l.first_bytes = s.block_n * 2 * s.head_dim;
    l.second_at = l.first_at + s.buffers * l.first_bytes;
    l.second_bytes = s.block_n * 2 * s.head_dim_v;
    l.numbers_at = l.second_at + (s.second_early ? s.buffers : 1) * l.second_bytes;
    l.number_bytes = 8 * s.block_n;
    l.total = l.numbers_at + s.buffers * l.number_bytes;
    return l;
  }
};

// LDS of backward_wgmma_atomic.h, all in panels (targets/sm90/target.h): keys and values; tiles of queries, dout and their numbers;
// dS^T, and P^T where warpgroups share keys, else dS^T of two tiles.
struct WarpgroupAtomicLayout {
  int keys_at, values_at;
  int queries_at, buffer_bytes;  // the first of the tiles
  int dout_at;                   // in a buffer
  int gradients_at, gradient_bytes;
  int probabilities_at;  // or dS^T of every second tile
  int numbers_at, number_bytes, total;

  FULMEN_ALGORITHM static WarpgroupAtomicLayout of(int head_dim, int head_dim_v, int block_m, int block_n, int buffers) {
    WarpgroupAtomicLayout l{};
    l.values_at = block_m * 2 * head_dim;
    l.queries_at = l.values_at + block_m * 2 * head_dim_v;
    l.dout_at = block_n * 2 * head_dim;
    l.buffer_bytes = l.dout_at + block_n * 2 * head_dim_v;
    l.gradients_at = l.queries_at + buffers * l.buffer_bytes;
    l.gradient_bytes = block_m * 2 * block_n;
    l.probabilities_at = l.gradients_at + l.gradient_bytes;
    l.numbers_at = l.probabilities_at + l.gradient_bytes;
    l.number_bytes = 8 * block_n;
    l.total = l.numbers_at + buffers * l.number_bytes;
    return l;
  }
};

// LDS of forward/prefill_wgmma.h, all in panels (targets/sm90/target.h): queries, and outputs before they are stored; two tiles of
// keys, two of values.
struct WarpgroupForwardLayout {
  int queries_at;
  int keys_at, key_bytes;  // a tile's
  int values_at, value_bytes, total;

  FULMEN_ALGORITHM static WarpgroupForwardLayout of(int head_dim, int head_dim_v, int block_m, int block_n) {
    WarpgroupForwardLayout l{};
    l.key_bytes = block_n * 2 * head_dim;
    l.value_bytes = block_n * 2 * head_dim_v;
    l.keys_at = block_m * 2 * (head_dim > head_dim_v ? head_dim : head_dim_v);
    l.values_at = l.keys_at + 2 * l.key_bytes;
    l.total = l.values_at + 2 * l.value_bytes;
    return l;
  }
};

// LDS of forward/prefill_tma.h: queries, `buffers` tiles of keys and as many of values, all in panels (targets/sm90/target.h); and
// the mbarriers, of 8 bytes each.
struct TmaForwardLayout {
  static constexpr int kBarrierBytes = 8;
  int queries_at, query_bytes, query_buffers;  // wide heads leave room for one
  int keys_at, key_bytes;                      // a tile's
  int values_at, value_bytes;
  int outputs_at, output_bytes;  // none: wide heads leave no room, outputs go from registers to memory
  int barriers_at, next_at, total;

  FULMEN_ALGORITHM static TmaForwardLayout of(int head_dim, int head_dim_v, int block_m, int block_n, int buffers) {
    TmaForwardLayout l{};
    l.query_bytes = block_m * 2 * head_dim;
    l.key_bytes = block_n * 2 * head_dim;
    l.value_bytes = block_n * 2 * head_dim_v;
    const bool wide = head_dim > 128 || head_dim_v > 128;
    l.query_buffers = wide ? 1 : 2;
    l.keys_at = l.query_buffers * l.query_bytes;
    l.values_at = l.keys_at + buffers * l.key_bytes;
    l.outputs_at = l.values_at + buffers * l.value_bytes;
    l.output_bytes = wide ? 0 : block_m * 2 * head_dim_v;
    l.barriers_at = l.outputs_at + l.output_bytes;
    // Full and empty for each buffer, of each warpgroup's queries, of keys, of values and of the next tile's number, and one for
    // values to be cleared.
    l.next_at = l.barriers_at + (2 * l.query_buffers * (block_m / 64) + 1 + 4 * buffers + 2) * kBarrierBytes;
    l.total = l.next_at + kBarrierBytes;
    return l;
  }
};

// LDS of forward/decode_tma.h: 64 rows of queries, `buffers` tiles of keys and as many of values in panels, and mbarriers.
struct TmaDecodeLayout {
  static constexpr int kRows = 64, kBarrierBytes = 8;
  int queries_at;
  int keys_at, key_bytes;  // a tile's
  int values_at, value_bytes;
  int barriers_at, missing_at, total;

  FULMEN_ALGORITHM static TmaDecodeLayout of(int query_dims, int key_dims, int value_dims, int block_n, int buffers) {
    TmaDecodeLayout l{};
    l.key_bytes = block_n * 2 * key_dims;
    l.value_bytes = block_n * 2 * value_dims;
    l.keys_at = kRows * 2 * query_dims;
    l.values_at = l.keys_at + buffers * l.key_bytes;
    l.barriers_at = l.values_at + buffers * l.value_bytes;
    l.missing_at = l.barriers_at + (2 + 4 * buffers) * kBarrierBytes;
    l.total = l.missing_at + kBarrierBytes;
    return l;
  }
};

// LDS of backward/backward_tma.h. In panels (targets/sm90/target.h): keys and values; tiles of queries and dout; tiles of dS^T.
// Then tiles of dq in fp32; the row statistics of each buffer; ids of the blocks taken; mbarriers.
struct TmaBackwardLayout {
  static constexpr int kBarrierBytes = 8;
  int keys_at, key_bytes, values_at, value_bytes;
  int queries_at, query_bytes, dout_at, dout_bytes;  // a tile's
  bool pipelined;  // narrow heads leave registers for the products of one tile beside the scores of the next
  int gradient_buffers, gradients_at, gradient_bytes;
  int sum_buffers, sum_parts;  // tiles of dq; parts of one, by queries
  int sums_at, sum_bytes;
  int statistics_at, statistic_bytes;
  int blocks_at;
  int barriers_at, total;

  FULMEN_ALGORITHM static TmaBackwardLayout of(int head_dim, int head_dim_v, int block_m, int block_n, int buffers) {
    TmaBackwardLayout l{};
    const int dims = (head_dim + 63) / 64 * 64, dims_v = (head_dim_v + 63) / 64 * 64;  // of whole panels
    l.key_bytes = block_m * 2 * dims;
    l.values_at = l.key_bytes;
    l.value_bytes = block_m * 2 * dims_v;
    l.queries_at = l.values_at + l.value_bytes;
    l.query_bytes = block_n * 2 * dims;
    l.dout_at = l.queries_at + buffers * l.query_bytes;
    l.dout_bytes = block_n * 2 * dims_v;
    l.gradients_at = l.dout_at + buffers * l.dout_bytes;
    l.pipelined = dims + dims_v <= 128;
    l.gradient_bytes = block_m * 2 * block_n;
    l.gradient_buffers = l.pipelined ? 3 : 2;
    l.sums_at = l.gradients_at + l.gradient_buffers * l.gradient_bytes;
    // A tile of more than 64 dims takes long to be added: the next block adds to one half when the other is still in flight.
    l.sum_buffers = head_dim > 64 ? 2 : 3;
    l.sum_parts = head_dim > 64 ? 2 : 1;
    l.sum_bytes = block_n * 4 * head_dim;
    l.statistics_at = l.sums_at + l.sum_buffers * l.sum_bytes;
    l.statistic_bytes = 8 * block_n;
    l.blocks_at = l.statistics_at + buffers * l.statistic_bytes;
    l.barriers_at = l.blocks_at + 2 * 8;
    // Keys, three; full and empty for each buffer; three of dS^T's; parts of dq; blocks.
    l.total = l.barriers_at + (3 + 2 * buffers + 3 * l.gradient_buffers + 2 * l.sum_buffers + 2 * 2) * kBarrierBytes;
    return l;
  }
};

// LDS of backward/backward_tma_wide.h, of each workgroup of a pair, which has half of the dims. In panels: 64 keys, its half of the
// dims before the other one, and their values, the same; its half of the peer's keys; its half of three tiles of queries and of two
// of dout; the other half of one of each; dS^T and P^T of both workgroups' keys. Then how many blocks are added before; the row
// statistics of each tile of queries; ids of the blocks taken; mbarriers.
struct TmaPairLayout {
  static constexpr int kRows = 64, kBarrierBytes = 8, kQueries = 3, kDout = 2;
  int keys_at, values_at, peer_keys_at;
  int half_bytes, half_bytes_v;  // of a tile of keys or queries, of values or dout
  int queries_at, dout_at, other_queries_at, other_dout_at;
  int gradients_at, gradient_bytes;  // of one workgroup's keys: dS^T, then P^T
  int probabilities_at;              // in these
  int sums_at;
  int statistics_at, statistic_bytes;
  int blocks_at, block_bytes;
  int barriers_at, total;

  FULMEN_ALGORITHM static TmaPairLayout of(int head_dim, int head_dim_v) {
    TmaPairLayout l{};
    l.half_bytes = kRows * head_dim;
    l.half_bytes_v = kRows * head_dim_v;
    l.values_at = 2 * l.half_bytes;
    l.peer_keys_at = l.values_at + 2 * l.half_bytes_v;
    l.queries_at = l.peer_keys_at + l.half_bytes;
    l.other_queries_at = l.queries_at + kQueries * l.half_bytes;
    l.dout_at = l.other_queries_at + l.half_bytes;
    l.other_dout_at = l.dout_at + kDout * l.half_bytes_v;
    l.gradients_at = l.other_dout_at + l.half_bytes_v;
    l.probabilities_at = kRows * 2 * kRows;
    l.gradient_bytes = 2 * l.probabilities_at;
    l.sums_at = l.gradients_at + 2 * l.gradient_bytes;
    l.statistics_at = l.sums_at + 16;
    l.statistic_bytes = 8 * kRows;
    l.blocks_at = l.statistics_at + kQueries * l.statistic_bytes;
    l.block_bytes = 16;  // what a copy to the peer has at least
    l.barriers_at = l.blocks_at + 2 * l.block_bytes;
    // Keys, four; full and empty for each tile; empty for the other halves; dS^T, three; dq, two; blocks, two of two.
    l.total = l.barriers_at + (4 + 2 * (kQueries + kDout) + 2 + 3 + 2 + 2 * 2) * kBarrierBytes;
    return l;
  }
};

struct BoardsShape {
  int head_dim, block;
  int buffers;  // boards
  bool bias;    // of 16 bits, beside the board
};

// LDS of boards.h: a board's queries, keys and values as swizzled rows, and its bias.
struct BoardsLayout {
  int k_at, v_at, bias_at;  // in a buffer, which begins with the queries
  int buffer_bytes, total;

  FULMEN_ALGORITHM static BoardsLayout of(const BoardsShape& s) {
    BoardsLayout l{};
    l.k_at = s.block * 2 * s.head_dim;
    l.v_at = 2 * l.k_at;
    l.bias_at = 3 * l.k_at;
    l.buffer_bytes = l.bias_at + (s.bias ? s.block * 2 * s.block : 0);
    l.total = s.buffers * l.buffer_bytes;
    return l;
  }
};

struct ShortBackwardShape {
  bool transposed_values;
  int head_dim, head_dim_v, block;
  int buffers;
  bool bias;  // of 16 bits, the same for all batches
  bool out;   // is read
};

// LDS of short_backward.h: a sequence's k, q, v, dout (and on NVIDIA out, where it is read) as rows, and transposed where a product
// takes them as values; and the probabilities and their gradients, 16 bits each, from the waves that own queries to
// those that own keys.
struct ShortBackwardLayout {
  int pitch, pitch_v;                     // of rows
  int value_pitch;                        // of transposed tiles
  int k_at, q_at, v_at, dout_at, out_at;  // in a buffer
  int k_values_at, q_values_at, dout_values_at;
  int buffer_bytes;
  int square_pitch;
  int weights_at, gradients_at, bias_at;
  int total;

  FULMEN_ALGORITHM static ShortBackwardLayout of(const ShortBackwardShape& s) {
    ShortBackwardLayout l{};
    const int padding = s.transposed_values ? 16 : 0;  // NVIDIA swizzles pieces instead (tile/nvidia/swizzle.h)
    l.pitch = 2 * s.head_dim + padding;
    l.pitch_v = 2 * s.head_dim_v + padding;
    l.value_pitch = transposed_pitch(s.block);
    l.q_at = s.block * l.pitch;
    l.v_at = l.q_at + s.block * l.pitch;
    l.dout_at = l.v_at + s.block * l.pitch_v;
    l.out_at = l.dout_at + s.block * l.pitch_v;
    l.square_pitch = 2 * s.block + 16;
    const int square_bytes = s.block * l.square_pitch;
    if (s.transposed_values) {
      // The rows have been read when the probabilities come, and these take their place.
      const int rows = l.out_at > 2 * square_bytes ? l.out_at : 2 * square_bytes;
      const int bytes = (transposed_row(s.head_dim, s.block) + 15) / 16 * 16,
                bytes_v = (transposed_row(s.head_dim_v, s.block) + 15) / 16 * 16;
      l.k_values_at = rows;
      l.q_values_at = l.k_values_at + bytes;
      l.dout_values_at = l.q_values_at + bytes;
      l.total = l.buffer_bytes = l.dout_values_at + bytes_v;
    } else {
      l.buffer_bytes = l.out_at + (s.out ? s.block * l.pitch_v : 0);
      l.weights_at = s.buffers * l.buffer_bytes;
      l.bias_at = l.weights_at + 2 * square_bytes;
      l.total = l.bias_at + (s.bias ? square_bytes : 0);
    }
    l.gradients_at = l.weights_at + square_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
