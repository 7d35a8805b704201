// Pairs of waves that share keys and split the work by gradient: one computes the probabilities and
// dv, the other, from these, the scores' gradients and dk. Each reads a tile of q and a tile of
// dout from LDS once for twice as many keys as if it had both gradients: what it takes for its
// scores and what it takes for its sums are one tensor's tile each.
//
//   the first wave     S^T = k q^T        P^T = 2^(S^T - lse)           dv += P^T dout
//   the second         D^T = v dout^T     dS^T = P^T (D^T - delta)      dk += dS^T q
//
// P^T goes to the second wave in 16 bits an element, through the place in LDS that dS^T takes then.
// k and v stay in LDS, too, and are read once a tile: so there are registers to read dq's operands
// ahead.
#pragma once

#include "backward/parts/atomic_lds.h"
#include "backward/parts/owned_keys.h"

namespace fulmen::kernels {

// A wave's sums, of dv or dk.
constexpr int kSumTiles = kHeadDim / 8 / kDimGroups;
struct PairRows {
  float sum[kRowTiles][kSumTiles][kElements];
};

// What a wave does of a pair, or of two.
struct PairScores : BackwardTask {
  using Rows = SwizzledRows<kHeadDim>;
  using OutRows = SwizzledRows<kScoreTile * kSumTiles>;
  static_assert(!kPairs || kWaves * kRowTiles * kScoreTile * OutRows::kPitch <=
                               kBuffers * kBackward.buffer_bytes,
                "backward: outputs have room where queries were");
  bool second;

  // dk or dv, dims from first_dim on: by way of LDS, where tiles of queries were, 16 bytes a lane
  // to memory.
  FULMEN_DEVICE void store_half(Int64 kv_head, int first_dim, const PairRows& rows) const {
    const BackwardArguments& a = arguments;
    // Apart: else the waves of a pair would have their sums in the same registers in the loop, too,
    // by moves and spills.
    if (second) {
      if constexpr (kGivesDk)
        store_sums_to(a.dk, kv_head, first_dim, a.head_dim, a.softmax_scale, rows);
    } else {
      if constexpr (kGivesDv) store_sums_to(a.dv, kv_head, first_dim, a.head_dim_v, 1.0F, rows);
    }
  }
  FULMEN_DEVICE void store_sums_to(const View& view, Int64 kv_head, int first_dim, int dims,
                                   float factor, const PairRows& rows) const {
    const unsigned lane = lane_again();
    const int from = wave_id() * kRowTiles * kScoreTile * OutRows::kPitch;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kSumTiles; ++d) {
        Words<4> words;
#pragma unroll
        for (int w = 0; w < 4; ++w)
          words.word[w] =
              pack<Element>(rows.sum[t][d][2 * w] * factor, rows.sum[t][d][2 * w + 1] * factor);
        OutRows::leave(lane, from, kScoreTile * t, d, words);
      }
    }
    wave_barrier();
    constexpr int kPieces = 2 * kSumTiles;
#pragma unroll
    for (int n = 0; n < kRowTiles * kScoreTile * kPieces / kWaveSize; ++n) {
      const unsigned index = lane + n * kWaveSize;
      const int row = static_cast<int>(index / kPieces), piece = static_cast<int>(index % kPieces);
      if (wave_row + row >= row_end) break;
      auto* to = const_cast<Element*>(at<Element>(view, batch, wave_row + row, kv_head));
      store_piece(to, first_dim + 8 * piece, dims,
                  lds_load<Words<4>>(from + OutRows::place(row, 16 * piece)));
    }
  }
  // Loads the log-sum-exps, or with kSecond the deltas, of the lane's columns of 16 queries.
  template <bool kSecond>
  FULMEN_DEVICE static void load_numbers(int at, int f, float (&number)[4]) {
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const auto two =
          lds_load<Words<4>>(at + kBackward.numbers_at + 8 * (kScoreTile * f + tile_column(2 * n)));
      number[n] = bits_float(two.word[kSecond ? 1 : 0]);
      number[n + 1] = bits_float(two.word[kSecond ? 3 : 2]);
    }
  }

  // Overwrites the score of element e with P, as dv takes it. `sent` is P for the second wave,
  // times the softcap's slope; its sign bit marks dropped, -0 masked.
  template <bool kMasked>
  FULMEN_DEVICE void first_element(const TileScores& tile, int e, int first_column, float offset,
                                   bool stays, float& score, float& sent) const {
    const int slot = row_slot(e), column = first_column + tile_column(e);
    const bool in_band = !kMasked || (column >= tile.low[slot] && column < tile.high[slot]);
    const ScoreInputs inputs =
        tile.score(slot, kMasked && column > tile.last_column ? tile.last_column : column);
    const ScoreTerms terms = ScoreTerms::of(inputs, in_band && tile.keeps(first_column, e));
    static_assert(!kScoreMod, "backward_atomic: the signs of scores' slopes have another meaning");
    ScoreSlopes slopes;
    const float p = RowShares::load(inputs.share, offset) *
                    probability_of(arguments, terms, offset, score, slopes);
    sent = kSoftcap ? p * larger(slopes.softcap, 0.0F) : p;
    score = p;
    if constexpr (kDropout) {
      score = stays ? p * arguments.dropout_scale : 0.0F;
      sent = stays ? sent : -sent;
    }
    if (!terms.attended) {
      score = 0;
      sent = -0.0F;
    }
  }

  // P^T of 16 keys and 16 queries. offset: of the lane's columns.
  template <bool kMasked>
  FULMEN_DEVICE ProbabilityOperand first_tile(const TileScores& tile, int f,
                                              const float (&offset)[4],
                                              const DropoutTile<true>& stays,
                                              ProbabilityOperand& to_second,
                                              float (&score)[kElements]) const {
    float sent[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      first_element<kMasked>(tile, e, kScoreTile * f, offset[e / 4 * 2 + e % 2], stays.keeps(e),
                             score[e], sent[e]);
    to_second = to_operand<Element>(sent);
    if constexpr (kSoftcap || kDropout) return to_operand<Element>(score);
    return to_second;
  }
  // dS^T of the same, in place of D^T.
  template <bool kMasked>
  FULMEN_DEVICE ProbabilityOperand second_tile(const ProbabilityOperand& sent,
                                               const float (&delta)[4],
                                               float (&gradient)[kElements]) const {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const unsigned bits = sent.words.word[e / 2] >> (e % 2 * 16U) & 0xFFFFU;
      const float number = of_bits<Element>(kDropout ? bits & 0x7FFFU : bits);
      float d = gradient[e];
      if constexpr (kDropout) d *= bits < 0x8000U ? arguments.dropout_scale : 0.0F;
      gradient[e] = number * (d - delta[e / 4 * 2 + e % 2]);
      if constexpr (kMasked || kKeepMask) gradient[e] = bits == 0x8000U ? 0.0F : gradient[e];
    }
    return to_operand<Element>(gradient);
  }
};

struct PairTask : PairScores {
  static constexpr int kCount = kWaves / 2;
  int pair;

  // The first half of the waves begin a tile with dq: by then P^T is there.
  FULMEN_DEVICE static PairTask of(const BackwardArguments& a, Int64 batch,
                                   const algorithm::Band& band, Int64 row_begin, Int64 row_end,
                                   int wave) {
    const int pair = wave % kCount;
    return {
        {{a, batch, band, row_begin + pair * kRowTiles * kScoreTile, row_end, 0, 0}, wave < kCount},
        pair};
  }
  FULMEN_DEVICE int row() const { return pair * kRowTiles * kScoreTile; }
  FULMEN_DEVICE void store_sums(Int64 kv_head, const PairRows& rows) const {
    store_half(kv_head, 0, rows);
  }

  template <bool kMasked, bool kSecond>
  FULMEN_DEVICE void step(PairRows& rows, Int64 head, Int64 first_query, int buffer,
                          int gradients_at) const {
    const int at = buffer * kBackward.buffer_bytes,
              scores_from = at + (kSecond ? kBackward.second_at : 0),
              sums_from = at + (kSecond ? 0 : kBackward.second_at);
    const int scores_at = gradients_at + row() * ScoreRows::kPitch;
    const int own_at =
        (kSecond ? kBackward.second_rows_at : kBackward.first_rows_at) + row() * FirstRows::kPitch;
    const unsigned lane = lane_again();
    const DropoutMask dropout(arguments, batch, head);
    TileScores tile[kRowTiles];
    if constexpr (!kSecond) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        tile[t] = tile_scores<kMasked>(head, wave_row + kScoreTile * t, first_query);
    }
    QueryOperand own[kRowTiles][kSteps];
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      float score[kRowTiles][kElements] = {};
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        const KeyOperand column = Rows::keys(lane, scores_from, kScoreTile * f, d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          if (f == 0) own[t][d] = Rows::queries(lane, own_at, kScoreTile * t, d);
          multiply_scores<Element>(score[t], column, own[t][d]);
        }
      }
      float number[4];
      load_numbers<kSecond>(at, f, number);
      ProbabilityOperand p[kRowTiles], handed[kRowTiles];
      if constexpr (kSecond) {
        if (f % kHandedTiles == 0) named_barrier_sync(1 + 2 * pair + f / kHandedTiles);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
          handed[t] = ScoreRows::rows(lane, scores_at + kScoreTile * t * ScoreRows::kPitch, f);
        wave_barrier();  // dS^T takes its place
      }
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        if constexpr (kSecond) {
          p[t] = second_tile<kMasked>(handed[t], number, score[t]);
          ScoreRows::leave(lane, scores_at + kScoreTile * t * ScoreRows::kPitch, f, p[t]);
        } else {
          const auto stays =
              staying(dropout, wave_row + kScoreTile * t, first_query + kScoreTile * f);
          p[t] = first_tile<kMasked>(tile[t], f, number, stays, handed[t], score[t]);
          ScoreRows::leave(lane, scores_at + kScoreTile * t * ScoreRows::kPitch, f, handed[t]);
        }
      }
      if constexpr (!kSecond) {
        if ((f + 1) % kHandedTiles == 0) named_barrier_arrive(1 + 2 * pair + f / kHandedTiles);
      }
      if constexpr (kSecond ? kGivesDk : kGivesDv) {
#pragma unroll
        for (int d = 0; d < kSumTiles; ++d) {
          const ValueOperand values = Rows::values(lane, sums_from, f, d);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t)
            multiply_output<Element>(rows.sum[t][d], p[t], values);
        }
      }
    }
  }

 private:
  static constexpr int kSteps = kHeadDim / kTileMmaK;
  static constexpr int kHandedTiles = kColumnTiles / 2;  // of 16 queries, at a time
};

}  // namespace fulmen::kernels
