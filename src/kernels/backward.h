// Gradients by matrix instructions. A workgroup owns kBlockM rows of one head, a wave kRowTiles x 16 of them, and goes over the
// other side's rows, the columns, which stream through LDS:
//
//              rows       columns    for each tile of kBlockN columns
//   dq         q, dout    k, v       S = q.k, D = dout.v, dS = P (D - delta)      dq += dS k
//   dk, dv     k, v       q, dout    the same transposed: a lane owns a key       dv += P^T dout, dk += dS^T q
//
// dbias, where a tile of columns holds all keys: beside dq, a wave keeps the sum of its dS over what dbias is summed over.
//
// So what a lane holds of P and dS is what the next product takes from it, on every chip, and nothing is added by atomics.
#include "backward_bias.h"
#include "backward_scores.h"
#include "layout.h"
#include "matrix.h"
#include "tile/columns.h"
#include "tile/order.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kRowTiles = kBlockM / (16 * kWaves);
constexpr int kColumnTiles = kBlockN / 16;
constexpr int kFirstDepths = kHeadDim / kDepth, kSecondDepths = kHeadDimV / kDepth;
constexpr int kFirstTiles = kGivesFirst ? kHeadDim / 16 : 1, kSecondTiles = kGivesDv ? kHeadDimV / 16 : 1;
constexpr bool kRowsInLds = kQueriesInLds;
// The next tile is on its way while one is computed; or waits until that is read, where copies write to the one buffer by
// themselves; or is fetched when it is needed, where registers are too few to hold it.
constexpr bool kFetchLate = !kCopiesToLds && FULMEN_VALUES_EARLY == 0;
constexpr bool kFetchEarly = !kFetchLate && (kBuffers == 2 || !kCopiesToLds);
// A wave's sums alone fill half the registers.
constexpr bool kTightRegisters = kRowTiles * ((kGivesFirst ? kFirstTiles : 0) + (kGivesDv ? kSecondTiles : 0)) * kElements >= 128;
static_assert(kBlockM == kRowTiles * 16 * kWaves, "backward: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % 16 == 0 && kHeadDim % kDepth == 0 && kHeadDimV % kDepth == 0, "backward: tiles are whole operands");

constexpr BackwardLayout kBackward =
    BackwardLayout::of({kTransposedValues, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kRowsInLds, kGivesFirst, kGivesDv});
static_assert(kBackward.total == kLdsBytes, "backward: the host reserves the LDS that the tiles need");

// The wave's rows and their gradients so far.
struct WaveRows {
  RowOperand first[kRowsInLds ? 1 : kRowTiles][kRowsInLds ? 1 : kFirstDepths];
  RowOperand second[kRowsInLds ? 1 : kRowTiles][kRowsInLds ? 1 : kSecondDepths];
  float first_sum[kRowTiles][kFirstTiles][kElements];
  float second_sum[kRowTiles][kSecondTiles][kElements];
};
using BiasTiles = float[kRowTiles][kGivesDbias ? kColumnTiles : 1][kElements];

// A tile of both tensors of the columns, and of the queries' numbers where they are the columns.
class Columns {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const BackwardArguments& a, const Side& side, Int64 batch, Int64 head, Int64 first, Int64 end,
                           int buffer, const Alive& alive) {
    const int at = buffer * kBackward.buffer_bytes;
    const auto tile_alive = [&](int row) { return alive(first + row); };
    first_.fetch(ColumnSource::of(side.first, side.first_stride, a.head_dim, first, end), at, at + kBackward.first_values_at,
                 kBackward.first_pitch, tile_alive);
    if constexpr (kNeedsDout || kGivesDv) {
      second_.fetch(ColumnSource::of(side.second, side.second_stride, a.head_dim_v, first, end), at + kBackward.second_at,
                    at + kBackward.second_values_at, kBackward.second_pitch, [](int) { return true; });
    }
    if constexpr (kRowsAreKeys) {
      if (thread_id() < kBlockN)
        numbers_ = RowNumbers::of(a, batch, head, first + thread_id() < end ? first + thread_id() : a.seqlen_q);
    }
#if defined(FULMEN_TARGET_SM80)
    copy_commit();
#endif
  }
  FULMEN_DEVICE void publish(int buffer) const {
    const int at = buffer * kBackward.buffer_bytes;
    first_.publish(at, at + kBackward.first_values_at, kBackward.first_pitch);
    if constexpr (kNeedsDout || kGivesDv) {
      second_.publish(at + kBackward.second_at, at + kBackward.second_values_at, kBackward.second_pitch);
    }
    if constexpr (kRowsAreKeys) {
      if (thread_id() < kBlockN) {
        lds_store(at + kBackward.numbers_at + 8 * thread_id(), numbers_.words());
      }
    }
#if defined(FULMEN_TARGET_SM80)
    copy_wait<0>();
#endif
  }

 private:
  ColumnTile<kHeadDim, kGivesFirst> first_;
  ColumnTile<kHeadDimV, kGivesDv> second_;
  RowNumbers numbers_;
};

FULMEN_DEVICE RowOperand lds_operand(int at, int pitch) {
#if defined(FULMEN_TARGET_SM80)
  return matrix_row_operand(at, pitch);
#else
  return lds_row_operand(at, pitch);
#endif
}

// What modifies a wave's 16 rows of scores against a tile of columns, by the rows that a lane owns.
struct TileScores {
  Int64 first_column;
  int last_column;  // that is there
  Int64 row[kRowsPerLane];
  int low[kRowsPerLane], high[kRowsPerLane];  // the columns [low, high) of the tile are attended
  const BiasElement* bias[kRowsPerLane];      // of the tile's first column
  const unsigned char* keep_mask[kRowsPerLane];
  Int64 bias_step, mask_step;    // from column to column
  Int64 distance[kRowsPerLane];  // to the diagonal at the tile's first column
  float slope;

  FULMEN_DEVICE ScoreInputs score(int slot, int column) const {
    return {bias[slot] + column * bias_step, keep_mask[slot] + column * mask_step, slope,
            static_cast<float>(distance[slot] - column)};
  }
};

struct BackwardTask {
  const BackwardArguments& arguments;
  Int64 batch;
  algorithm::Band band;  // of columns, for a row
  Int64 wave_row;        // the first of the wave's rows
  Int64 row_end;
  int wave_first_at, wave_second_at;  // the wave's rows in LDS

  // product[t] += rows . columns of one tile of 16 columns, over all dims.
  template <int kDepths, int kHeld>
  FULMEN_DEVICE void multiply(const RowOperand (&rows)[kHeld][kRowsInLds ? 1 : kDepths], int wave_at, int columns_at, int pitch,
                              float (&product)[kRowTiles][kElements]) const {
#pragma unroll
    for (int d = 0; d < kDepths; ++d) {
      const RowOperand column = lds_operand(columns_at + 2 * kDepth * d, pitch);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const RowOperand row = kRowsInLds ? lds_operand(wave_at + 16 * t * pitch + 2 * kDepth * d, pitch)
                                          : rows[kRowsInLds ? 0 : t][kRowsInLds ? 0 : d];
        multiply_scores<Element>(product[t], column, row);
      }
      // Sums and rows fill the registers: operands must not be loaded long before their use.
      if (kTightRegisters || d % 2 == 1) schedule_fence();
    }
    schedule_fence();
  }

  template <bool kMasked>
  FULMEN_DEVICE TileScores tile_scores(Int64 head, Int64 first_row, Int64 first_column) const {
    const BackwardArguments& a = arguments;
    TileScores tile{};
    tile.first_column = first_column;
    const Int64 left = (kRowsAreKeys ? a.seqlen_q : a.seqlen_k) - first_column;
    tile.last_column = kMasked && left < kBlockN ? static_cast<int>(left) - 1 : kBlockN - 1;
    tile.bias_step = kRowsAreKeys ? a.bias.row : 1;
    tile.mask_step = kRowsAreKeys ? a.keep_mask.row : 1;
    if constexpr (kAlibi) tile.slope = kLog2E * global_load(a.alibi_slopes + batch * a.alibi_batch + head);
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 asked = first_row + tile_row(slot), row = asked < row_end ? asked : row_end - 1;
      tile.row[slot] = row;
      if constexpr (kMasked) {
        tile.low[slot] = static_cast<int>(algorithm::Band::clamp(band.first(row) - first_column, 0, kBlockN));
        tile.high[slot] = static_cast<int>(algorithm::Band::clamp(band.last_plus_one(row) - first_column, 0, kBlockN));
      }
      const Int64 i = kRowsAreKeys ? first_column : row, j = kRowsAreKeys ? row : first_column;
      if constexpr (kBias) tile.bias[slot] = at<BiasElement>(a.bias, batch, i, head) + j;
      if constexpr (kKeepMask) tile.keep_mask[slot] = at<unsigned char>(a.keep_mask, batch, i, head) + j;
      if constexpr (kAlibi) tile.distance[slot] = kRowsAreKeys ? row - a.diagonal - first_column : row + a.diagonal - first_column;
    }
    return tile;
  }

  // P and dS of 16 rows and 16 columns, in place of q.k and dout.v. kMasked: the band, or an end, may lie in the tile.
  template <bool kMasked>
  FULMEN_DEVICE void gradients(const TileScores& tile, int first_column, int numbers_at, DropoutMask& dropout,
                               const RowNumbers (&row_numbers)[kRowsPerLane], float (&score)[kElements],
                               float (&gradient)[kElements], float (&bias)[kElements]) const {
    const BackwardArguments& a = arguments;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int slot = row_slot(e), column = first_column + tile_column(e);
      RowNumbers numbers = row_numbers[slot];
      if constexpr (kRowsAreKeys) numbers = RowNumbers::from(lds_load<Words<2>>(numbers_at + 8 * tile_column(e)));
      const bool attended = !kMasked || (column >= tile.low[slot] && column < tile.high[slot]);
      const ScoreGradient g = score_gradient(a, tile.score(slot, kMasked && column > tile.last_column ? tile.last_column : column),
                                             numbers, score[e], gradient[e], attended, [&] {
                                               const Int64 row = tile.row[slot], other = tile.first_column + column;
                                               return kRowsAreKeys ? dropout.factor(other, row) : dropout.factor(row, other);
                                             });
      score[e] = g.weight;
      gradient[e] = g.dot;
      if constexpr (kGivesDbias) bias[e] += g.bias;
    }
  }

  template <bool kMasked>
  FULMEN_DEVICE void step(WaveRows& rows, BiasTiles& bias, Int64 head, Int64 first_column, int buffer,
                          const RowNumbers (&numbers)[kRowTiles][kRowsPerLane]) const {
    const int at = buffer * kBackward.buffer_bytes;
    DropoutMask dropout(arguments, batch, head);
    TileScores tile[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) tile[t] = tile_scores<kMasked>(head, wave_row + 16 * t, first_column);
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      float score[kRowTiles][kElements] = {}, gradient[kRowTiles][kElements] = {};
      multiply<kFirstDepths>(rows.first, wave_first_at, at + 16 * f * kBackward.first_pitch, kBackward.first_pitch, score);
      if constexpr (kNeedsDout) {
        multiply<kSecondDepths>(rows.second, wave_second_at, at + kBackward.second_at + 16 * f * kBackward.second_pitch,
                                kBackward.second_pitch, gradient);
      }
      ProbabilityOperand p[kRowTiles], ds[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        gradients<kMasked>(tile[t], 16 * f, at + kBackward.numbers_at + 8 * 16 * f, dropout, numbers[t], score[t], gradient[t],
                           bias[t][kGivesDbias ? f : 0]);
        p[t] = to_operand<Element>(score[t]);
        ds[t] = to_operand<Element>(gradient[t]);
      }
      constexpr bool kTurned = kTransposedValues;
      if constexpr (kGivesDv) {
#pragma unroll
        for (int d = 0; d < kSecondTiles; ++d) {
          const ValueOperand values = lds_value_operand<kTurned ? kBackward.value_pitch : kBackward.second_pitch>(
              at + (kTurned ? kBackward.second_values_at : kBackward.second_at), f, d);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.second_sum[t][d], p[t], values);
          if (kTightRegisters || d % 2 == 1) schedule_fence();
        }
      }
      if constexpr (kGivesFirst) {
#pragma unroll
        for (int d = 0; d < kFirstTiles; ++d) {
          const ValueOperand values = lds_value_operand<kTurned ? kBackward.value_pitch : kBackward.first_pitch>(
              at + (kTurned ? kBackward.first_values_at : 0), f, d);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.first_sum[t][d], ds[t], values);
          if (kTightRegisters || d % 2 == 1) schedule_fence();
        }
      }
    }
  }

  template <int kTiles>
  FULMEN_DEVICE void store(const View& view, Int64 head, int dims, float factor,
                           const float (&sum)[kRowTiles][kTiles][kElements]) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 i = wave_row + 16 * t + tile_row(slot);
        if (i >= row_end) continue;
        auto* row = const_cast<Element*>(at<Element>(view, batch, i, head));
#pragma unroll
        for (int d = 0; d < kTiles; ++d) {
#pragma unroll
          for (int e = 0; e < kElements; e += kOutputRun) {
            if (row_slot(e) != slot) continue;
            float run[kOutputRun];
#pragma unroll
            for (int n = 0; n < kOutputRun; ++n) run[n] = sum[t][d][e + n] * factor;
            store_run(row, 16 * d + output_column(e), dims, run);
          }
        }
      }
    }
  }
};

// One tensor of the workgroup's rows to LDS, and from there to registers unless they stay. Rows past the end repeat the last one.
template <int kDepths, int kHeld>
FULMEN_DEVICE void load_tensor(const Element* head, Int64 stride, int dims, Int64 row_begin, Int64 row_end, int at, int pitch,
                               RowOperand (&rows)[kHeld][kRowsInLds ? 1 : kDepths]) {
  constexpr int kRowPieces = kDepths * kDepth / 8;
  for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
    const int row = index / kRowPieces, piece = index % kRowPieces;
    const Int64 from = row_begin + row < row_end ? row_begin + row : row_end - 1;
    lds_store(at + row * pitch + 16 * piece, load_piece(head + from * stride, 8 * piece, dims));
  }
  if constexpr (!kRowsInLds) {
    const int wave = wave_id() * kRowTiles * 16;
    barrier();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kDepths; ++d) {
        rows[kRowsInLds ? 0 : t][kRowsInLds ? 0 : d] = lds_operand(at + (wave + 16 * t) * pitch + 2 * kDepth * d, pitch);
      }
    }
    barrier();
  }
}

FULMEN_DEVICE void load_rows(const BackwardArguments& a, const Side& side, Int64 row_begin, Int64 row_end, WaveRows& rows) {
  // Where they do not stay they pass through the columns' place, one tensor after the other.
  const int first_at = kRowsInLds ? kBackward.first_rows_at : 0, second_at = kRowsInLds ? kBackward.second_rows_at : 0;
  load_tensor<kFirstDepths>(side.first, side.first_stride, a.head_dim, row_begin, row_end, first_at, kBackward.first_pitch,
                            rows.first);
  if constexpr (kNeedsDout) {
    load_tensor<kSecondDepths>(side.second, side.second_stride, a.head_dim_v, row_begin, row_end, second_at, kBackward.second_pitch,
                               rows.second);
  }
}

// dq, or dk and dv, of kBlockM rows of one head.
FULMEN_DEVICE void gradients_of_rows(const BackwardArguments& a, Int64 batch, Int64 row_head, Int64 row_begin, BiasTiles& bias) {
  const Int64 length = kRowsAreKeys ? a.seqlen_k : a.seqlen_q;
  const Int64 row_end = row_begin + kBlockM < length ? row_begin + kBlockM : length;
  const algorithm::Band band = column_band(a);
  const algorithm::KeyRange attended = band.any(row_begin, row_end);
  algorithm::KeyRange any = attended;
  const algorithm::KeyRange whole = kGivesDbias ? algorithm::KeyRange{} : band.all(row_begin, row_end);
  // One tile of all keys: masked wherever the band, or the end, lies in it.
  if (kGivesDbias && any.end > any.begin) any = {0, a.seqlen_k};
  const TileOrder order = TileOrder::of(any, kGivesDbias && !kBand && a.seqlen_k == kBlockN ? any : whole);
  const Int64 column_end = any.end;

  const Side own = kRowsAreKeys ? Side::keys(a, batch, row_head) : Side::queries(a, batch, row_head);
  const int wave = wave_id() * kRowTiles * 16;
  const BackwardTask task{a,
                          batch,
                          band,
                          row_begin + wave,
                          row_end,
                          kBackward.first_rows_at + wave * kBackward.first_pitch,
                          kBackward.second_rows_at + wave * kBackward.second_pitch};
  WaveRows rows = {};
  RowNumbers numbers[kRowTiles][kRowsPerLane] = {};
  if constexpr (!kRowsAreKeys) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        numbers[t][slot] = RowNumbers::of(a, batch, row_head, task.wave_row + 16 * t + tile_row(slot));
      }
    }
  }
  const Int64 first_head = kRowsAreKeys ? row_head * a.group_size : row_head;
  const Int64 last_head = kRowsAreKeys ? first_head + a.group_size : first_head + 1;
  Columns columns;
  // Brings tile n of a head, or the first of the next one after its last, on its way.
  const auto fetch = [&](Int64 head, int n, int buffer) {
    if (n == order.count) {
      ++head;
      n = 0;
    }
    if (head >= last_head) return;
    const Side side = kRowsAreKeys ? Side::queries(a, batch, head) : Side::keys(a, batch, row_head / a.group_size);
    columns.fetch(a, side, batch, head, order.first_key(n), column_end, buffer, [&](Int64 j) {
      // A tile that begins before the band has keys that no row attends.
      if (kGivesDbias && kBand && (j < attended.begin || j >= attended.end)) return false;
      return kRowsAreKeys || any_row_keeps(a, batch, head, row_begin, row_end, j);
    });
  };
  int buffer = 0;
  // The tile that is on its way becomes the current one.
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
  const BackwardArguments& last = again(a, row_begin);
  if constexpr (kGivesDq) task.store(last.dq, row_head, last.head_dim, last.softmax_scale, rows.first_sum);
  if constexpr (kGivesDk) task.store(last.dk, row_head, last.head_dim, last.softmax_scale, rows.first_sum);
  if constexpr (kGivesDv) task.store(last.dv, row_head, last.head_dim_v, 1.0F, rows.second_sum);
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
          const int row = (wave_id() * kRowTiles + t) * 16 + tile_row(row_slot(e)), j = 16 * f + tile_column(e);
          if (j < last.seqlen_k) stored.store(last, row, j, bias[t][f][e]);
        }
      }
    }
  } else {
    const Int64 tiles = tiles_of(kRowsAreKeys ? call.seqlen_k : call.seqlen_q, kBlockM);
    const Int64 heads = kRowsAreKeys ? call.num_kv_heads : call.num_heads, all_heads = heads * call.batch;
    // Under a causal mask the last queries, and the first keys, have most to do: they start first, of every head.
    const Int64 nth = kBand ? id / all_heads : id % tiles, batch_head = kBand ? id % all_heads : id / tiles;
    const Int64 row_begin = (kRowsAreKeys || !kBand ? nth : tiles - 1 - nth) * kBlockM;
    const BackwardArguments& a = sequence_of(call, batch_head / heads);
    if (kVariable && row_begin >= (kRowsAreKeys ? a.seqlen_k : a.seqlen_q)) return;
    gradients_of_rows(a, batch_head / heads, batch_head % heads, row_begin, bias);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward)
