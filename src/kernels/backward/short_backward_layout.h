// Where the tiles of backward/short_backward.h lie in LDS, in bytes: the same formulas for the
// host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/transposed_rows.h"

namespace fulmen::kernels {

struct ShortBackwardShape {
  int transposed_depth;  // as in backward_layout.h
  bool reads_transposed;
  int head_dim, head_dim_v, block;
  int buffers;
  bool bias;  // of 16 bits, the same for all batches
  bool out;   // is read
};

// LDS of short_backward.h: a sequence's k, q, v, dout (and on NVIDIA out, where it is read) as
// rows, and transposed where a product takes them as values and LDS does not transpose; and the
// probabilities and their gradients, 16 bits each, from the waves that own queries to those that
// own keys.
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
    // NVIDIA swizzles pieces instead (tile/nvidia/swizzle.h).
    const int padding = algorithm::row_padding(s.transposed_depth, s.reads_transposed);
    l.pitch = 2 * s.head_dim + padding;
    l.pitch_v = 2 * s.head_dim_v + padding;
    l.value_pitch = algorithm::transposed_pitch(s.block, s.transposed_depth);
    l.q_at = s.block * l.pitch;
    l.v_at = l.q_at + s.block * l.pitch;
    l.dout_at = l.v_at + s.block * l.pitch_v;
    l.out_at = l.dout_at + s.block * l.pitch_v;
    l.square_pitch = 2 * s.block + 16;
    const int square_bytes = s.block * l.square_pitch;
    if (s.transposed_depth > 0 && s.reads_transposed) {
      // v's rows have been read when the probabilities come.
      l.dout_at = l.v_at;
      l.v_at = l.weights_at = l.dout_at + s.block * l.pitch_v;
      const int last =
          s.block * l.pitch_v > 2 * square_bytes ? s.block * l.pitch_v : 2 * square_bytes;
      l.total = l.buffer_bytes = l.v_at + last;
    } else if (s.transposed_depth > 0) {
      // The rows have been read when the probabilities come, and these take their place.
      const int rows = l.out_at > 2 * square_bytes ? l.out_at : 2 * square_bytes;
      const int bytes = (algorithm::transposed_row(s.head_dim, s.block, s.transposed_depth) + 15) /
                        16 * 16,
                bytes_v =
                    (algorithm::transposed_row(s.head_dim_v, s.block, s.transposed_depth) + 15) /
                    16 * 16;
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
