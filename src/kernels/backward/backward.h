// Gradients by matrix instructions. A workgroup owns kBlockM rows of one head, a wave kRowTiles x
// 16 of them, and goes over the other side's rows, the columns, which stream through LDS:
//
//           rows     columns  for each tile of kBlockN columns
//   dq      q, dout  k, v     S = q.k, D = dout.v, dS = P (D - delta)  dq += dS k
//   dk, dv  k, v     q, dout  the same transposed: a lane owns a key   dv += P^T dout, dk += dS^T q
//
// Where a wave's sums of all dims do not fit in registers, waves share rows and each has a part of
// the dims (backward/parts/shared_rows.h).
//
// dbias, where a tile of columns holds all keys: beside dq, a wave keeps the sum of its dS over
// what dbias is summed over.
//
// So what a lane holds of P and dS is what the next product takes from it, on every chip, and
// nothing is added by atomics.
#include "backward/parts/bias.h"
#include "backward/parts/shared_rows.h"
#include "backward/parts/stored_bias.h"
#include "backward/parts/tile.h"
#include "backward/parts/weight_lift.h"

namespace fulmen::kernels {

static_assert(kGivesOneSide && !kAddsDq, "backward: one side's gradients");
static_assert(kDimGroups == 1 || (kRowsInLds && !kGivesDbias && !(kGivesDk && kGivesDv)),
              "backward: waves that share rows read them from LDS, for one gradient");
static_assert(kDimGroups == 1 || (kRowTiles == 1 && kColumnTiles == 1),
              "backward: waves that share rows have a tile of 16 x 16, and meet once for each");
static_assert(kSharedRows.total == kLdsBytes,
              "backward: the host reserves the LDS that the tiles need");

// Sums of dout.v begin with what is subtracted from them, which dropout does to their multiples. On
// AMD, whose matrix instructions read what they add to from other registers: these hold it for all
// columns, unless a bias or the like needs them.
constexpr bool kStartsAtDelta = !kRowsAreKeys && !kDropout && kTransposedValues &&
                                kDimGroups == 1 && (kPlainScale || kHeadDim + kHeadDimV <= 128);

static_assert(kBlockN % kValueDepth == 0, "backward: columns are whole operands");

using BiasTiles = float[kRowTiles][kGivesDbias ? kColumnTiles : 1][kElements];

struct RowsTask : BackwardTask {
  template <bool kMasked>
  FULMEN_DEVICE void step(WaveRows& rows, BiasTiles& bias, Int64 head, Int64 first_column,
                          int buffer,
                          const RowStatistics (&numbers)[kRowTiles][kRowsPerLane]) const {
    const int at = buffer * kBackward.buffer_bytes;
    const DropoutMask dropout(arguments, batch, head);
    TileScores tile[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      tile[t] = tile_scores<kMasked>(head, wave_row + kScoreTile * t, first_column);
#pragma unroll
    for (int step = 0; step < kColumnTiles / kStepTiles; ++step) {
      float score[kStepTiles][kRowTiles][kElements] = {},
            gradient[kStepTiles][kRowTiles][kElements] = {};
#pragma unroll
      for (int n = 0; n < kStepTiles; ++n) {
        column_tile<kMasked>(rows, bias, tile, dropout, head, kStepTiles * step + n, first_column,
                             at, numbers, score[n], gradient[n]);
      }
      ProbabilityOperand p[kRowTiles], ds[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        p[t] = row_operand<Element>(score, t);
        ds[t] = row_operand<Element>(gradient, t);
      }
      if constexpr (kGivesDv) {
        const auto own = OwnDims<kHeadDimV, kScoreTile>::of_wave();
        const int values_at =
            at + own.bytes + (kCopiesValues ? kBackward.second_values_at : kBackward.second_at);
#pragma unroll
        for (int d = 0; d < kSecondTiles; ++d) {
          const ValueOperand values =
              column_values<kHeadDimV, kBackward.value_pitch>(values_at, step, own.operands + d);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t)
            multiply_output<Element>(rows.second_sum[t][d], p[t], values);
          if (kTightRegisters || d % 2 == 1) schedule_fence();
        }
      }
      if constexpr (kGivesFirst) {
        const auto own = OwnDims<kHeadDim, kScoreTile>::of_wave();
        const int values_at = at + own.bytes + (kCopiesValues ? kBackward.first_values_at : 0);
#pragma unroll
        for (int d = 0; d < kFirstTiles; ++d) {
          const ValueOperand values =
              column_values<kHeadDim, kBackward.value_pitch>(values_at, step, own.operands + d);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t)
            multiply_output<Element>(rows.first_sum[t][d], ds[t], values);
          if (kTightRegisters || d % 2 == 1) schedule_fence();
        }
      }
    }
  }

 private:
  using Tiles = float[kRowTiles][kElements];

  // q.k and dout.v of column tile f.
  FULMEN_DEVICE void multiply_both(const WaveRows& rows, int at, int f, Tiles& score,
                                   Tiles& gradient) const {
    const auto first = OwnDims<kHeadDim, kMmaK>::of_wave();
    multiply<kFirstMmaSteps>(rows.first, wave_first_at + first.bytes,
                             at + first.bytes + kScoreTile * f * kBackward.first_pitch, score,
                             first.operands);
    if constexpr (kNeedsDout) {
      const auto second = OwnDims<kHeadDimV, kMmaK>::of_wave();
      multiply<kSecondMmaSteps>(
          rows.second, wave_second_at + second.bytes,
          at + kBackward.second_at + second.bytes + kScoreTile * f * kBackward.second_pitch,
          gradient, second.operands);
    }
    if constexpr (kDimGroups > 1) {
      ScoreParts::leave(true, score[0]);
      if constexpr (kNeedsDout) ScoreParts::leave(false, gradient[0]);
      ScoreParts::meet();
      ScoreParts::sum(true, score[0]);
      if constexpr (kNeedsDout) ScoreParts::sum(false, gradient[0]);
    }
  }

  // Probabilities and scores' gradients of column tile f, in place of zeros.
  template <bool kMasked>
  FULMEN_DEVICE void column_tile(const WaveRows& rows, BiasTiles& bias,
                                 const TileScores (&tile)[kRowTiles], const DropoutMask& dropout,
                                 Int64 head, int f, Int64 first_column, int at,
                                 const RowStatistics (&numbers)[kRowTiles][kRowsPerLane],
                                 Tiles& score, Tiles& gradient) const {
    if constexpr (kStartsAtDelta) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) gradient[t][e] = -numbers[t][row_slot(e)].delta;
      }
    }
    multiply_both(rows, at, f, score, gradient);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      RowStatistics rest[kRowsPerLane];
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        rest[slot] = numbers[t][slot];
        if constexpr (kStartsAtDelta) rest[slot].delta = 0;
      }
      const auto stays = staying(dropout, wave_row + kScoreTile * t, first_column + kScoreTile * f);
      gradients<kMasked>(tile[t], kScoreTile * f, at + kBackward.numbers_at + 8 * kScoreTile * f,
                         stays, rest, score[t], gradient[t], bias[t][kGivesDbias ? f : 0]);
      store_bias_gradient<kMasked>(*this, head, wave_row + kScoreTile * t,
                                   first_column + kScoreTile * f, gradient[t]);
      if constexpr (kGivesDv) lift(score[t], weight_lift(arguments));
    }
  }
};

FULMEN_DEVICE void load_rows(const BackwardArguments& a, const Side& side, Int64 row_begin,
                             Int64 row_end, WaveRows& rows) {
  const auto any = [](Int64) { return true; };
  // Where they do not stay they pass through the columns' place, one tensor after the other.
  const int first_at = kRowsInLds ? kBackward.first_rows_at : 0,
            second_at = kRowsInLds ? kBackward.second_rows_at : 0;
  load_tensor<kFirstMmaSteps>(side.first, side.first_stride, a.head_dim, row_begin, row_end,
                              first_at, rows.first, any);
  if constexpr (kNeedsDout) {
    load_tensor<kSecondMmaSteps>(side.second, side.second_stride, a.head_dim_v, row_begin, row_end,
                                 second_at, rows.second, any);
  }
}

using TileStatistics = RowStatistics[kRowTiles][kRowsPerLane];
FULMEN_DEVICE void load_statistics(const BackwardArguments& a, Int64 batch, Int64 head,
                                   Int64 first_row, TileStatistics& numbers) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      numbers[t][slot] =
          RowStatistics::of(a, batch, head, first_row + kScoreTile * t + tile_row(slot));
    }
  }
}

// The arguments of a batch element's sequence. Where dbias is wanted, all sequences have one
// length.
FULMEN_DEVICE decltype(auto) arguments_of(const BackwardArguments& call, Int64 batch) {
  if constexpr (kGivesDbias) {
    return (call);
  } else {
    return sequence_of(call, batch);
  }
}

FULMEN_DEVICE Int64 end_of_rows(const BackwardArguments& a, Int64 row_begin) {
  const Int64 length = kRowsAreKeys ? a.seqlen_k : a.seqlen_q;
  return row_begin + kBlockM < length ? row_begin + kBlockM : length;
}

// The columns of whole tiles that rows attend.
FULMEN_DEVICE algorithm::KeyRange columns_in_tiles(const BackwardArguments& a,
                                                   const algorithm::KeyRange& attended) {
  const algorithm::KeyRange any = tile_range(attended);
  // One tile of all keys: masked wherever the band, or the end, lies in it.
  return kGivesDbias && any.end > any.begin ? algorithm::KeyRange{0, a.seqlen_k} : any;
}
FULMEN_DEVICE TileOrder order_of_columns(const BackwardArguments& a, const algorithm::Band& band,
                                         const algorithm::KeyRange& any, Int64 row_begin,
                                         Int64 row_end) {
  const algorithm::KeyRange whole =
      kGivesDbias ? algorithm::KeyRange{} : whole_in_mask(band.all(row_begin, row_end), any);
  return TileOrder::of(any, kGivesDbias && !kBand && a.seqlen_k == kBlockN ? any : whole);
}

// Arguments again, tables of lengths, too: they need not stay in registers over the loop.
FULMEN_DEVICE void store_gradients(const BackwardArguments& call, Int64 batch, Int64 head,
                                   Int64 row_begin, const RowsTask& task, const WaveRows& rows) {
  const BackwardArguments& a = arguments_of(reload(call, row_begin), batch);
  const BackwardTask stored{a, batch, task.band, task.wave_row, end_of_rows(a, row_begin), 0, 0};
  const int part = part_of_dims(), first = kFirstTiles * part, second = kSecondTiles * part;
  if constexpr (kGivesDq)
    stored.store(a.dq, head, first, a.head_dim, a.softmax_scale, rows.first_sum);
  if constexpr (kGivesDk)
    stored.store(a.dk, head, first, a.head_dim, a.softmax_scale, rows.first_sum);
  if constexpr (kGivesDv)
    stored.store(a.dv, head, second, a.head_dim_v, undone_lift(a), rows.second_sum);
}

// dq, or dk and dv, of kBlockM rows of one head. call: the kernel's arguments.
FULMEN_DEVICE void gradients_of_rows(const BackwardArguments& call, Int64 batch, Int64 row_head,
                                     Int64 row_begin, BiasTiles& bias) {
  const BackwardArguments& a = arguments_of(call, batch);
  const Int64 row_end = end_of_rows(a, row_begin);
  if (kVariable && row_begin >= row_end) return;
  const algorithm::Band band = column_band(a);
  const algorithm::KeyRange attended = met_columns(a, band, batch, row_head, row_begin, row_end),
                            any = columns_in_tiles(a, attended);
  const TileOrder order = order_of_columns(a, band, any, row_begin, row_end);
  const Int64 column_end = any.end;

  const Side own =
      kRowsAreKeys ? Side::keys(a, batch, row_head) : Side::queries(a, batch, row_head);
  const int wave = row_group() * kRowTiles * kScoreTile;
  const RowsTask task{{a, batch, band, row_begin + wave, row_end,
                       kBackward.first_rows_at + wave * kBackward.first_pitch,
                       kBackward.second_rows_at + wave * kBackward.second_pitch}};
  WaveRows rows = {};
  TileStatistics numbers = {};
  if constexpr (!kRowsAreKeys) load_statistics(a, batch, row_head, task.wave_row, numbers);
  const Int64 first_head = kRowsAreKeys ? row_head * a.group_size : row_head;
  const Int64 last_head = kRowsAreKeys ? first_head + a.group_size : first_head + 1;
  Columns columns;
  // Starts the loads of tile n of a head, or, after its last, of the next head's first.
  const auto fetch = [&](Int64 head, int n, int buffer) {
    if (n == order.count) {
      ++head;
      n = 0;
    }
    if (head >= last_head) return;
    const Side side = kRowsAreKeys ? Side::queries(a, batch, head)
                                   : Side::keys(a, batch, row_head / a.group_size);
    columns.fetch(a, side, batch, head, order.first_key(n), column_end, buffer, [&](Int64 j) {
      // A tile that begins before the band has columns that no row meets.
      if ((kGivesDbias || kDropout || kMaskBits) && kBand &&
          (j < attended.begin || j >= attended.end))
        return false;
      return kRowsAreKeys || any_row_attends(a, batch, head, row_begin, row_end, j);
    });
  };
  int buffer = 0;
  // The tile in flight becomes the current one.
  const auto arrive = [&](Int64 head, int n) {
    if constexpr (kBuffers == 1 && !kCopiesToLds) barrier();  // the last tile is read by now
    if constexpr (kFetchLate) fetch(head, n, buffer);
    columns.publish(buffer);
    barrier();
    if constexpr (kFetchEarly) fetch(head, n + 1, kBuffers == 1 ? 0 : 1 - buffer);
  };
  const auto leave = [&](Int64 head, int n) {
    if constexpr (!kFetchEarly && !kFetchLate) {
      barrier();
      fetch(head, n + 1, 0);
    }
    buffer = kBuffers == 1 ? 0 : 1 - buffer;
  };
  if (order.count > 0) {
    load_rows(a, own, row_begin, row_end, rows);
    if constexpr (!kFetchLate) fetch(first_head, 0, 0);
    for (Int64 head = first_head; head < last_head; ++head) {
      int n = 0;
      for (; n < order.masked; ++n) {
        arrive(head, n);
        task.step<true>(rows, bias, head, order.first_key(n), buffer, numbers);
        leave(head, n);
      }
      for (; n < order.count; ++n) {
        arrive(head, n);
        task.step<false>(rows, bias, head, order.first_key(n), buffer, numbers);
        leave(head, n);
      }
    }
  }
  if constexpr (kGivesDq) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      finish_queries(task, row_head, task.wave_row + kScoreTile * t, numbers[t], rows.first_sum[t]);
  }
  store_gradients(call, batch, row_head, row_begin, task, rows);
}

FULMEN_DEVICE void backward(const BackwardArguments& call) {
  const Int64 id = workgroup_id();
  BiasTiles bias = {};
  if constexpr (kGivesDbias) {
    const BackwardArguments& a = call;  // dbias: sequences all have one length
    const BiasSum sum(a, kBlockM, id);
    for (Int64 n = sum.first_term; n < sum.last_term; ++n) {
      const BiasSum::Term term = sum.term(n);
      barrier();  // the tiles of the term before are read by now
      gradients_of_rows(reload(call, n), term.batch, term.head, term.row, bias);
    }
    const BackwardArguments& last = reload(call, id);
    const BiasSum stored(last, kBlockM, id);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int f = 0; f < kColumnTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int row = (wave_id() * kRowTiles + t) * kScoreTile + tile_row(row_slot(e)),
                    j = kScoreTile * f + tile_column(e);
          if (j < last.seqlen_k) stored.store(last, row, j, bias[t][f][e]);
        }
      }
    }
  } else {
    const Int64 tiles = tiles_of(kRowsAreKeys ? call.seqlen_k : call.seqlen_q, kBlockM);
    const Int64 heads = kRowsAreKeys ? call.num_kv_heads : call.num_heads,
                all_heads = heads * call.batch;
    // Under a causal mask the last queries, and the first keys, have most to do: they start first,
    // of every head.
    const Int64 nth = kBand ? id / all_heads : id % tiles,
                batch_head = kBand ? id % all_heads : id / tiles;
    const Int64 row_begin = (kRowsAreKeys || !kBand ? nth : tiles - 1 - nth) * kBlockM;
    gradients_of_rows(call, batch_head / heads, batch_head % heads, row_begin, bias);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward)
