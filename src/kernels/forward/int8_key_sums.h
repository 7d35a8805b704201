// Products in int8, first pass: what the mean of a head's keys, and their range about it, follow
// from.
//
//   sums[3, d] = sum, max and max of the negatives of k[part_rows, d]     a workgroup a part
//
// Keys that no query attends do not count.
#include "forward/parts/code_pieces.h"
#include "tile/int8.h"

namespace fulmen::kernels {

// 8 dims of some rows: a lane's.
struct PieceSums {
  float sum[8], most[8], most_negative[8];

  FULMEN_DEVICE void clear() {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      sum[e] = 0;
      most[e] = most_negative[e] = -kInfinity;
    }
  }
  // weight: 1, or 0 of a row that is there already.
  FULMEN_DEVICE void add(const Piece& piece, float weight) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float x = piece.number(e);
      sum[e] = fused(x, weight, sum[e]);
      most[e] = larger(most[e], x);
      most_negative[e] = larger(most_negative[e], -x);
    }
  }
};

FULMEN_DEVICE void int8_key_sums(const ForwardArguments& a) {
  constexpr int kPieces = kHeadDim / 8, kRows = kWorkgroup / kPieces, kAtOnce = 4;
  static_assert(kPieces <= kWorkgroup && kLdsBytes == key_sum_bytes(kWorkgroup),
                "int8: the host reserves the LDS that the sums need");
  const Int8Workspace w = int8_workspace(a);
  // Divisions of 64 bits take long.
  const auto id = static_cast<unsigned>(workgroup_id()), parts = static_cast<unsigned>(w.parts),
             kv_heads = static_cast<unsigned>(a.num_kv_heads), head = id / parts;
  const Int64 first = id % parts * w.part_rows;
  const algorithm::KeyRange keys = band_of(a).any(0, a.seqlen_q);
  const Int64 begin = first > keys.begin ? first : keys.begin,
              end = first + w.part_rows < keys.end ? first + w.part_rows : keys.end;
  const Element* const rows = at<Element>(a.k, head / kv_heads, 0, head % kv_heads);
  const int row = thread_id() / kPieces, dim = thread_id() % kPieces * 8;
  PieceSums mine;
  mine.clear();
#pragma unroll 1
  for (Int64 next = begin + row; row < kRows && next < end; next += kAtOnce * kRows) {
    Piece pieces[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      // Rows past the end repeat the last one.
      const Int64 at = next + n * kRows < end ? next + n * kRows : end - 1;
      pieces[n] = piece_of(rows, a.k.row, at, true, dim, a.head_dim);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) mine.add(pieces[n], next + n * kRows < end ? 1.0F : 0.0F);
  }
  // LDS: [kKeySums][kRows][kHeadDim].
  const auto place = [](int which, int of_row, int of_dim) {
    return 4 * ((which * kRows + of_row) * kHeadDim + of_dim);
  };
  if (row < kRows) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      lds_store(place(0, row, dim + e), mine.sum[e]);
      lds_store(place(1, row, dim + e), mine.most[e]);
      lds_store(place(2, row, dim + e), mine.most_negative[e]);
    }
  }
  barrier();
  for (int n = thread_id(); n < kKeySums * kHeadDim; n += kWorkgroup) {
    const int which = n / kHeadDim, of_dim = n % kHeadDim;
    float x = lds_load<float>(place(which, 0, of_dim));
    for (int r = 1; r < kRows; ++r) {
      const float y = lds_load<float>(place(which, r, of_dim));
      x = which == 0 ? x + y : larger(x, y);
    }
    global_store(int8_floats(a, w.sums) + Int64{id} * kKeySums * kHeadDim + n, x);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::int8_key_sums)
