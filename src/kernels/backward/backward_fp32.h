// Gradients of fp32 by matrix instructions of narrower numbers, as exact as fp32: operands are sums
// of parts (tile/fp32). As backward.h: a workgroup owns kBlockM rows of one head, a wave
// kFloatRowTiles x 16 of them, and goes over the other side's rows, the columns, which stream
// through LDS:
//
//           rows     columns  for each tile of kBlockN columns
//   dq      q, dout  k, v     S = q.k, D = dout.v, dS = P (D - delta)  dq += dS k
//   dk, dv  k, v     q, dout  the same transposed: a lane owns a key   dv += P^T dout, dk += dS^T q
//
// Nothing is added by atomics.
#include "backward/parts/fp32_rows.h"
#include "backward/parts/stored_bias.h"

namespace fulmen::kernels {

struct FloatBackwardTask : BackwardTask {
  template <bool kMasked, bool kGuarded>
  FULMEN_DEVICE void step(const HeldPair& held, FloatGradients& sums, Int64 head,
                          Int64 first_column, int buffer, const TileStatistics& numbers) const {
    const int at = buffer * kFloatBackward.buffer_bytes;
    FloatScores score, gradient = {};
    multiply_columns<kGuarded>(held.first, at, score);
    if constexpr (kNeedsDout)
      multiply_columns<kGuarded>(held.second, at + kFloatBackward.second_at, gradient);
    const DropoutMask dropout(arguments, batch, head);
#pragma unroll
    for (int t = 0; t < kFloatRowTiles; ++t) {
      const Int64 first_row = wave_row + kScoreTile * t;
      const TileScores tile = tile_scores<kMasked>(head, first_row, first_column);
#pragma unroll
      for (int f = 0; f < kFloatColumnTiles; ++f) {
        const auto stays = staying(dropout, first_row, first_column + kScoreTile * f);
        float none[kElements];
        gradients<kMasked>(tile, kScoreTile * f,
                           at + kFloatBackward.numbers_at + 8 * kScoreTile * f, stays, numbers[t],
                           score[t][f], gradient[t][f], none);
        store_bias_gradient<kMasked>(*this, head, first_row, first_column + kScoreTile * f,
                                     gradient[t][f]);
      }
    }
    if constexpr (kGivesDv) {
      multiply_values<kGuarded>(
          sums.second, at + kFloatBackward.second_at + kFloatBackward.second.values_at, score);
    }
    if constexpr (kGivesFirst)
      multiply_values<kGuarded>(sums.first, at + kFloatBackward.first.values_at, gradient);
  }
  template <int kDims>
  FULMEN_DEVICE void store(const View& view, Int64 head, int dims, float factor,
                           const FloatSums<kDims>& sums) const {
#pragma unroll
    for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 i = wave_row + kScoreTile * t + tile_row(slot);
        if (i >= row_end) continue;
        sums.store(const_cast<float*>(at<float>(view, batch, i, head)), dims, t, slot, factor);
      }
    }
  }
};

// What a workgroup has to do: its rows, and the columns that they meet.
struct FloatBlock {
  Int64 batch, head, row_begin, row_end;
  algorithm::KeyRange attended;
  Int64 column_end;
  TileOrder order;
  Int64 first_head, last_head;  // of the query heads
};

// The main loop. kGuarded: infinities are looked for.
template <bool kGuarded>
FULMEN_DEVICE void over_columns(const BackwardArguments& a, const FloatBackwardTask& task,
                                const FloatBlock& block, const TileStatistics& numbers,
                                FloatGradients& sums) {
  sums = {};
  const TileOrder& order = block.order;
  if (order.count == 0) return;
  const HeldPair held = hold_pair(a, block.batch, block.head, block.row_begin, block.row_end);
  FloatColumns columns;
  // Starts the loads of tile n of a head, or, after its last, of the next head's first.
  const auto fetch = [&](Int64 head, int n, int buffer) {
    if (n == order.count) {
      ++head;
      n = 0;
    }
    if (head >= block.last_head) return;
    columns.fetch(a, block.batch, head, order.first_key(n), block.column_end, buffer, [&](Int64 j) {
      // A tile that begins before the band has columns that no row meets.
      if ((kDropout || kMaskBits) && kBand && (j < block.attended.begin || j >= block.attended.end))
        return false;
      return kRowsAreKeys ||
             any_row_attends(a, block.batch, head, block.row_begin, block.row_end, j);
    });
  };
  int buffer = 0;
  if constexpr (kFetchesColumnsEarly) fetch(block.first_head, 0, 0);
#pragma unroll 1
  for (Int64 head = block.first_head; head < block.last_head; ++head) {
#pragma unroll 1
    for (int n = 0; n < order.count; ++n) {
      if constexpr (!kFetchesColumnsEarly) {
        if constexpr (kCopiesToLds) barrier();  // the last tile is read by now
        fetch(head, n, buffer);
      }
      if constexpr (!kCopiesToLds && kBuffers == 1) barrier();
      columns.publish(buffer);
      barrier();
      const int next = kBuffers == 1 ? 0 : 1 - buffer;
      if constexpr (kFetchesColumnsEarly) fetch(head, n + 1, next);
      const Int64 first_column = order.first_key(n);
      if (n < order.masked || kRunsAgain<kGuarded>) {
        task.template step<true, kGuarded>(held, sums, head, first_column, buffer, numbers);
      } else {
        task.template step<kRunsAgain<kGuarded>, kGuarded>(held, sums, head, first_column, buffer,
                                                           numbers);
      }
      buffer = next;
    }
  }
}

FULMEN_DEVICE bool became_nan(FloatGradients& sums) {
  return (kGivesFirst && has_nan(sums.first)) || (kGivesDv && has_nan(sums.second));
}

FULMEN_DEVICE void backward_fp32(const BackwardArguments& call) {
  const Int64 id = workgroup_id();
  const Int64 tiles = tiles_of(kRowsAreKeys ? call.seqlen_k : call.seqlen_q, kBlockM);
  const Int64 heads = kRowsAreKeys ? call.num_kv_heads : call.num_heads,
              all_heads = heads * call.batch;
  // Under a causal mask the last queries, and the first keys, have most to do: they start first,
  // of every head.
  const Int64 nth = kBand ? id / all_heads : id % tiles,
              batch_head = kBand ? id % all_heads : id / tiles;
  const Int64 batch = batch_head / heads, head = batch_head % heads;
  const Int64 row_begin = (kRowsAreKeys || !kBand ? nth : tiles - 1 - nth) * kBlockM;
  const BackwardArguments& a = sequence_of(call, batch);
  const Int64 length = kRowsAreKeys ? a.seqlen_k : a.seqlen_q;
  if (row_begin >= length) return;
  const Int64 row_end = row_begin + kBlockM < length ? row_begin + kBlockM : length;
  const algorithm::Band band = column_band(a);
  const algorithm::KeyRange attended = met_columns(a, band, batch, head, row_begin, row_end),
                            any = tile_range(attended);
  const FloatBlock block{batch,
                         head,
                         row_begin,
                         row_end,
                         attended,
                         any.end,
                         TileOrder::of(any, whole_in_mask(band.all(row_begin, row_end), any)),
                         kRowsAreKeys ? head * a.group_size : head,
                         kRowsAreKeys ? (head + 1) * a.group_size : head + 1};
  const int wave = wave_id() * kFloatRowTiles * kScoreTile;
  const FloatBackwardTask task{{a, batch, band, row_begin + wave, row_end, 0, 0}};
  TileStatistics numbers = {};
  if constexpr (!kRowsAreKeys) load_statistics(a, batch, head, task.wave_row, numbers);

  FloatGradients sums;
  over_columns<kGuardsAlways>(a, task, block, numbers, sums);
  if constexpr (!kGuardsAlways) {
    if (any_wave(became_nan(sums))) over_columns<true>(a, task, block, numbers, sums);
  }
  if constexpr (kGivesDq) {
    finish_queries(task, head, numbers, sums.first);
    task.store(a.dq, head, a.head_dim, a.softmax_scale, sums.first);
  }
  if constexpr (kGivesDk) task.store(a.dk, head, a.head_dim, a.softmax_scale, sums.first);
  if constexpr (kGivesDv) task.store(a.dv, head, a.head_dim_v, 1.0F, sums.second);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_fp32)
