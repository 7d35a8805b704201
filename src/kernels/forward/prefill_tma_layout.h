// Where the tiles of forward/prefill_tma.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// LDS of forward/prefill_tma.h: queries, `buffers` tiles of keys and as many of values, all in
// panels (targets/sm90/target.h); and the mbarriers, of 8 bytes each.
struct TmaPrefillLayout {
  static constexpr int kBarrierBytes = 8;
  static constexpr int kHeadTileBytes = 48;    // parts/sequence_tiles.h: a work tile and its head
  int queries_at, query_bytes, query_buffers;  // wide heads leave room for one
  int keys_at, key_bytes;                      // a tile's
  int values_at, value_bytes;
  // None: wide heads leave no room, outputs go from registers to memory.
  int outputs_at, output_bytes;
  int barriers_at, next_at;
  // What scores are multiplied with, and probabilities, of each buffer: fp32, where each token of
  // quantized k, or v, has a scale.
  int key_factors_at, value_factors_at, total;

  FULMEN_ALGORITHM static TmaPrefillLayout of(int head_dim, int head_dim_v, int block_m,
                                              int block_n, int buffers, bool variable,
                                              bool key_factors = false,
                                              bool value_factors = false) {
    TmaPrefillLayout l{};
    l.query_bytes = block_m * 2 * head_dim;
    l.key_bytes = block_n * 2 * head_dim;
    l.value_bytes = block_n * 2 * head_dim_v;
    const bool wide = head_dim > 128 || head_dim_v > 128;
    l.place(wide, block_m, head_dim_v, buffers, variable);
    const int factors = 4 * block_n * buffers;
    l.key_factors_at = l.total;
    l.value_factors_at = l.key_factors_at + (key_factors ? factors : 0);
    l.total = l.value_factors_at + (value_factors ? factors : 0);
    return l;
  }
  // forward/prefill_fp8.h. Values lie transposed: a panel has `value_rows` rows of 128 bytes, of as
  // many keys or fewer. dims_v: of outputs, whole panels.
  FULMEN_ALGORITHM static TmaPrefillLayout of_fp8(int head_dim, int value_rows, int dims_v,
                                                  int block_m, int block_n, int buffers) {
    constexpr int kRow = 128;
    TmaPrefillLayout l{};
    const int panels = (head_dim + kRow - 1) / kRow, value_panels = (block_n + kRow - 1) / kRow;
    l.query_bytes = block_m * panels * kRow;
    l.key_bytes = block_n * panels * kRow;
    l.value_bytes = value_rows * value_panels * kRow;
    l.place(head_dim > kRow || dims_v > kRow, block_m, dims_v, buffers, false);
    return l;
  }

 private:
  FULMEN_ALGORITHM void place(bool wide, int block_m, int head_dim_v, int buffers, bool variable) {
    TmaPrefillLayout& l = *this;
    l.query_buffers = wide ? 1 : 2;
    l.keys_at = l.query_buffers * l.query_bytes;
    l.values_at = l.keys_at + buffers * l.key_bytes;
    l.outputs_at = l.values_at + buffers * l.value_bytes;
    l.output_bytes = wide ? 0 : block_m * 2 * head_dim_v;
    l.barriers_at = l.outputs_at + l.output_bytes;
    // Full and empty for each buffer, of each warpgroup's queries, of keys, of values and of the
    // next tile's number, and one each for keys and values that are changed in LDS.
    l.next_at = l.barriers_at +
                (2 * l.query_buffers * (block_m / 64) + 2 + 4 * buffers + 2) * kBarrierBytes;
    if (variable) l.next_at = (l.next_at + 15) / 16 * 16;
    l.total = l.next_at + (variable ? kHeadTileBytes : kBarrierBytes);
  }
};

}  // namespace fulmen::kernels
