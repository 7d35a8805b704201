// Gradients without matrix instructions: any dtype, any head_dim, any chip. A workgroup of 16 x 16
// lanes owns kBlockM rows of one head, which are queries (dq, dbias) or keys (dk, dv), and goes
// over the other side's rows, the columns; a lane computes every 16th row, and of each every 16th
// column, or runs of dims, from tiles in LDS (tile/square.h):
//
//   for each column tile:  S = q.k, D = dout.v      by chunks of kChunk dims
//                          P and dS                  in registers, then to LDS one after the other
//                          dq += dS k  |  dv += P^T dout, dk += dS^T q     by chunks of kChunk dims
//
// dbias: a workgroup owns one tile of it and goes over what it is summed over instead.
#include "backward/parts/bias.h"
#include "backward/parts/square_products.h"

namespace fulmen::kernels {

static_assert(kGivesOneSide, "backward_portable: rows are queries or keys");

static_assert(kLdsBytes == kLayout.total,
              "backward_portable: the host reserves the LDS that the tiles need");

// sum += weights . columns, where the weights are a lane's own; keys that no query of the tile
// attends are taken for 0.
template <bool kMasked, int kCount, class Alive>
FULMEN_DEVICE void accumulate(const RowsByColumns& weight, const TensorRows& other,
                              RowRange columns, const Alive& alive, RowsByDims<kCount>& sum) {
  barrier();  // the last weights are read by now
#pragma unroll
  for (int r = 0; r < kRows; ++r) store_weights<RoundedPair>(kLayout.weights_at, r, weight[r]);
#pragma unroll
  for (int chunk = 0; chunk < kCount; ++chunk) {
    if (chunk > 0) barrier();
    stage_values<kMasked>(other.at(columns, kBlockN), chunk * kChunk, other.dims,
                          kLayout.columns_at, alive);
    barrier();
    accumulate_chunk(kLayout.weights_at, kLayout.columns_at, chunk, sum);
  }
}

// P, or dbias's terms, and dS of a tile of rows and columns of one query head.
template <bool kMasked>
FULMEN_DEVICE void tile_gradients(const BackwardArguments& a, Int64 batch, int head,
                                  const SquareSide& own, RowRange rows, const SquareSide& other,
                                  RowRange columns, RowsByColumns& p, RowsByColumns& ds) {
  multiply<kLayout.first_pitch, kMasked>(own.first, rows, 0, other.first, columns, kChunks, p);
  if constexpr (kNeedsDout)
    multiply<kLayout.second_pitch, kMasked>(own.second, rows, kLayout.second_at, other.second,
                                            columns, kChunksV, ds);
  to_gradients<kMasked>(a, batch, head, rows, columns.first, p, ds);
}

// Returns true if every row of a tile meets every column.
FULMEN_DEVICE bool is_whole(const algorithm::Band& band, RowRange rows, Int64 first_column) {
  const algorithm::KeyRange all = band.all(rows.first, rows.first + kBlockM);
  return rows.first + kBlockM <= rows.end && first_column >= all.begin &&
         first_column + kBlockN <= all.end;
}

template <int kCount>
FULMEN_DEVICE void store_rows(const View& view, Int64 batch, int head, RowRange rows, int dims,
                              float factor, const RowsByDims<kCount>& sum) {
  const int count = at_most(rows.end - rows.first, kBlockM) - lane_row();
  auto* row = const_cast<Element*>(at<Element>(view, batch, rows.first + lane_row(), head));
#pragma unroll
  for (int r = 0; r < kRows; ++r, row += kSide * view.row) {
    if (kSide * r >= count) continue;
#pragma unroll
    for (int chunk = 0; chunk < kCount; ++chunk) {
      float x[kChunkDims];
#pragma unroll
      for (int e = 0; e < kChunkDims; ++e) x[e] = sum[r][chunk][e] * factor;
      store_dims(row, chunk * kChunk + kChunkDims * lane_column(), dims, x);
    }
  }
}

// The sums of a workgroup's rows.
struct SquareSums {
  RowsByDims<kGivesFirst ? kChunks : 1> first;
  RowsByDims<kGivesDv ? kChunksV : 1> second;
};

template <bool kMasked>
FULMEN_DEVICE void add_tile(const BackwardArguments& a, Int64 batch, int head, RowRange rows,
                            RowRange columns, SquareSums& sums) {
  const SquareSide own = SquareSide::rows(a, batch, head),
                   other = SquareSide::columns(a, batch, head);
  RowsByColumns p = {}, ds = {};
  tile_gradients<kMasked>(a, batch, head, own, rows, other, columns, p, ds);
  const Int64 row_end = rows.first + kBlockM < rows.end ? rows.first + kBlockM : rows.end;
  // A mask as bits may keep a key behind the last for other rows: that repeats the last one.
  const auto alive = [&](int n) {
    return kRowsAreKeys || ((!kMaskBits || columns.first + n < columns.end) &&
                            any_row_keeps(a, batch, head, rows.first, row_end, columns.first + n));
  };
  if constexpr (kGivesFirst) accumulate<kMasked>(ds, other.first, columns, alive, sums.first);
  if constexpr (kGivesDv) accumulate<kMasked>(p, other.second, columns, alive, sums.second);
}

// dq, or dk and dv.
FULMEN_DEVICE void gradients_of_rows(const BackwardArguments& call) {
  // No launch has more than 2^31 - 1 workgroups, and divisions of 64 bits take long.
  const auto id = static_cast<unsigned>(workgroup_id()),
             tiles = static_cast<unsigned>(
                 tiles_of(kRowsAreKeys ? call.seqlen_k : call.seqlen_q, kBlockM)),
             heads = static_cast<unsigned>(kRowsAreKeys ? call.num_kv_heads : call.num_heads);
  // Under a causal mask the last queries, and the first keys, have most to do: they start first.
  const Int64 tile = kRowsAreKeys ? id % tiles : tiles - 1 - id % tiles;
  const int row_head = static_cast<int>(id / tiles % heads),
            batch = static_cast<int>(id / tiles / heads);
  const BackwardArguments& a = sequence_of(call, batch);
  const RowRange rows{tile * kBlockM, kRowsAreKeys ? a.seqlen_k : a.seqlen_q};
  if (kVariable && rows.first >= rows.end) return;
  const Int64 row_end = rows.first + kBlockM < rows.end ? rows.first + kBlockM : rows.end;
  const algorithm::KeyRange range =
      met_columns(a, column_band(a), batch, row_head, rows.first, row_end);

  const int first_head = kRowsAreKeys ? row_head * a.group_size : row_head;
  const int last_head = kRowsAreKeys ? first_head + a.group_size : first_head + 1;
  stage_staying_rows(SquareSide::rows(a, batch, first_head), rows);
  SquareSums sums = {};
  for (int head = first_head; head < last_head; ++head) {
    for (Int64 column = range.begin; column < range.end; column += kBlockN) {
      // They need not stay in registers.
      const BackwardArguments& now = sequence_of(reload(call, column), batch);
      const RowRange columns{column, range.end};
      if (is_whole(column_band(now), rows, column)) {
        add_tile<false>(now, batch, head, rows, columns, sums);
      } else {
        add_tile<true>(now, batch, head, rows, columns, sums);
      }
    }
  }
  const BackwardArguments& last = sequence_of(reload(call, rows.first), batch);
  const RowRange stored{rows.first, kRowsAreKeys ? last.seqlen_k : last.seqlen_q};
  if constexpr (kGivesDq)
    store_rows(last.dq, batch, row_head, stored, last.head_dim, last.softmax_scale, sums.first);
  if constexpr (kGivesDk)
    store_rows(last.dk, batch, row_head, stored, last.head_dim, last.softmax_scale, sums.first);
  if constexpr (kGivesDv)
    store_rows(last.dv, batch, row_head, stored, last.head_dim_v, 1.0F, sums.second);
}

// dbias: one tile of it, and of what it is summed over one part.
FULMEN_DEVICE void gradients_of_bias(const BackwardArguments& call) {
  const Int64 id = workgroup_id(), column_tiles = tiles_of(call.seqlen_k, kBlockN),
              tile = id / column_tiles;
  const Int64 first_column = id % column_tiles * kBlockN;
  const BiasSum sum(call, kBlockM, tile);
  RowsByColumns total = {};
  for (Int64 term = sum.first_term; term < sum.last_term; ++term) {
    const BackwardArguments& a = reload(call, term);
    const BiasSum::Term t = sum.term(term);
    const Int64 row_end = t.row + kBlockM < a.seqlen_q ? t.row + kBlockM : a.seqlen_q;
    const algorithm::KeyRange keys = band_of(a).any(t.row, row_end);
    if (keys.end <= first_column || keys.begin >= first_column + kBlockN) continue;
    const RowRange rows{t.row, a.seqlen_q}, columns{first_column, a.seqlen_k};
    const SquareSide own = SquareSide::rows(a, t.batch, t.head),
                     other = SquareSide::columns(a, t.batch, t.head);
    barrier();  // the last term's rows are read by now
    stage_staying_rows(own, rows);
    RowsByColumns dbias = {}, ds = {};
    if (is_whole(band_of(a), rows, first_column)) {
      tile_gradients<false>(a, t.batch, t.head, own, rows, other, columns, dbias, ds);
    } else {
      tile_gradients<true>(a, t.batch, t.head, own, rows, other, columns, dbias, ds);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) total[r][c] += dbias[r][c];
    }
  }
  const BackwardArguments& last = reload(call, id);
  const BiasSum stored(last, kBlockM, tile);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Int64 j = first_column + lane_column() + kSide * c;
      if (j < last.seqlen_k) stored.store(last, lane_row() + kSide * r, j, total[r][c]);
    }
  }
}

FULMEN_DEVICE void backward_portable(const BackwardArguments& a) {
  if constexpr (kGivesDbias) {
    gradients_of_bias(a);
  } else {
    gradients_of_rows(a);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_portable)
