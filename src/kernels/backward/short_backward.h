// All gradients of short sequences, chess boards above all, in one launch: up to kBlockN queries
// and keys. A workgroup goes over a run of batches of one head, a wave for 16 rows:
//
//   by queries   S = q.k, D = dout.v, delta = dout.out (beside dbias: the sum of P D)
//                P, dS = P (D - delta) to LDS
//   then         dq = dS k                        by queries, each wave its 16
//                dv = P^T dout, dk = dS^T q       by keys, by half of the waves each
//
// Five products, each tensor is read once, nothing is added by atomics. dbias, where it is a sum
// over batches: in registers over the run.
#include "backward/parts/short_bias.h"
#include "backward/parts/weight_lift.h"
#include "tile/dropout_tile.h"
#include "tile/modified_scores.h"
#include "tile/outputs.h"
#include "tile/softmax.h"
#include "tile/transposed.h"

namespace fulmen::kernels {

// q.k, dout.v and, where out is read, dout.out (which is added to delta) of a wave's queries.
FULMEN_DEVICE void first_products(const BackwardArguments& a, Int64 batch, Int64 head,
                                  unsigned lane, int at, int row, Scores& weight, Scores& gradient,
                                  float (&delta)[kRowsPerLane]) {
  // The sums of dout * out are the diagonal of a product, too.
  float diagonal[kElements] = {};
#pragma unroll
  for (int d = 0; d < kMmaStepsV; ++d) {
    const QueryOperand gradients = DoutTile::queries(lane, at + kShort.dout_at, row, d);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      multiply_scores<Element>(
          gradient[f], ValuesTile::keys(lane, at + kShort.v_at, kScoreTile * f, d), gradients);
    }
    if constexpr (kReadsOut) {
      const Board rows = Board::of(a.out, batch, head);
      const KeyOperand out = ValuesTile::fetched_or_loaded(
          lane, at + kShort.out_at, rows.first, rows.stride, row, a.seqlen_q, d, a.head_dim_v);
      multiply_scores<Element>(diagonal, out, gradients);
    }
    schedule_fence();
  }
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    if constexpr (kReadsOut) delta[slot] += tile_diagonal(diagonal, slot);
  }
#pragma unroll
  for (int d = 0; d < kMmaSteps; ++d) {
    const QueryOperand queries = QueriesTile::queries(lane, at + kShort.q_at, row, d);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      multiply_scores<Element>(weight[f], QueriesTile::keys(lane, at, kScoreTile * f, d), queries);
    }
    schedule_fence();
  }
}

// What modifies a wave's scores, a tile's elements after the other's: visit(f, e, slot, attended,
// scaled bias, ALiBi, stays).
template <class Visit>
FULMEN_DEVICE void for_each_score(const BackwardArguments& a, int batch, int head, unsigned lane,
                                  int row, const ScoreBias& bias, const Visit& visit) {
  const DropoutMask dropout(a, batch, head);
  const float slope =
      kAlibi ? kUnitsOfScore * global_load(a.alibi_slopes + batch * a.alibi_batch + head) : 0.0F;
  const algorithm::Band band = band_of(a);
  int low[kRowsPerLane] = {}, high[kRowsPerLane] = {};
  Int64 query[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 asked = row + tile_row(slot);
    query[slot] = kWholeTiles || asked < a.seqlen_q ? asked : a.seqlen_q - 1;
    if constexpr (!kWholeTiles) {
      low[slot] = static_cast<int>(algorithm::Band::clamp(band.first(asked), 0, kBlockN));
      high[slot] =
          asked < a.seqlen_q
              ? static_cast<int>(algorithm::Band::clamp(band.last_plus_one(asked), 0, kBlockN))
              : 0;
    }
  }
#pragma unroll
  for (int f = 0; f < kTiles; ++f) {
    const int first = kScoreTile * f;
    unsigned keep[kElements];
    if constexpr (kKeepMask) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        load_columns<!kWholeTiles, false>(
            at<unsigned char>(a.keep_mask, batch, query[slot], head) + first,
            static_cast<int>(a.seqlen_k) - first, slot, keep);
      }
    }
    float scaled_bias[kElements];
    bias.scaled(a, batch, head, lane, row, f, scaled_bias);
    const auto stays = DropoutTile<false>::of(dropout, row, first);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int slot = row_slot(e), column = first + tile_column(e);
      bool attended = kWholeTiles || (column >= low[slot] && column < high[slot]);
      if constexpr (kKeepMask) attended = attended & (keep[e] != 0);
      const float alibi =
          kAlibi ? slope * absolute(static_cast<float>(query[slot] + a.diagonal - column)) : 0.0F;
      FULMEN_INLINED visit(f, e, slot, attended, scaled_bias[e], alibi, stays);
    }
    if constexpr (kKeepMask || kDropout) schedule_fence();
  }
}

// Rounded rows are by the maxima of their scores, all of which are here.
FULMEN_DEVICE void find_bases(const BackwardArguments& a, int batch, int head, unsigned lane,
                              int row, const ScoreBias& bias, const Scores& product,
                              RowStatistics (&numbers)[kRowsPerLane],
                              float (&share)[kRowsPerLane]) {
  bool any = false;
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) any = any || is_rounded(numbers[slot].offset);
  if (__builtin_expect(!any_lane(any), 1)) return;
  Scores score;
  float max[kRowsPerLane], sum[kRowsPerLane] = {};
#pragma unroll
  for (float& one : max) one = -kInfinity;
  for_each_score(a, batch, head, lane, row, bias,
                 [&](int f, int e, int slot, bool attended, float scaled_bias, float alibi,
                     const DropoutTile<false>& /*stays*/) {
                   ScoreSlopes slopes;
                   score[f][e] = attended ? natural_score(a, {scaled_bias, alibi, true, {}},
                                                          product[f][e], slopes)
                                          : -kInfinity;
                   max[slot] = larger(max[slot], score[f][e]);
                 });
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    max[slot] = row_max(max[slot]);
    const float offset = max[slot] == -kInfinity ? 0.0F : max[slot];
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) == slot) sum[slot] += exp2(kLog2E * (score[f][e] - offset));
      }
    }
    sum[slot] = row_sum(sum[slot]);
    if (!is_rounded(numbers[slot].offset)) continue;
    const RowBase base = RowBase::of(a, head, numbers[slot].offset, max[slot], sum[slot]);
    numbers[slot].offset = base.offset;
    share[slot] = base.share;
  }
}

// P and dS, or P D where out is not read, of a wave's scores in place of q.k and dout.v.
FULMEN_DEVICE void score_gradients(const BackwardArguments& a, int batch, int head, unsigned lane,
                                   int row, RowStatistics (&numbers)[kRowsPerLane],
                                   const ScoreBias& bias, Scores& weight, Scores& gradient,
                                   Scores& dbias) {
  float share[kRowsPerLane];
#pragma unroll
  for (float& one : share) one = 1.0F;
  if constexpr (kNaturalUnits) find_bases(a, batch, head, lane, row, bias, weight, numbers, share);
  for_each_score(a, batch, head, lane, row, bias,
                 [&](int f, int e, int slot, bool attended, float scaled_bias, float alibi,
                     const DropoutTile<false>& stays) {
                   const ScoreGradient g = score_gradient(
                       a, {scaled_bias, alibi, attended, {}}, numbers[slot], weight[f][e],
                       gradient[f][e], [&] { return stays.keeps(e); }, share[slot]);
                   weight[f][e] = g.weight;
                   gradient[f][e] = g.dot;
                   if constexpr (kGivesDbias && kReadsOut) dbias[f][e] += g.bias;
                 });
}

constexpr bool kAllAttended = kWholeTiles && !kBand && !kKeepMask;

// P D of a wave's scores becomes dS, with delta the sum of a query's.
FULMEN_DEVICE void subtract_deltas(const float (&dlse)[kRowsPerLane], const Scores& weight,
                                   Scores& gradient, Scores& dbias) {
  float delta[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    delta[slot] = 0;
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) == slot) delta[slot] += gradient[f][e];
      }
    }
    delta[slot] = row_sum(delta[slot]);
  }
#pragma unroll
  for (int f = 0; f < kTiles; ++f) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      // Keys that a query does not attend get nothing, even if its delta is NaN.
      const float share = weight[f][e] * (delta[row_slot(e)] - dlse[row_slot(e)]);
      gradient[f][e] -= kAllAttended || weight[f][e] != 0 ? share : 0.0F;
      dbias[f][e] += gradient[f][e];
    }
  }
}

// Outputs go through LDS, 16 bytes a lane, where the next board has a buffer of its own: through
// what this board's keys and values leave free.
constexpr bool kOutputsThroughLds = kPairsOutputs && kBuffers == 2;

// A wave's share of a gradient: kRowTiles x 16 rows from `row` on.
template <int kDims, int kRowTiles>
struct GradientShare {
  static constexpr int kDimTiles = kDims / kScoreTile;
  int row;
  float sum[kRowTiles][kDimTiles][kElements] = {};

  // += factors . values of the step's kValueDepth rows in LDS
  template <class Tile, class Factors>
  FULMEN_DEVICE void add(unsigned lane, int at, int values_at, int step, const Factors& factors) {
    ProbabilityOperand factor[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) factor[t] = factors(row / kScoreTile + t);
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      const ValueOperand values = Tile::values(lane, at, values_at, step, d);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(sum[t][d], factor[t], values);
      if (d % 2 == 1) schedule_fence();
    }
  }
  // By way of LDS [16][kDims] at `at`, which is the wave's own.
  FULMEN_DEVICE void store_through(int at, const Board& board, Int64 end, int dims,
                                   float scale) const {
    store_tiles_through_lds<kDims, kRowTiles>(at, board.first, board.stride, row, end, dims, scale,
                                              sum);
  }
  // A row of tile t, from the lane's first column on, which is at `lane`.
  FULMEN_DEVICE void store_row(int t, int slot, Element* lane, bool there, int first, int dims,
                               float scale) const {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      if constexpr (kPairsOutputs) {
        const Words<2> words = paired_outputs<Element>(sum[t][d], slot, scale);
        if (there && (kExactDims || kScoreTile * d + first < dims))
          global_store(reinterpret_cast<Words<2>*>(lane + kScoreTile * d), words);
      } else {
#pragma unroll
        for (int e = 0; e < kElements; e += kOutputRun) {
          if (row_slot(e) != slot || !there) continue;
          float run[kOutputRun];
#pragma unroll
          for (int n = 0; n < kOutputRun; ++n) run[n] = sum[t][d][e + n] * scale;
          store_run(lane, kScoreTile * d + (output_column(e) - output_column(0)), dims - first,
                    run);
        }
      }
    }
  }
  FULMEN_DEVICE void store(const Board& board, Int64 end, int dims, float scale) const {
    const int first = kPairsOutputs ? paired_column() : output_column(0);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const int i = row + kScoreTile * t + tile_row(slot);
        const bool there = kWholeTiles || i < end;
        auto* lane =
            const_cast<Element*>(board.first) + (i * static_cast<Distance>(board.stride) + first);
        store_row(t, slot, lane, there, first, dims, scale);
      }
    }
  }
};

// Stores a gradient to memory, with kOutputsThroughLds by way of LDS at `free_at`, whose
// [kBlockM][kDims] are no longer needed.
template <int kDims, int kRowTiles>
FULMEN_DEVICE void give(const GradientShare<kDims, kRowTiles>& share, int free_at,
                        const Board& board, Int64 end, int dims, float scale) {
  if constexpr (kOutputsThroughLds) {
    share.store_through(free_at + kScoreTile * wave_id() * 2 * kDims, board, end, dims, scale);
  } else {
    share.store(board, end, dims, scale);
  }
}

// dk or dv, by half of the waves: of the columns of what is at transposed_at, and the queries'
// rows.
template <int kDims, class Tile>
FULMEN_DEVICE void give_key_rows(const BackwardArguments& a, int wave, unsigned lane,
                                 int transposed_at, int at, int values_at, int free_at,
                                 const Board& board, int dims, float scale) {
  constexpr int kRowTiles = kTiles < 2 ? 1 : 2;
  GradientShare<kDims, kRowTiles> share{kScoreTile * kRowTiles * wave};
#pragma unroll
  for (int step = 0; step < kValueSteps; ++step) {
    share.template add<Tile>(lane, at, values_at, step, [&](int tile) {
      return transposed_operand<kShort.square_pitch>(lane, transposed_at, step, tile);
    });
  }
  give(share, free_at, board, a.seqlen_k, dims, scale);
}

// P^T and dP^T of the wave's queries, by the tiles at `at`: weight and gradient, and the sum of
// gradients, dbias.
FULMEN_DEVICE void weights_and_gradients(const BackwardArguments& a, int batch, int head, int at,
                                         int row, const QueryLse& lse, const ScoreBias& bias,
                                         Scores& weight, Scores& gradient, Scores& dbias) {
  float dlse[kRowsPerLane] = {}, delta[kRowsPerLane] = {};
  if (a.dlse != nullptr) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const int asked = row + tile_row(slot), i = kWholeTiles || asked < a.seqlen_q ? asked : 0;
      dlse[slot] = global_load(a.dlse + batch * a.dlse_batch + head * a.dlse_head + i * a.dlse_row);
    }
  }
  first_products(a, batch, head, own_lane(), at, row, weight, gradient, delta);
  RowStatistics numbers[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    numbers[slot] = {lse.offset(slot), kReadsOut ? delta[slot] - dlse[slot] : 0.0F};
  }
  score_gradients(a, batch, head, own_lane(), row, numbers, bias, weight, gradient, dbias);
  if constexpr (!kReadsOut) subtract_deltas(dlse, weight, gradient, dbias);
}

// To LDS, for the products over queries.
FULMEN_DEVICE void leave_for_keys(unsigned lane, int wave, Scores& weight, const Scores& gradient) {
#pragma unroll
  for (int f = 0; f < kTiles; ++f) {
    if constexpr (kGivesDv)
      store_transposed<Element, kShort.square_pitch>(lane, kShort.weights_at, wave, f, weight[f]);
    if constexpr (kGivesDk)
      store_transposed<Element, kShort.square_pitch>(lane, kShort.gradients_at, wave, f,
                                                     gradient[f]);
  }
}

// dV by the first half of the waves, dK by the second.
template <class Again>
FULMEN_DEVICE void give_keys_and_values(const Again& arguments, int batch, int head, int at,
                                        int wave, unsigned lane) {
  if (wave < kWaves / 2) {
    if constexpr (kGivesDv) {
      const BackwardArguments& a = arguments();
      give_key_rows<kHeadDimV, DoutTile>(
          a, wave, lane, kShort.weights_at, at + kShort.dout_at, at + kShort.dout_values_at,
          at + kShort.v_at, Board::of(a.dv, batch, head), a.head_dim_v, undone_lift(a));
    }
  } else {
    if constexpr (kGivesDk) {
      const BackwardArguments& a = arguments();
      give_key_rows<kHeadDim, QueriesTile>(
          a, wave - kWaves / 2, lane, kShort.gradients_at, at + kShort.q_at,
          at + kShort.q_values_at, at, Board::of(a.dk, batch, head), a.head_dim, a.softmax_scale);
    }
  }
}

FULMEN_DEVICE void clear(Scores& scores) {
#pragma unroll
  for (int f = 0; f < kTiles; ++f) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) scores[f][e] = 0;
  }
}

// A workgroup's boards: those of a run of batches of one head, one after the other.
class BoardRun {
 public:
  FULMEN_DEVICE explicit BoardRun(const BackwardArguments& call) : call_(call) {
    const int id = static_cast<int>(workgroup_id());
    head_ = broadcast(id % call.num_heads);
    run_ = broadcast(id / call.num_heads);
    first_ = run_ * call.run_batches;
    last_ = call.run_batches < call.batch - first_ ? first_ + call.run_batches : call.batch;
    wave_ = wave_id();
    row_ = kScoreTile * wave_;
  }
  FULMEN_DEVICE void compute() {
    begin();
    int at = 0;  // the current buffer
    for (int batch = first_; batch < last_; ++batch) {
      board(batch, at);
      if constexpr (kBuffers == 2) at = kShort.buffer_bytes - at;
    }
    if constexpr (kGivesDbias && !kBatchDbias)
      BiasPart(arguments(), run_, first_, head_).store(arguments(), row_, dbias_);
  }

 private:
  // Loaded anew for each step of a board: they are more than scalar registers.
  FULMEN_DEVICE const BackwardArguments& arguments() { return reload(call_, step_++); }
  FULMEN_DEVICE bool more(int batch) const { return batch + 1 < last_; }
  FULMEN_DEVICE void fetch_keys(int batch, int at) {
    tiles_.fetch_keys(arguments(), batch, head_, at);
  }
  FULMEN_DEVICE void fetch_queries(int batch, int at) {
    tiles_.fetch_queries(arguments(), batch, head_, at);
  }
  FULMEN_DEVICE void load_next_lse(int batch) {
    if (more(batch)) next_lse_.load(arguments(), batch + 1, head_, row_);
  }

  FULMEN_DEVICE void begin() {
    if constexpr (kCopiesBias) ScoreBias::copy(arguments(), first_, head_);
    if constexpr (!kFetchLate) {
      fetch_keys(first_, 0);
      fetch_queries(first_, 0);
    }
    next_lse_.load(arguments(), first_, head_, row_);
    if constexpr (kHoldsBias && !kCopiesBias) bias_.hold(arguments(), first_, head_, row_);
  }
  // The board's tiles are in LDS, and the next board's are in flight where they have a buffer of
  // their own.
  FULMEN_DEVICE void publish(int batch, int at) {
    if constexpr (kFetchLate) {
      fetch_keys(batch, 0);
      fetch_queries(batch, 0);
    }
    tiles_.publish(at);
    barrier();
    if constexpr (kBuffers == 2) {
      if (more(batch)) {
        fetch_keys(batch + 1, kShort.buffer_bytes - at);
        fetch_queries(batch + 1, kShort.buffer_bytes - at);
      }
    }
  }
  FULMEN_DEVICE void board(int batch, int at) {
    publish(batch, at);
    const QueryLse lse = next_lse_;
    // Early where few registers are left after the scores.
    if constexpr (!kCopiesToLds) load_next_lse(batch);
    Scores weight = {}, gradient = {};
    weights_and_gradients(arguments(), batch, head_, at, row_, lse, bias_, weight, gradient,
                          dbias_);
    // Else after dlse has come: a wait for it would be one for both.
    if constexpr (kCopiesToLds) load_next_lse(batch);
    if constexpr (kGivesDbias && kBatchDbias) {
      BiasPart(arguments(), run_, batch, head_).store(arguments(), row_, dbias_);
      clear(dbias_);
    }
    const unsigned lane = own_lane();
    if constexpr (kTransposedValues) barrier();  // the rows have been read, and are overwritten
    if constexpr (kGivesDv && kLiftsWeights) {
      const float by = weight_lift(arguments());
#pragma unroll
      for (int f = 0; f < kTiles; ++f) lift(weight[f], by);
    }
    leave_for_keys(lane, wave_, weight, gradient);
    query_rows(batch, at, lane, gradient);
    if constexpr (kFetchHalves) {
      if (more(batch)) fetch_keys(batch + 1, 0);
    }
    give_keys_and_values([&]() -> const BackwardArguments& { return arguments(); }, batch, head_,
                         at, wave_, lane);
    if constexpr (kBuffers == 1) {
      barrier();
      fetch_next(batch);
    }
  }
  // dq of the wave's queries, and the barrier behind which all weights and gradients are in LDS.
  FULMEN_DEVICE void query_rows(int batch, int at, unsigned lane, const Scores& gradient) {
    GradientShare<kHeadDim, 1> dq{row_};
    const auto give_dq = [&] {
      const BackwardArguments& a = arguments();
      give(dq, at, Board::of(a.dq, batch, head_), a.seqlen_q, a.head_dim, a.softmax_scale);
    };
    if constexpr (kGivesDq) {
#pragma unroll
      for (int step = 0; step < kValueSteps; ++step) {
        dq.template add<QueriesTile>(lane, at, at + kShort.k_values_at, step,
                                     [&](int) { return step_operand<Element>(gradient, step); });
      }
      if constexpr (!kOutputsThroughLds) give_dq();
    }
    barrier();
    if constexpr (kGivesDq && kOutputsThroughLds) give_dq();
  }
  // To the one buffer, which is free.
  FULMEN_DEVICE void fetch_next(int batch) {
    if constexpr (kCopiesToLds) {
      if (more(batch)) {
        if constexpr (!kFetchHalves) fetch_keys(batch + 1, 0);
        fetch_queries(batch + 1, 0);
      }
    }
  }

  const BackwardArguments& call_;
  int head_, run_, first_, last_;  // batches [first, last)
  int wave_, row_;                 // the first of the wave's queries
  int step_ = 0;
  BoardTiles tiles_;
  QueryLse next_lse_;
  ScoreBias bias_;
  Scores dbias_ = {};
};

FULMEN_DEVICE void short_backward(const BackwardArguments& call) {
  grid_dependency_wait();
  BoardRun(call).compute();
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::short_backward)
