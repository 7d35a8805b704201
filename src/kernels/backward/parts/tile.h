// What the backward kernels with matrix instructions share: a workgroup's rows, the columns' tiles
// in LDS, and what becomes of scores. Rows are queries and columns keys, or the other way round.
#pragma once

#include "backward/backward_layout.h"
#include "backward/parts/scores.h"
#include "core/matrix.h"
#include "tile/columns.h"
#include "tile/dropout_tile.h"
#include "tile/mask_bits.h"
#include "tile/modified_scores.h"
#include "tile/order.h"
#include "tile/register_pressure.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize - (kTensorMaps ? 4 : 0);  // that multiply
// Groups of neighbouring waves, which share their rows: each has a part of the dims of sums.
constexpr int kDimGroups = kConfig.dim_groups;
constexpr int kRowTiles = kBlockM * kDimGroups / (kScoreTile * kWaves);
constexpr int kColumnTiles = kBlockN / kScoreTile;
constexpr int kFirstMmaSteps = kHeadDim / kMmaK, kSecondMmaSteps = kHeadDimV / kMmaK;
constexpr int kFirstTiles = kGivesFirst ? kHeadDim / kScoreTile / kDimGroups : 1,
              kSecondTiles = kGivesDv ? kHeadDimV / kScoreTile / kDimGroups : 1;
constexpr bool kRowsInLds = kQueriesInLds;
// A wave's sums alone fill half the registers.
constexpr bool kTightRegisters =
    kRowTiles * ((kGivesFirst ? kFirstTiles : 0) + (kGivesDv ? kSecondTiles : 0)) * kElements >=
    128;
// Its rows fill most of the other half.
constexpr bool kFullRegisters = kRowsAreKeys && kTightRegisters && !kRowsInLds && !kCopiesToLds;
// The next tile is in flight while one is computed; or waits until that is read, where copies write
// to the one buffer by themselves; or is fetched when it is needed, where registers are too few to
// hold it.
constexpr bool kFetchLate = !kCopiesToLds && !kEarlyLoads;
constexpr bool kFetchEarly = !kFetchLate && (kBuffers == 2 || !kCopiesToLds);
static_assert(kBlockM * kDimGroups == kRowTiles * kScoreTile * kWaves,
              "backward: block_m is a multiple of 16 rows a wave");
constexpr int kProductDims = kTensorMaps ? 16 : kMmaK;  // of a product: a warpgroup's, or of waves
static_assert(kBlockN % kScoreTile == 0 && kHeadDim % kProductDims == 0 &&
                  kHeadDimV % kProductDims == 0,
              "backward: tiles are whole operands");

constexpr SharedRowsLayout kSharedRows =
    SharedRowsLayout::of({kTransposedDepth, kReadsTransposed, kHeadDim, kHeadDimV, kBlockM, kBlockN,
                          kBuffers, kRowsInLds, kGivesFirst, kGivesDv, kDimGroups, kDirectRows});
constexpr BackwardLayout kBackward = kSharedRows.tiles;

// The wave's rows and their gradients so far.
struct WaveRows {
  RowOperand first[kRowsInLds ? 1 : kRowTiles][kRowsInLds ? 1 : kFirstMmaSteps];
  RowOperand second[kRowsInLds ? 1 : kRowTiles][kRowsInLds ? 1 : kSecondMmaSteps];
  float first_sum[kRowTiles][kFirstTiles][kElements];
  float second_sum[kRowTiles][kSecondTiles][kElements];
};
// A tile of both tensors of the columns, and of the queries' numbers where they are the columns.
class Columns {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const BackwardArguments& a, const Side& side, Int64 batch, Int64 head,
                           Int64 first, Int64 end, int buffer, const Alive& alive) {
    const int at = buffer * kBackward.buffer_bytes;
    const auto tile_alive = [&](int row) { return alive(first + row); };
    if constexpr (kApart) {
      const ColumnSource one = ColumnSource::of(side.first, side.first_stride, a.head_dim, first,
                                                end),
                         other = ColumnSource::of(side.second, side.second_stride, a.head_dim_v,
                                                  first, end);
      first_.fetch(brings_second() ? other : one, at, at, kBackward.first_pitch, tile_alive);
      fetch_numbers(a, batch, head, first, end);
      return;
    }
    first_.fetch(ColumnSource::of(side.first, side.first_stride, a.head_dim, first, end), at,
                 at + kBackward.first_values_at, kBackward.first_pitch, tile_alive);
    if constexpr (kOneByOne) {
      first_.publish(at, at + kBackward.first_values_at, kBackward.first_pitch);
      schedule_fence();
    }
    if constexpr (kNeedsDout || kGivesDv) {
      second_.fetch(ColumnSource::of(side.second, side.second_stride, a.head_dim_v, first, end),
                    at + kBackward.second_at, at + kBackward.second_values_at,
                    kBackward.second_pitch, [&](int row) { return !kGivesDv || tile_alive(row); });
    }
    fetch_numbers(a, batch, head, first, end);
    commit_columns();
  }
  FULMEN_DEVICE void publish(int buffer) const {
    const int at = buffer * kBackward.buffer_bytes;
    if constexpr (kApart) {
      const bool second = brings_second();
      first_.publish(at + (second ? kBackward.second_at : 0),
                     at + (second ? kBackward.second_values_at : kBackward.first_values_at),
                     kBackward.first_pitch);
    } else if constexpr (!kOneByOne) {
      first_.publish(at, at + kBackward.first_values_at, kBackward.first_pitch);
    }
    if constexpr (!kApart && (kNeedsDout || kGivesDv)) {
      second_.publish(at + kBackward.second_at, at + kBackward.second_values_at,
                      kBackward.second_pitch);
    }
    if constexpr (kRowsAreKeys) {
      if (thread_id() < kBlockN) {
        lds_store(at + kBackward.numbers_at + 8 * thread_id(), numbers_.words());
      }
    }
    columns_arrived();
  }

 private:
  // Sums leave registers for one tile in flight. Where half of the lanes have all of its pieces,
  // the others bring the second.
  static constexpr bool kApart = kFullRegisters && kGivesFirst && kGivesDv &&
                                 kHeadDim == kHeadDimV &&
                                 kBlockN / 2 * (kHeadDim / 8) <= kWorkgroup / 2;
  FULMEN_DEVICE static bool brings_second() { return wave_id() >= kWaves / 2; }
  FULMEN_DEVICE void fetch_numbers(const BackwardArguments& a, Int64 batch, Int64 head, Int64 first,
                                   Int64 end) {
    if constexpr (kRowsAreKeys) {
      if (thread_id() < kBlockN)
        numbers_ = RowStatistics::of(a, batch, head,
                                     first + thread_id() < end ? first + thread_id() : a.seqlen_q);
    }
  }
  // Where registers are too few for a tile of each beside addresses of 64 bits, the first is in LDS
  // before the second comes.
  static constexpr bool kOneByOne = kFetchLate && !kWholeRows;
  ColumnTile<kHeadDim, kGivesFirst && kCopiesValues, kApart ? kWorkgroup / 2 : kWorkgroup> first_;
  ColumnTile<kHeadDimV, kGivesDv && kCopiesValues> second_;
  RowStatistics numbers_;
};

using FirstRows = LdsRows<kHeadDim>;
using SecondRows = LdsRows<kHeadDimV>;
static_assert(FirstRows::kPitch == kBackward.first_pitch &&
                  SecondRows::kPitch == kBackward.second_pitch,
              "backward: rows are where the host's layout has them");

// Masks as bits where the TMA brings tiles: lists say which tiles of queries a block of keys goes
// over (backward/mask_tiles.h). Bits hide what is beyond the last key, too: one code of a tile
// serves all of them.
constexpr bool kTileLists = kMaskBits && kTensorMaps && !kVariable;

// Whether probabilities leave out the shares of rounded queries, and dq is multiplied with them at
// its end.
constexpr bool kSharesAtEnd = kNaturalUnits && !kRowsAreKeys && !kGivesDbias && !kStoresDbias;

// What modifies a wave's 16 rows of scores against a tile of columns, by the rows that a lane owns.
struct TileScores {
  Int64 first_column;
  int last_column;  // that is there
  Int64 row[kRowsPerLane];
  int low[kRowsPerLane], high[kRowsPerLane];  // the columns [low, high) of the tile are attended
  const BiasElement* bias[kRowsPerLane];      // of the tile's first column
  const unsigned char* keep_mask[kRowsPerLane];
  TileBits kept[kMaskBits ? kRowsPerLane : 1];  // by the keep-mask
  int kept_from;                                // the column of their first bit
  Int64 bias_step, mask_step;                   // from column to column
  Int64 distance[kRowsPerLane];                 // to the diagonal at the tile's first column
  float slope;
  const float* share[kRowsPerLane];  // the query's, at the first column
  int batch, head;                   // kScoreMod

  // Whether the keep-mask's bit lets element e of 16 columns, from the tile's first_column on, be
  // attended.
  FULMEN_DEVICE bool keeps(int first_column, int e) const {
    if constexpr (!kMaskBits) return true;
    const int from = kCopiesToLds ? kept_from : 0;  // AMD's registers are full
    return kept[kMaskBits ? row_slot(e) : 0].has((first_column - from) / kScoreTile, e);
  }
  // Only the columns from `first` on, which is known when the kernel runs, and half a tile's, are
  // asked for: as an index it would put the bits into memory.
  template <int kColumns>
  FULMEN_DEVICE void keep_half(int first) {
    if constexpr (kMaskBits && kColumns == 32 && TileBits::kCount == 2) {
#pragma unroll
      for (TileBits& bits : kept)
        bits.word[0] = first == 0 ? bits.word[0] : bits.word[TileBits::kCount - 1];
      kept_from = first;
    }
  }
  FULMEN_DEVICE const float* share_of(int slot, int column) const {
    return share[slot] + (kRowsAreKeys ? column : 0);
  }
  // What score_mod is given, but the score.
  FULMEN_DEVICE ScoredPair pair_of(int slot, int column) const {
    if constexpr (!kScoreMod) return {};
    const int own = static_cast<int>(row[slot]), other = static_cast<int>(first_column) + column;
    return {0.0F, batch, head, kRowsAreKeys ? other : own, kRowsAreKeys ? own : other};
  }
  FULMEN_DEVICE ScoreInputs score(int slot, int column) const {
    return {bias[slot] + column * bias_step,
            keep_mask[slot] + column * mask_step,
            slope,
            static_cast<float>(distance[slot] - column),
            share_of(slot, column),
            pair_of(slot, column)};
  }
};

// No biases of a tile's elements are known.
struct NoBias {
  FULMEN_DEVICE float operator()(int /*e*/) const { return 0; }
};

struct BackwardTask {
  const BackwardArguments& arguments;
  Int64 batch;
  algorithm::Band band;  // of columns, for a row
  Int64 wave_row;        // the first of the wave's rows
  Int64 row_end;
  int wave_first_at, wave_second_at;  // the wave's rows in LDS

  // product[t] += rows . columns of one tile of 16 columns, over all dims; waves that share rows:
  // over the wave's own, from `first` operands on.
  template <int kMmaSteps, int kHeld>
  FULMEN_DEVICE void multiply(const RowOperand (&rows)[kHeld][kRowsInLds ? 1 : kMmaSteps],
                              int wave_at, int columns_at, float (&product)[kRowTiles][kElements],
                              int first = 0) const {
    using Rows = LdsRows<kMmaSteps * kMmaK>;
#pragma unroll
    for (int d = 0; d < kMmaSteps / kDimGroups; ++d) {
      const RowOperand column = Rows::operand(columns_at, first + d);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const RowOperand row =
            kRowsInLds ? Rows::operand(wave_at + kScoreTile * t * Rows::kPitch, first + d)
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
    if constexpr (kScoreMod) {
      tile.batch = static_cast<int>(batch);
      tile.head = static_cast<int>(head);
    }
    const Int64 left = (kRowsAreKeys ? a.seqlen_q : a.seqlen_k) - first_column;
    tile.last_column = kMasked && left < kBlockN ? static_cast<int>(left) - 1 : kBlockN - 1;
    tile.bias_step = kRowsAreKeys ? a.bias.row : 1;
    tile.mask_step = kRowsAreKeys ? a.keep_mask.row : 1;
    if constexpr (kAlibi)
      tile.slope = kUnitsOfScore * global_load(a.alibi_slopes + batch * a.alibi_batch + head);
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 asked = first_row + tile_row(slot), row = asked < row_end ? asked : row_end - 1;
      tile.row[slot] = row;
      if constexpr (kMasked) {
        tile.low[slot] =
            static_cast<int>(algorithm::Band::clamp(band.first(row) - first_column, 0, kBlockN));
        tile.high[slot] = static_cast<int>(
            algorithm::Band::clamp(band.last_plus_one(row) - first_column, 0, kBlockN));
        // A row beyond the end has no share of the columns' gradient, or of a sum over queries.
        if ((kAddsDq || kGivesDbias) && asked >= row_end) tile.high[slot] = 0;
      }
      const Int64 i = kRowsAreKeys ? first_column : row, j = kRowsAreKeys ? row : first_column;
      if constexpr (kBias) tile.bias[slot] = at<BiasElement>(a.bias, batch, i, head) + j;
      if constexpr (kMaskBytes)
        tile.keep_mask[slot] = at<unsigned char>(a.keep_mask, batch, i, head) + j;
      if constexpr (kMaskBits) {
        // Beside a bias, AMD's scalar registers do not hold where the bits are until the next tile.
        const BackwardArguments& m = kManyArguments && !kCopiesToLds ? again(a, first_column) : a;
        const bool one_row = m.mask_bits.rows == 1;
        if constexpr (kRowsAreKeys) {
          tile.kept[slot] =
              TileBits::of(mask_column(m, batch, head, row), one_row ? 0 : first_column);
          if (kTileLists && !kMasked && asked >= row_end) tile.kept[slot] = TileBits::none();
        } else {
          tile.kept[slot] = TileBits::of(
              mask_rows(m, batch, head) + (one_row ? 0 : row) * m.mask_bits.words, first_column);
        }
      }
      if constexpr (kNaturalUnits) tile.share[slot] = RowShares::first_of(a, batch, head) + i;
      if constexpr (kAlibi)
        tile.distance[slot] =
            kRowsAreKeys ? row - a.diagonal - first_column : row + a.diagonal - first_column;
    }
    return tile;
  }

  // What dropout lets stay of 16 rows and 16 columns.
  FULMEN_DEVICE static DropoutTile<kRowsAreKeys> staying(const DropoutMask& dropout,
                                                         Int64 first_row, Int64 first_column) {
    return DropoutTile<kRowsAreKeys>::of(dropout, kRowsAreKeys ? first_column : first_row,
                                         kRowsAreKeys ? first_row : first_column);
  }

  // P in place of q.k alone, where there is no dropout.
  template <bool kMasked>
  FULMEN_DEVICE void probabilities(const TileScores& tile, int first_column, int numbers_at,
                                   const RowStatistics (&row_statistics)[kRowsPerLane],
                                   float (&score)[kElements]) const {
    probabilities<kMasked>(tile, first_column, score, [&](int e) {
      return kRowsAreKeys ? lds_load<float>(numbers_at + 8 * tile_column(e))
                          : row_statistics[row_slot(e)].offset;
    });
  }
  // offset_of(e): of the query of element e. bias_of(e): where kBiasKnown, the element's bias.
  template <bool kMasked, bool kBiasKnown = false, class Offset, class BiasOf = NoBias>
  FULMEN_DEVICE void probabilities(const TileScores& tile, int first_column,
                                   float (&score)[kElements], const Offset& offset_of,
                                   const BiasOf& bias_of = {}) const {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int slot = row_slot(e), column = first_column + tile_column(e);
      const float offset = offset_of(e);
      const bool in_band = !kMasked || (column >= tile.low[slot] && column < tile.high[slot]);
      const bool attended = in_band && tile.keeps(first_column, e);
      const ScoreInputs inputs =
          tile.score(slot, kMasked && column > tile.last_column ? tile.last_column : column);
      ScoreTerms terms = ScoreTerms::of<!kBiasKnown>(inputs, attended);
      if constexpr (kBiasKnown) terms.bias = kUnitsOfScore * bias_of(e);
      score[e] = probability_of(arguments, terms, offset, score[e]);
    }
    for_rounded_rows<kMasked>(tile, first_column, offset_of,
                              [&](int e, float share) { score[e] *= share; });
  }
  // scale(e, share) of the elements whose query's log-sum-exp is rounded (core/row_statistics.h).
  // Such queries are rare: one look serves 16 columns, and what it finds takes no registers of the
  // others.
  template <bool kMasked, class Offset, class Scale>
  FULMEN_DEVICE static void for_rounded_rows(const TileScores& tile, int first_column,
                                             const Offset& offset_of, const Scale& scale) {
    if constexpr (!kNaturalUnits || kSharesAtEnd) return;
    float largest = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) largest = larger(largest, absolute(offset_of(e)));
    if (__builtin_expect(any_lane(largest > kRoundedLse), 0)) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int column = first_column + tile_column(e);
        const float* share = tile.share_of(
            row_slot(e), kMasked && column > tile.last_column ? tile.last_column : column);
        FULMEN_INLINED scale(e, RowShares::load(share, offset_of(e)));
      }
    }
  }
  // dS in place of dout.v, from that P, where there is no softcap either.
  FULMEN_DEVICE static void gradients_of(const float (&p)[kElements], int numbers_at,
                                         const RowStatistics (&row_statistics)[kRowsPerLane],
                                         float (&gradient)[kElements]) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const float delta = kRowsAreKeys ? lds_load<float>(numbers_at + 8 * tile_column(e) + 4)
                                       : row_statistics[row_slot(e)].delta;
      gradient[e] = p[e] * (gradient[e] - delta);
    }
  }

  // P and dS of 16 rows and 16 columns, in place of q.k and dout.v. kMasked: the band, or an end,
  // may lie in the tile.
  template <bool kMasked>
  FULMEN_DEVICE void gradients(const TileScores& tile, int first_column, int numbers_at,
                               const DropoutTile<kRowsAreKeys>& stays,
                               const RowStatistics (&row_statistics)[kRowsPerLane],
                               float (&score)[kElements], float (&gradient)[kElements],
                               float (&bias)[kElements]) const {
    const BackwardArguments& a = arguments;
    float added[kElements];  // to the bias's gradient
    // Of a query the lane's columns are neighbours, which vectors bring.
    constexpr bool kBiasByRuns = kBias && !kRowsAreKeys;
    unsigned bias_bits[kElements];
    if constexpr (kBiasByRuns) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        load_columns<kMasked, kWholeBias>(tile.bias[slot] + first_column,
                                          tile.last_column + 1 - first_column, slot, bias_bits);
      }
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int slot = row_slot(e), column = first_column + tile_column(e);
      RowStatistics numbers = row_statistics[slot];
      if constexpr (kRowsAreKeys)
        numbers = RowStatistics::from(lds_load<Words<2>>(numbers_at + 8 * tile_column(e)));
      const bool in_band = !kMasked || (column >= tile.low[slot] && column < tile.high[slot]);
      const bool attended = in_band && tile.keeps(first_column, e);
      ScoreTerms terms = ScoreTerms::of<!kBiasByRuns>(
          tile.score(slot, kMasked && column > tile.last_column ? tile.last_column : column),
          attended);
      if constexpr (kBiasByRuns) terms.bias = kUnitsOfScore * of_bits<BiasElement>(bias_bits[e]);
      const ScoreGradient g = score_gradient(
          a, terms, numbers, score[e], gradient[e], [&] { return stays.keeps(e); }, 1.0F);
      score[e] = g.weight;
      gradient[e] = g.dot;
      added[e] = g.bias;
      // A function's operations on several elements at once would fill the registers.
      if (kScoreMod || (kFullRegisters && e % 2 == 1)) schedule_fence();
    }
    const auto offset_of = [&](int e) {
      return kRowsAreKeys ? lds_load<float>(numbers_at + 8 * tile_column(e))
                          : row_statistics[row_slot(e)].offset;
    };
    for_rounded_rows<kMasked>(tile, first_column, offset_of, [&](int e, float share) {
      added[e] *= share;
      score[e] *= share;
      gradient[e] *= share;
    });
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if constexpr (kGivesDbias) bias[e] += added[e];
    }
  }

  // first_tile: of 16 dims, the sums' first.
  template <int kTiles>
  FULMEN_DEVICE void store(const View& view, Int64 head, int first_tile, int dims, float factor,
                           const float (&sum)[kRowTiles][kTiles][kElements]) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 i = wave_row + kScoreTile * t + tile_row(slot);
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
            store_run(row, kScoreTile * (first_tile + d) + output_column(e), dims, run);
          }
        }
      }
    }
  }
};

// Sums of dq of 16 queries from first_row on. A query without any key has no gradient, whatever its
// dout holds: 0 times inf is NaN. kSharesAtEnd: what a rounded query's probabilities lack, its sums
// are multiplied with.
template <int kTiles>
FULMEN_DEVICE void finish_queries(const BackwardTask& task, Int64 head, Int64 first_row,
                                  const RowStatistics (&numbers)[kRowsPerLane],
                                  float (&sums)[kTiles][kElements]) {
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    float share = 1.0F;
    if constexpr (kSharesAtEnd) {
      const Int64 row = first_row + tile_row(slot), last = task.row_end - 1;
      const float* shares = RowShares::first_of(task.arguments, task.batch, head);
      share = RowShares::load(shares + (row < last ? row : last), numbers[slot].offset);
    }
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) != slot) continue;
        if constexpr (kSharesAtEnd) sums[d][e] *= share;
        if (!numbers[slot].has_keys()) sums[d][e] = 0;
      }
    }
  }
}

// One tensor of the workgroup's rows to LDS. Rows past the end repeat the last one; what `alive`
// says no to becomes 0.
template <int kDims, class Alive>
FULMEN_DEVICE void rows_to_lds(const Element* head, Int64 stride, int dims, Int64 row_begin,
                               Int64 row_end, int at, const Alive& alive) {
  constexpr int kRowPieces = kDims / 8;
  for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
    const int row = index / kRowPieces, piece = index % kRowPieces;
    const Int64 from = row_begin + row < row_end ? row_begin + row : row_end - 1;
    lds_store(at + LdsRows<kDims>::place(row, 16 * piece),
              alive(from) ? load_piece(head + from * stride, 8 * piece, dims) : Words<4>{});
  }
}
// Copies rows to LDS, and from there to registers unless they stay in LDS. Rows for which LDS has
// no room come to registers straight from memory.
template <int kMmaSteps, int kHeld, class Alive>
FULMEN_DEVICE void load_tensor(const Element* head, Int64 stride, int dims, Int64 row_begin,
                               Int64 row_end, int at,
                               RowOperand (&rows)[kHeld][kRowsInLds ? 1 : kMmaSteps],
                               const Alive& alive) {
  using Rows = LdsRows<kMmaSteps * kMmaK>;
  const int wave = wave_id() * kRowTiles * kScoreTile;
  if constexpr (!kRowsInLds &&
                (kDirectRows || !BackwardLayout::rows_pass_lds(kHeadDim, kHeadDimV))) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kMmaSteps; ++d) {
        rows[t][d] = load_row_operand(head, stride, row_begin + wave + kScoreTile * t, row_end,
                                      kMmaK * d, dims);
      }
    }
    return;
  }
  rows_to_lds<kMmaSteps * kMmaK>(head, stride, dims, row_begin, row_end, at, alive);
  if constexpr (!kRowsInLds) {
    barrier();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kMmaSteps; ++d) {
        rows[kRowsInLds ? 0 : t][kRowsInLds ? 0 : d] =
            Rows::operand(at + (wave + kScoreTile * t) * Rows::kPitch, d);
      }
    }
    barrier();
  }
}

}  // namespace fulmen::kernels
