// Gradients without matrix instructions: any dtype (computed in fp32), any head_dim, any chip. A
// workgroup of 16 x 16 lanes owns kBlockM rows of one head, which are queries (dq, dbias) or keys
// (dk, dv), and goes over the other side's rows, the columns; lane (y, x) computes rows y + 16 r
// and columns, or dims, x + 16 c, from tiles in LDS:
//
//   for each column tile:  S = q.k, D = dout.v      by chunks of kChunk dims
//                          P and dS                  to LDS
//                          dq += dS k  |  dv += P^T dout, dk += dS^T q     by chunks of kChunk dims
//
// dbias: a workgroup owns one tile of it and goes over what it is summed over instead.
#include "backward/parts/bias.h"
#include "backward/parts/scores.h"
#include "tile/square.h"

namespace fulmen::kernels {

constexpr int kRows = kBlockM / kSide;
constexpr int kColumns = kBlockN / kSide;
constexpr int kChunks = (kHeadDim + kChunk - 1) / kChunk;
constexpr int kChunksV = (kHeadDimV + kChunk - 1) / kChunk;
static_assert(kGivesOneSide, "backward_portable: rows are queries or keys");
static_assert(kWorkgroup == kSide * kSide, "backward_portable: lanes form a square of 16 x 16");

// LDS, in floats.
constexpr int kRowsAt = 0;  // [kChunk][kPitch], transposed
// [kChunk][kPitch], transposed; then [kBlockN][kChunk + 1]
constexpr int kColumnsAt = kRowsAt + kChunk * kPitch;
constexpr int kWeightsAt = kColumnsAt + (kChunk + 1) * kPitch;      // P [kBlockM][kBlockN + 1]
constexpr int kGradientsAt = kWeightsAt + kBlockM * (kBlockN + 1);  // dS
constexpr int kLdsFloats = kGradientsAt + kBlockM * (kBlockN + 1);
static_assert(kLdsBytes == 4 * kLdsFloats,
              "backward_portable: the host reserves the LDS that the tiles need");

using RowsByColumns = float[kRows][kColumns];

// product += rows . columns over all dims.
FULMEN_DEVICE void multiply(const Element* rows, Int64 row_stride, RowRange row_range,
                            const Element* columns, Int64 column_stride, RowRange column_range,
                            int chunks, int dims, RowsByColumns& product) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    barrier();
    stage<kBlockM>(rows, row_stride, row_range, chunk * kChunk, dims, kRowsAt, 1, kPitch);
    stage<kBlockN>(columns, column_stride, column_range, chunk * kChunk, dims, kColumnsAt, 1,
                   kPitch);
    barrier();
    for (int d = 0; d < kChunk; ++d) {
      float row[kRows], column[kColumns];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        row[r] = lds_float(kRowsAt + d * kPitch + lane_row() + kSide * r);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        column[c] = lds_float(kColumnsAt + d * kPitch + lane_column() + kSide * c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) product[r][c] += row[r] * column[c];
      }
    }
  }
}

// sum += factors . columns, where the factors are in LDS and the columns' rows are [column][dim];
// keys that no query of the tile attends are taken for 0.
template <int kChunkCount, class Alive>
FULMEN_DEVICE void accumulate(int factors_at, const Element* columns, Int64 stride, RowRange range,
                              int dims, const Alive& alive,
                              float (&sum)[kRows][kChunkCount][kChunkDims]) {
#pragma unroll
  for (int chunk = 0; chunk < kChunkCount; ++chunk) {
    barrier();
    for (int index = thread_id(); index < kBlockN * kChunk; index += kWorkgroup) {
      const int row = index / kChunk, d = index % kChunk;
      const Int64 r = range.first + row;
      float value = 0;
      if (r < range.end && chunk * kChunk + d < dims && alive(r))
        value = to_float(global_load(columns + r * stride + chunk * kChunk + d));
      set_lds_float(kColumnsAt + row * (kChunk + 1) + d, value);
    }
    barrier();
    for (int j = 0; j < kBlockN; ++j) {
      float factor[kRows], value[kChunkDims];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        factor[r] = lds_float(factors_at + (lane_row() + kSide * r) * (kBlockN + 1) + j);
#pragma unroll
      for (int c = 0; c < kChunkDims; ++c)
        value[c] = lds_float(kColumnsAt + j * (kChunk + 1) + lane_column() + kSide * c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kChunkDims; ++c) sum[r][chunk][c] += factor[r] * value[c];
      }
    }
  }
}

// P and dS of a tile of rows and columns of one query head; what(r, c, gradient) takes them.
template <class What>
FULMEN_DEVICE void tile_gradients(const BackwardArguments& a, Int64 batch, Int64 head,
                                  RowRange rows, RowRange columns, const What& what) {
  const Side queries = Side::queries(a, batch, head),
             keys = Side::keys(a, batch, head / a.group_size);
  const Side& row_side = kRowsAreKeys ? keys : queries;
  const Side& column_side = kRowsAreKeys ? queries : keys;
  RowsByColumns dot = {}, dprobability = {};
  multiply(row_side.first, row_side.first_stride, rows, column_side.first, column_side.first_stride,
           columns, kChunks, a.head_dim, dot);
  if constexpr (kNeedsDout) {
    multiply(row_side.second, row_side.second_stride, rows, column_side.second,
             column_side.second_stride, columns, kChunksV, a.head_dim_v, dprobability);
  }
  DropoutMask dropout(a, batch, head);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Int64 row = rows.first + lane_row() + kSide * r,
                  column = columns.first + lane_column() + kSide * c;
      const Int64 i = kRowsAreKeys ? column : row, j = kRowsAreKeys ? row : column;
      bool attended = i < a.seqlen_q && in_band(a, i, j);
      // A query without any key has no gradient, whatever its dout holds, which may reach dk and dv
      // alone.
      if constexpr (!kRowsAreKeys)
        attended = attended && RowStatistics::of(a, batch, head, i).has_keys();
      const ScoreInputs inputs =
          ScoreInputs::of(a, batch, head, attended ? i : 0, attended ? j : 0);
      const RowStatistics numbers = RowStatistics::of(a, batch, head, i);
      const auto keeps = [&] { return dropout.keeps(i, j); };
      const float share = RowShares::load(inputs.share, numbers.offset);
      what(r, c,
           score_gradient(a, inputs, numbers, dot[r][c], dprobability[r][c], attended, keeps,
                          share));
    }
  }
}

template <int kChunkCount>
FULMEN_DEVICE void store_rows(const View& view, Int64 batch, Int64 head, RowRange rows, int dims,
                              float factor, const float (&sum)[kRows][kChunkCount][kChunkDims]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Int64 i = rows.first + lane_row() + kSide * r;
    if (i >= rows.end) continue;
    auto* row = const_cast<Element*>(at<Element>(view, batch, i, head));
#pragma unroll
    for (int chunk = 0; chunk < kChunkCount; ++chunk) {
#pragma unroll
      for (int c = 0; c < kChunkDims; ++c) {
        const int d = chunk * kChunk + lane_column() + kSide * c;
        if (d < dims) global_store(row + d, from_float<Element>(sum[r][chunk][c] * factor));
      }
    }
  }
}

// dq, or dk and dv.
FULMEN_DEVICE void gradients_of_rows(const BackwardArguments& call) {
  const Int64 id = workgroup_id();
  const Int64 tiles = tiles_of(kRowsAreKeys ? call.seqlen_k : call.seqlen_q, kBlockM);
  const int heads = kRowsAreKeys ? call.num_kv_heads : call.num_heads;
  // Under a causal mask the last queries, and the first keys, have most to do: they start first.
  const Int64 tile = kRowsAreKeys ? id % tiles : tiles - 1 - id % tiles;
  const Int64 row_head = id / tiles % heads, batch = id / tiles / heads;
  const BackwardArguments& a = sequence_of(call, batch);
  const RowRange rows{tile * kBlockM, kRowsAreKeys ? a.seqlen_k : a.seqlen_q};
  if (kVariable && rows.first >= rows.end) return;
  const Int64 row_end = rows.first + kBlockM < rows.end ? rows.first + kBlockM : rows.end;
  const algorithm::Band band = column_band(a);
  const algorithm::KeyRange range = band.any(rows.first, row_end);
  constexpr int kFirstChunks = kGivesFirst ? kChunks : 1, kSecondChunks = kGivesDv ? kChunksV : 1;
  float first[kRows][kFirstChunks][kChunkDims] = {}, second[kRows][kSecondChunks][kChunkDims] = {};

  const Int64 first_head = kRowsAreKeys ? row_head * a.group_size : row_head;
  const Int64 last_head = kRowsAreKeys ? first_head + a.group_size : first_head + 1;
  for (Int64 head = first_head; head < last_head; ++head) {
    const Side side =
        kRowsAreKeys ? Side::queries(a, batch, head) : Side::keys(a, batch, head / a.group_size);
    for (Int64 column = range.begin; column < range.end; column += kBlockN) {
      const RowRange columns{column, range.end};
      barrier();  // the last tile's factors are read by now
      tile_gradients(a, batch, head, rows, columns, [&](int r, int c, const ScoreGradient& g) {
        const int at = (lane_row() + kSide * r) * (kBlockN + 1) + lane_column() + kSide * c;
        if constexpr (kGivesDv) set_lds_float(kWeightsAt + at, g.weight);
        if constexpr (kGivesFirst) set_lds_float(kGradientsAt + at, g.dot);
      });
      const auto alive = [&](Int64 j) {
        return kRowsAreKeys || any_row_keeps(a, batch, head, rows.first, row_end, j);
      };
      if constexpr (kGivesFirst)
        accumulate(kGradientsAt, side.first, side.first_stride, columns, a.head_dim, alive, first);
      if constexpr (kGivesDv)
        accumulate(kWeightsAt, side.second, side.second_stride, columns, a.head_dim_v, alive,
                   second);
    }
  }
  const BackwardArguments& last = sequence_of(reload(call, rows.first), batch);
  const RowRange stored{rows.first, kRowsAreKeys ? last.seqlen_k : last.seqlen_q};
  if constexpr (kGivesDq)
    store_rows(last.dq, batch, row_head, stored, last.head_dim, last.softmax_scale, first);
  if constexpr (kGivesDk)
    store_rows(last.dk, batch, row_head, stored, last.head_dim, last.softmax_scale, first);
  if constexpr (kGivesDv)
    store_rows(last.dv, batch, row_head, stored, last.head_dim_v, 1.0F, second);
}

// dbias: one tile of it, and of what it is summed over one part.
FULMEN_DEVICE void gradients_of_bias(const BackwardArguments& call) {
  const Int64 id = workgroup_id(), column_tiles = tiles_of(call.seqlen_k, kBlockN),
              tile = id / column_tiles;
  const RowRange columns{id % column_tiles * kBlockN, call.seqlen_k};
  const BiasSum sum(call, kBlockM, tile);
  RowsByColumns total = {};
  for (Int64 term = sum.first_term; term < sum.last_term; ++term) {
    const BackwardArguments& a = reload(call, term);
    const BiasSum::Term t = sum.term(term);
    const Int64 row_end = t.row + kBlockM < a.seqlen_q ? t.row + kBlockM : a.seqlen_q;
    const algorithm::KeyRange keys = band_of(a).any(t.row, row_end);
    if (keys.end <= columns.first || keys.begin >= columns.first + kBlockN) continue;
    tile_gradients(a, t.batch, t.head, RowRange{t.row, a.seqlen_q}, columns,
                   [&](int r, int c, const ScoreGradient& g) { total[r][c] += g.bias; });
  }
  const BackwardArguments& last = reload(call, id);
  const BiasSum stored(last, kBlockM, tile);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Int64 j = columns.first + lane_column() + kSide * c;
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
