// Forward without matrix instructions: any dtype, any head_dim, any chip. A workgroup of 16 x 16
// lanes owns kBlockM query rows of one head; a lane computes every 16th row of them, and of each
// every 16th key, or runs of dims, from tiles in LDS (tile/square.h):
//
//   for each key tile:   S[kBlockM, kBlockN] = Q K^T     by chunks of kChunk dims of K
//                        P = online softmax of S         in registers, then to LDS
//                        O[kBlockM, kHeadDimV] += P V    by chunks of kChunk dims of V
//
// Products are those of fp16 pairs where the chip has them, else of fp32.
#include "core/dropout.h"
#include "tile/kv_rows.h"
#include "tile/mask_span.h"
#include "tile/square_softmax.h"
#include "tile/square_stage.h"

namespace fulmen::kernels {

constexpr SquareLayout kLayout = SquareLayout::of(square_shape(false, 1));
static_assert(kLdsBytes == kLayout.total,
              "portable: the host reserves the LDS that the tiles need");

// Rows [row_begin, row_end) of a head.
struct PortableTask {
  const ForwardArguments& a;
  Int64 batch, head, row_begin, row_end;
  KvHead<false> k;  // of the KV head
  KvHead<true> v;
  algorithm::KeyRange keys;

  FULMEN_DEVICE void stage_queries(int chunk) const {
    const RowsAt<Element> rows{at<Element>(a.q, batch, row_begin, head), a.q.row,
                               at_most(row_end - row_begin, kBlockM) - 1};
    stage_rows<true, kBlockM>(rows, chunk * kChunk, a.head_dim,
                              kRowsStay ? 4 * kChunk / kInWord * chunk : 0, kLayout.first_pitch);
  }

  template <bool kMasked>
  FULMEN_DEVICE void step(Int64 first_key, DropoutMask& dropout, SquareRows& rows,
                          RowsByDims<kChunksV>& out) const {
    RowsByColumns score = {};
    const int last = at_most(keys.end - first_key, kBlockN) - 1;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      barrier();
      if constexpr (!kRowsStay) stage_queries(chunk);
      stage_tile_rows<kMasked>(first_key, last, chunk);
      barrier();
      multiply_chunk<kLayout.first_pitch>(kRowsStay ? 4 * kChunk / kInWord * chunk : 0,
                                          kLayout.columns_at, score);
    }
    const ScoreTile tile{a, batch, head, row_begin, row_end};
    tile.modify<kMasked>(first_key, score);
    rows.exponentiate(exponent_scale(a), score, [&](int r, float factor) {
#pragma unroll
      for (int chunk = 0; chunk < kChunksV; ++chunk) {
#pragma unroll
        for (float& x : out[r][chunk]) x *= factor;
      }
    });
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kDropout) drop(r, first_key, dropout, score[r]);
      store_weights<ProbabilityPair>(kLayout.weights_at, r, score[r]);
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunksV; ++chunk) {
      barrier();
      stage_tile_values<kMasked>(first_key, last, chunk);
      barrier();
      accumulate_chunk(kLayout.weights_at, kLayout.columns_at, chunk, out);
    }
  }

  FULMEN_DEVICE void store(const SquareRows& rows, const RowsByDims<kChunksV>& out) const {
    const Int64 i = row_begin + lane_row();
    const int count = at_most(row_end - row_begin, kBlockM) - lane_row();
    auto* row = const_cast<Element*>(at<Element>(a.out, batch, i, head));
    Int64 lse = batch * a.lse_batch + head * a.lse_head + i * a.lse_row;
#pragma unroll
    for (int r = 0; r < kRows; ++r, row += kSide * a.out.row, lse += kSide * a.lse_row) {
      const RowEnd end = rows.end(a, head, r);
      if (kSide * r >= count) continue;
#pragma unroll
      for (int chunk = 0; chunk < kChunksV; ++chunk) {
        float x[kChunkDims];
#pragma unroll
        for (int e = 0; e < kChunkDims; ++e) x[e] = out[r][chunk][e] * end.output_factor;
        store_dims(row, chunk * kChunk + kChunkDims * lane_column(), a.head_dim_v, x);
      }
      if (a.lse != nullptr && lane_column() == 0) global_store(a.lse + lse, end.lse);
    }
  }

 private:
  // Tiles with masks load the arguments again: the scalar registers would not do for all features.
  template <bool kMasked>
  FULMEN_DEVICE void stage_tile_rows(Int64 first_key, int last, int chunk) const {
    const ForwardArguments& now = kMasked ? again(a, first_key + chunk) : a;
    stage_rows<kMasked, kBlockN>(kv_rows<false>(now, k, first_key, last), chunk * kChunk,
                                 now.head_dim, kLayout.columns_at, kColumnPitch);
  }
  template <bool kMasked>
  FULMEN_DEVICE void stage_tile_values(Int64 first_key, int last, int chunk) const {
    const ForwardArguments& now = kMasked ? again(a, first_key + chunk) : a;
    // A mask as bits may keep a key behind the last for other rows: that repeats the last one.
    stage_values<kMasked>(kv_rows<true>(now, v, first_key, last), chunk * kChunk, now.head_dim_v,
                          kLayout.columns_at, [&](int n) {
                            return (!kMaskBits || n <= last) &&
                                   any_row_keeps(now, batch, head, row_begin, row_end,
                                                 first_key + n);
                          });
  }

  FULMEN_DEVICE void drop(int r, Int64 first_key, DropoutMask& dropout,
                          float (&p)[kColumns]) const {
    const Int64 i = row_begin + lane_row() + kSide * r;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (!dropout.keeps(i, first_key + lane_column() + kSide * c)) p[c] = 0;
    }
  }
};

FULMEN_DEVICE void portable(const ForwardArguments& call) {
  // No launch has more than 2^31 - 1 workgroups, and divisions of 64 bits take long.
  const auto id = static_cast<unsigned>(workgroup_id()),
             row_tiles = static_cast<unsigned>(call.row_tiles), batch_head = id / row_tiles;
  const auto num_heads = static_cast<unsigned>(call.num_heads);
  const int head = static_cast<int>(batch_head % num_heads),
            batch = static_cast<int>(batch_head / num_heads);
  // The last rows attend most keys under a causal mask: they start first.
  const Int64 tile = row_tiles - 1 - id % row_tiles;
  const ForwardArguments& a = sequence_of(call, batch);
  const int kv_head = head / a.group_size;
  const Int64 row_begin = tile * kBlockM;
  if (kVariable && row_begin >= a.seqlen_q) return;
  const Int64 row_end = row_begin + kBlockM < a.seqlen_q ? row_begin + kBlockM : a.seqlen_q;
  const algorithm::KeyRange keys = keys_in_mask(a, batch, head, row_begin, row_end,
                                                band_of(a).any(row_begin, row_end)),
                            whole = band_of(a).all(row_begin, row_end);
  const PortableTask task{a,
                          batch,
                          head,
                          row_begin,
                          row_end,
                          kv_head_of<false>(a, batch, kv_head),
                          kv_head_of<true>(a, batch, kv_head),
                          keys};

  DropoutMask dropout(a, batch, head);
  SquareRows rows;
  rows.clear();
  RowsByDims<kChunksV> out = {};
  if constexpr (kRowsStay) {
    for (int chunk = 0; chunk < kChunks; ++chunk) task.stage_queries(chunk);
  }
  // A bias has no rows past the end.
  const bool all_rows = !kBias || row_begin + kBlockM <= row_end;
  for (Int64 first_key = keys.begin; first_key < keys.end; first_key += kBlockN) {
    if (!kKeepMask && all_rows && first_key >= whole.begin && first_key + kBlockN <= whole.end) {
      task.step<kKeepMask>(first_key, dropout, rows, out);
    } else {
      task.step<true>(first_key, dropout, rows, out);
    }
  }
  task.store(rows, out);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::portable)
