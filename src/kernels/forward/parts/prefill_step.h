// A step of prefill.h: a wave's query rows and one tile of keys.
//   S[16 kRowTiles, kBlockN] = Q K^T,  P = 2^(S - max),  O[16 kRowTiles, kHeadDimV] += P V
#pragma once

#include "tile/wave_step.h"

namespace fulmen::kernels {

struct PrefillTask {
  const ForwardArguments& call;
  const RowMap& map;  // of the sequence
  Int64 wave_row;     // the first of the wave's rows
  int first_row;      // the same, of the workgroup's

  // How many of a tile's first keys the wave computes: up to the last one that its rows attend, or
  // none.
  FULMEN_DEVICE int attended_keys(const algorithm::Band& band, Int64 row_end,
                                  Int64 first_key) const {
    const Int64 end = wave_row + kScoreTile * kRowTiles;
    const algorithm::KeyRange keys = band.any(wave_row, end < row_end ? end : row_end);
    return first_key + kBlockN > keys.begin ? at_most(keys.end - first_key, kBlockN) : 0;
  }
  FULMEN_DEVICE void load_queries(const QuerySource& source, WaveRows& rows) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kQueryMmaSteps; ++d)
        rows.queries[t][d] = Stage::query_operand(source, first_row + kScoreTile * t, d);
    }
    if constexpr (kQueryMmaSteps > 0) Stage::queries_arrived(rows.queries);
  }
  FULMEN_DEVICE StagedRows queries(const WaveRows& rows, int t, int d, unsigned lane) const {
    if (d < kQueryMmaSteps) return rows.queries[t][d < kQueryMmaSteps ? d : 0];
    return lds_queries(first_row + kScoreTile * t, d, lane);
  }

  template <class Copies>
  FULMEN_DEVICE void multiply(const WaveRows& rows, int buffer, ScoreFragment& score,
                              Copies& copies) const {
    const unsigned lane = operand_lane();
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) {
      StagedRows query[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) query[t] = queries(rows, t, d, lane);
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
        const auto keys = key_operand(buffer, f, d, lane);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_scores<Element>(score[t][f], keys, query[t]);
      }
      if (kTightRegisters && d % kTightSteps == kTightSteps - 1) schedule_fence();
      copies.turn(d, kMmaSteps);
    }
  }

  // Else the compiler moves the products behind a barrier, or loads of scales before them, and
  // operands to scratch memory.
  FULMEN_DEVICE static void compute_now(ScoreFragment& score) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int bits = recompute(static_cast<int>(float_bits(score[t][f][e])));
          score[t][f][e] = bits_float(static_cast<unsigned>(bits));
        }
      }
    }
  }

  // queries_read(): the wave needs this tile's queries no more.
  template <bool kMasked, class Copies, class QueriesRead>
  FULMEN_DEVICE void step(WaveRows& rows, const KeyTile& tile, Copies& copies,
                          const QueriesRead& queries_read) const {
    ScoreFragment score = {};
    rows.codes.begin(score);
    multiply(rows, tile.buffer, score, copies);
    if constexpr (kValuesFollow || kStagesScales<false>) compute_now(score);
    queries_read();
    attend<kMasked>(map, wave_row, tile, score, rows);
  }
};

}  // namespace fulmen::kernels
