// forward/decode_latent_waves.h: a wave's 16 rows as queries. Their probabilities, and by how much
// sums of before are to be rescaled, go to LDS for all waves.
#pragma once

#include "forward/parts/latent_stage.h"
#include "forward/parts/split_keys.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

constexpr int kKeyTiles = kBlockN / kScoreTile, kValueSteps = kKeyTiles / kStepTiles;
constexpr int kMmaSteps = kHeadDim / kMmaK;
static_assert(kBlockM == kScoreTile * kWaves && kBlockN % kValueDepth == 0 && kRowsPerLane == 1,
              "decode_latent: a wave has 16 rows of the workgroup's, a lane one");

// The lane's number, of which addresses are computed anew in each turn: registers are full.
FULMEN_DEVICE int lane_again(int turn) { return recompute(lane_id(), turn); }
// Where the operand of a product of 16 rows' probabilities lies: as a lane has it.
FULMEN_DEVICE int probabilities_at(int part, int row_tile, int step, int lane) {
  constexpr int kBytes = sizeof(ProbabilityOperand{}.words);
  return kLatentLayout.probabilities_at + part * kLatentLayout.probability_bytes +
         ((row_tile * kValueSteps + step) * kWaveSize + lane) * kBytes;
}
// A lane has row lane % 16.
FULMEN_DEVICE int factor_at(int part, int row_tile, int lane) {
  return kLatentLayout.factors_at +
         4 * (part * kBlockM + row_tile * kScoreTile + lane % kScoreTile);
}

class LatentScores {
 public:
  static constexpr int kProducts = kMmaSteps * kKeyTiles;

  FULMEN_DEVICE LatentScores(const RowMap& map, int first_row) : map_(map), first_row_(first_row) {
    const ForwardArguments& a = map.arguments;
    const Int64 row = map.clamp(first_row + piece_row(0));
    const Element* const query = at<Element>(a.q, map.batch, map.query(row), map.head(row));
    state_.clear();
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) {
      Words<4> piece = load_piece(query, kMmaK * d + piece_dim(0), a.head_dim);
      if (d >= kHeldQueries) {
        lds_store(query_at(d, lane_id()), piece);
        continue;
      }
      // Here, or the compiler waits for them in each turn of the loop, and for the next tile with
      // them.
#pragma unroll
      for (unsigned& word : piece.word) word = evaluated(word);
      queries_[d < kHeldQueries ? d : 0].piece[0] = piece;
    }
  }

  // S = Q K^T of a tile in LDS. beside(n): behind the n-th product of kProducts.
  template <class Beside>
  FULMEN_DEVICE void multiply_keys(int buffer, const Beside& beside) {
    const LatentTile tile = LatentTile::of(buffer, 0);
    const auto key = [&](int n) { return load_keys(tile, n % kKeyTiles, kMmaK * (n / kKeyTiles)); };
    const int lane = lane_again(buffer);
    StoredKeys keys[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) keys[n] = key(n);
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
      schedule_fence();
      if (n < kKeyTiles) clear(score_[n]);
      multiply_scores<Element>(score_[n % kKeyTiles], key_operand(keys[n % kAhead]),
                               query(n / kKeyTiles, lane));
      if (n + kAhead < kProducts) keys[n % kAhead] = key(n + kAhead);
      beside(n);
    }
    schedule_fence();
  }

  // P = 2^(S - reference), to `part` of LDS.
  FULMEN_DEVICE void publish(Int64 first_key, const SplitKeys& split, int part) {
    modify(first_key, split, lane_again(part));
    float factor = 1;
    exponentiate(state_, softmax_scale(map_.arguments), score_,
                 [&](const float(&rescale)[kRowsPerLane]) { factor = rescale[0]; });
    const int wave = wave_id(), lane = lane_again(part);
#pragma unroll
    for (int step = 0; step < kValueSteps; ++step)
      lds_store(probabilities_at(part, wave, step, lane),
                step_operand<Element, true>(score_, step).words);
    if (lane < kScoreTile) lds_store(factor_at(part, wave, lane), factor);
  }

  FULMEN_DEVICE float sum() const { return total(state_.sum[0]); }
  FULMEN_DEVICE float max() const { return row_maximum(state_, softmax_scale(map_.arguments), 0); }

 private:
  static constexpr int kHeldQueries = kMmaSteps - kLdsQueries;
  static constexpr int kAhead = 2;  // operands of keys in flight

  // Of the own rows' queries, as a lane has them.
  FULMEN_DEVICE static int query_at(int d, int lane) {
    return kLatentLayout.total + (d - kHeldQueries) * LatentWavesLayout::query_bytes(kBlockM) +
           16 * (wave_id() * kWaveSize + lane);
  }
  FULMEN_DEVICE RowOperand query(int d, int lane) const {
    if (d < kHeldQueries) return queries_[d < kHeldQueries ? d : 0];
    return {{lds_load<Words<4>>(query_at(d, lane))}};
  }
  FULMEN_DEVICE void modify(Int64 first_key, const SplitKeys& split, int lane) {
    if (kPlainScale && !kBand) {
      if (split.is_masked(first_key)) hide_outside(first_key, split, lane);
      return;
    }
    const auto end = [&](const ForwardArguments& /*a*/) { return split.any.end; };
    if (split.is_masked(first_key)) {
      modify_scores<true>(map_, first_row_, first_key, score_, end);
    } else {
      modify_scores<false>(map_, first_row_, first_key, score_, end);
    }
  }
  // All rows attend the split's keys alone. As modify_scores() does it, but that no register has
  // the lane's columns in every turn.
  FULMEN_DEVICE void hide_outside(Int64 first_key, const SplitKeys& split, int lane) {
    const int begin = static_cast<int>(split.any.begin - first_key),
              end = at_most(split.any.end - first_key, kBlockN);
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int column = kScoreTile * f + lane / kScoreTile * kElements + e;
        if (column < begin || column >= end) score_[f][e] = -kInfinity;
      }
    }
  }
  FULMEN_DEVICE static void clear(float (&sums)[kElements]) {
#pragma unroll
    for (float& x : sums) x = 0;
  }

  const RowMap& map_;
  int first_row_;
  RowState state_;
  TileRow<kKeyTiles> score_ = {};
  RowOperand queries_[kHeldQueries];
};

}  // namespace fulmen::kernels
