// Where the tiles of forward/prefill_fp32.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/transposed_rows.h"

namespace fulmen::kernels {

struct PrefillFp32Shape {
  bool planes;  // AMD: tiles are three planes of bf16 parts, V's transposed; NVIDIA: rows of fp32
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;          // of K and V tiles
  bool queries_in_lds;  // AMD: else in registers; NVIDIA: always
};

struct PrefillFp32Layout {
  int key_pitch;                // bytes from row to row
  int value_pitch;              // AMD: of V^T
  int key_plane, value_plane;   // AMD: bytes of a part's tile
  int key_bytes, value_bytes;   // a tile's
  int query_plane, queries_at;  // K tiles first, then V tiles, then Q
  int total;

  FULMEN_ALGORITHM static PrefillFp32Layout of(const PrefillFp32Shape& s) {
    constexpr int kPlanes = 3;
    PrefillFp32Layout l{};
    if (s.planes) {
      // As in forward/prefill_layout.h.
      l.key_pitch = 2 * s.head_dim + 16;
      l.value_pitch = algorithm::transposed_pitch(s.block_n);
      l.key_plane = s.block_n * l.key_pitch;
      l.value_plane = (algorithm::transposed_row(s.head_dim_v, s.block_n) + 15) / 16 * 16;
      l.query_plane = s.queries_in_lds ? s.block_m * l.key_pitch : 0;
      l.key_bytes = kPlanes * l.key_plane;
      l.value_bytes = kPlanes * l.value_plane;
      l.total = kPlanes * l.query_plane;
    } else {
      l.key_pitch = 4 * s.head_dim;
      l.value_pitch = 4 * s.head_dim_v;
      l.key_bytes = s.block_n * l.key_pitch;
      l.value_bytes = s.block_n * l.value_pitch;
      l.total = s.block_m * l.key_pitch;
    }
    l.queries_at = s.buffers * (l.key_bytes + l.value_bytes);
    l.total += l.queries_at;
    return l;
  }
};

}  // namespace fulmen::kernels
