// Where the tiles of forward/prefill.h lie in LDS, in bytes: the same formulas for the host, which
// reserves it, and for the kernel.
#pragma once

#include "algorithm/transposed_rows.h"

namespace fulmen::kernels {

struct PrefillShape {
  // Keys of a product, for which V lies transposed in LDS (AMD); 0: NVIDIA's ldmatrix transposes
  // while it reads.
  int transposed_depth;
  bool reads_transposed;  // AMD: V lies as rows
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;          // of K and V tiles
  bool queries_in_lds;  // AMD: else in registers; NVIDIA: they are brought there, and stay
  bool persistent;      // NVIDIA: outputs have room of their own, as the next queries are in flight
                        // to theirs
  int row_scales = 0;  // of quantized K, of V: how many of them have a scale for each of their rows
  int key_bytes = 2;   // of a number of K and Q: 1 where they are codes
  bool value_codes = false;  // values are codes of 8 bits, transposed
  int score_tile = 16;       // CDNA4: rows and columns of a product

  // AMD, wide heads: queries and keys fill the LDS, and a tile in flight fills the registers. So
  // values take their keys' place once all waves have the scores.
  FULMEN_ALGORITHM bool values_follow() const {
    constexpr int kWideDims = 256;
    return transposed_depth > 0 && queries_in_lds && head_dim > kWideDims && buffers == 1;
  }
};

struct PrefillLayout {
  int key_pitch;  // bytes from row to row, padded so that a column of 16-byte pieces lies in
                  // different banks; NVIDIA: swizzled instead
  int value_pitch;
  int query_pitch;             // AMD
  int key_bytes, value_bytes;  // a tile's
  int values_at, queries_at;   // K tiles first, then V tiles, then Q
  int outputs_at;              // NVIDIA: outputs before they are stored
  int scale_bytes, scales_at;  // of a tile's rows, in fp32: keys', then values'
  int total;

  FULMEN_ALGORITHM static PrefillLayout of(const PrefillShape& s) {
    PrefillLayout l{};
    int query_bytes = 0;
    if (s.transposed_depth > 0) {
      // Rows' pieces in different groups of four banks.
      const int usual = algorithm::row_padding(s.transposed_depth, s.reads_transposed);
      // 32 x 32: 16 rows' pieces of 16 bytes are all of one column, and what transposes takes 64
      // bytes of 4 rows.
      const bool wide = s.score_tile == 32;
      const int padding = wide ? 16 : usual, value_padding = wide ? 64 : usual;
      l.key_pitch = l.query_pitch = s.key_bytes * s.head_dim + padding;
      if (s.value_codes) {
        // 16 rows' pieces of 8 bytes in different banks.
        l.value_pitch = s.block_n + 8;
        l.value_bytes = (s.head_dim_v * l.value_pitch + 15) / 16 * 16;
      } else if (s.reads_transposed) {
        l.value_pitch = 2 * s.head_dim_v + (s.head_dim_v % value_padding == 0 ? value_padding : 0);
        l.value_bytes = s.block_n * l.value_pitch;
      } else {
        const int bytes = algorithm::transposed_row(s.head_dim_v, s.block_n, s.transposed_depth);
        l.value_pitch = algorithm::transposed_pitch(s.block_n, s.transposed_depth);
        l.value_bytes = (bytes + 15) / 16 * 16;
      }
      if (s.queries_in_lds) query_bytes = s.block_m * l.query_pitch;
    } else {
      l.key_pitch = s.key_bytes * s.head_dim;
      l.value_pitch = s.value_codes ? s.block_n : 2 * s.head_dim_v;
      l.value_bytes = (s.value_codes ? s.head_dim_v : s.block_n) * l.value_pitch;
      query_bytes = s.block_m * l.key_pitch;
    }
    l.key_bytes = s.block_n * l.key_pitch;
    l.values_at = s.values_follow() ? 0 : s.buffers * l.key_bytes;
    const int keys_end = s.buffers * l.key_bytes,
              values_end = l.values_at + s.buffers * l.value_bytes;
    l.queries_at = keys_end > values_end ? keys_end : values_end;
    // Outputs take the queries' place at the end, or, where their rows are longer, that of all
    // tiles.
    const int output_pitch = 2 * s.head_dim_v;
    const bool output_rows_are_longer = l.key_pitch < output_pitch;
    l.outputs_at = s.persistent             ? l.queries_at + query_bytes
                   : output_rows_are_longer ? 0
                                            : l.queries_at;
    // 8 of a wave's 16 rows at a time.
    l.scales_at = l.queries_at + query_bytes + (s.persistent ? s.block_m / 2 * output_pitch : 0);
    l.scale_bytes = 4 * s.row_scales * s.block_n;
    l.total = l.scales_at + s.buffers * l.scale_bytes;
    const int outputs_end = l.outputs_at + s.block_m * output_pitch;
    if (s.transposed_depth == 0 && !s.persistent && l.total < outputs_end) l.total = outputs_end;
    return l;
  }
};

}  // namespace fulmen::kernels
