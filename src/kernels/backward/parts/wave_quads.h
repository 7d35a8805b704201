// backward/parts/wave_pairs.h where sums of 32 keys' dv alone do not fit in a wave's registers: two
// waves for dv and two for dk share 32 keys. Each makes the scores of half of the queries and the
// sums of half of the dims, and has the other half's P^T, or dS^T, from LDS.
#pragma once

#include "backward/parts/wave_pairs.h"

namespace fulmen::kernels {

struct QuadTask : PairScores {
  static constexpr int kOwnTiles = kColumnTiles / 2;  // of its queries
  // dv takes others than the second waves.
  static constexpr bool kOtherWeights = kSoftcap || kDropout;
  static constexpr int kGroups = kWaves / 4;
  int group, half;

  FULMEN_DEVICE static QuadTask of(const BackwardArguments& a, Int64 batch,
                                   const algorithm::Band& band, Int64 row_begin, Int64 row_end,
                                   int wave) {
    const int place = wave % (2 * kGroups), group = place / 2;
    return {{{a, batch, band, row_begin + group * kRowTiles * kScoreTile, row_end, 0, 0},
             wave < 2 * kGroups},
            group,
            place % 2};
  }
  FULMEN_DEVICE int row() const { return group * kRowTiles * kScoreTile; }
  FULMEN_DEVICE void store_sums(Int64 kv_head, const PairRows& rows) const {
    store_half(kv_head, half * kScoreTile * kSumTiles, rows);
  }

  template <bool kMasked, bool kSecond>
  FULMEN_DEVICE void step(PairRows& rows, Int64 head, Int64 first_query, int buffer,
                          int gradients_at) const {
    const int at = buffer * kBackward.buffer_bytes,
              scores_from = at + (kSecond ? kBackward.second_at : 0),
              sums_from = at + (kSecond ? 0 : kBackward.second_at);
    // Places in LDS of this wave's half of the queries.
    const int of_half = half * kScorePartBytes + row() * ScoreRows::kPitch,
              first_at = kAtomic.probabilities_at + of_half,
              operands_at = kSecond         ? gradients_at + of_half
                            : kOtherWeights ? kAtomic.weights_at + of_half
                                            : first_at;
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
    float score[kOwnTiles][kRowTiles][kElements] = {};
    multiply_own(lane, own_at, scores_from, score);
    if constexpr (kSecond) named_barrier_sync(place(0, half));
    ProbabilityOperand p[kOwnTiles][kRowTiles];
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      const int f = half * kOwnTiles + n;
      float number[4];
      load_numbers<kSecond>(at, f, number);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const int from = kScoreTile * t * ScoreRows::kPitch;
        if constexpr (kSecond) {
          p[n][t] =
              second_tile<kMasked>(ScoreRows::rows(lane, first_at + from, n), number, score[n][t]);
          ScoreRows::leave(lane, operands_at + from, n, p[n][t]);
        } else {
          ProbabilityOperand handed;
          const auto stays =
              staying(dropout, wave_row + kScoreTile * t, first_query + kScoreTile * f);
          p[n][t] = first_tile<kMasked>(tile[t], f, number, stays, handed, score[n][t]);
          ScoreRows::leave(lane, first_at + from, n, handed);
          if constexpr (kOtherWeights) ScoreRows::leave(lane, operands_at + from, n, p[n][t]);
        }
      }
    }
    if constexpr (!kSecond) named_barrier_arrive(place(0, half));
    named_barrier_arrive(place(kSecond ? 2 : 1, half));
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n)
      multiply_sums<kSecond>(rows, sums_from, half * kOwnTiles + n, lane, p[n]);
    named_barrier_sync(place(kSecond ? 2 : 1, 1 - half));
    const int others_at = operands_at + (1 - 2 * half) * kScorePartBytes;
#pragma unroll
    for (int n = 0; n < kOwnTiles; ++n) {
      const int f = (1 - half) * kOwnTiles + n;
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        p[0][t] = ScoreRows::rows(lane, others_at + kScoreTile * t * ScoreRows::kPitch, n);
      multiply_sums<kSecond>(rows, sums_from, f, lane, p[0]);
    }
  }

 private:
  // S^T, or dP^T, of the wave's keys and its half of the queries: own rows times columns, both in
  // LDS.
  FULMEN_DEVICE void multiply_own(unsigned lane, int own_at, int columns_at,
                                  float (&score)[kOwnTiles][kRowTiles][kElements]) const {
#pragma unroll
    for (int d = 0; d < kHeadDim / kTileMmaK; ++d) {
      QueryOperand own[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) own[t] = Rows::queries(lane, own_at, kScoreTile * t, d);
#pragma unroll
      for (int n = 0; n < kOwnTiles; ++n) {
        const KeyOperand column =
            Rows::keys(lane, columns_at, kScoreTile * (half * kOwnTiles + n), d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_scores<Element>(score[n][t], column, own[t]);
      }
    }
  }
  // From the first waves to the second ones, among the first, and among the second.
  FULMEN_DEVICE int place(int kind, int from) const { return 1 + 6 * group + 2 * kind + from; }
  template <bool kSecond>
  FULMEN_DEVICE void multiply_sums(PairRows& rows, int from, int f, unsigned lane,
                                   const ProbabilityOperand (&p)[kRowTiles]) const {
    // Further lanes' addresses are the same.
    constexpr bool kWholeLines = 32 * kSumTiles % 128 == 0;
    if constexpr (kSecond ? kGivesDk : kGivesDv) {
#pragma unroll
      for (int d = 0; d < kSumTiles; ++d) {
        const ValueOperand values =
            Rows::values(lane, from + (kWholeLines ? 32 * kSumTiles * half : 0), f,
                         (kWholeLines ? 0 : half * kSumTiles) + d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.sum[t][d], p[t], values);
      }
    }
  }
};

}  // namespace fulmen::kernels
