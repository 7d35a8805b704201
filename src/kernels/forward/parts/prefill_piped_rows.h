// A wave's rows in the pipeline of prefill_pipeline.h: their products, and what a turn leaves.
#pragma once

#include "forward/parts/prefill_turn.h"

namespace fulmen::kernels {

class PipedRows {
 public:
  using Keys = decltype(key_operand(0, 0, 0, 0));
  using Values = decltype(value_operand(0, 0, 0, 0));

  FULMEN_DEVICE PipedRows(const PrefillTask& task, WaveRows& rows)
      : rows_(rows), scale_(softmax_scale(task.map.arguments)) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) find_shift(t);
  }

  // The first keys of a half in `buffer`, for the next turn.
  FULMEN_DEVICE void read_first_keys(int buffer, int half) {
#pragma unroll
    for (int n = 0; n < kKeysAhead; ++n) keys[n] = key(buffer, half, n);
  }
  FULMEN_DEVICE void multiply_keys(int buffer, int half, HalfScores& score) const {
#pragma unroll
    for (int n = 0; n < kKeyGroups; ++n) {
      const Keys operand = key(buffer, half, n);
#pragma unroll
      for (int part = 0; part < score_parts(); ++part) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_keys(n, part, t, operand, score);
      }
    }
  }
  FULMEN_DEVICE void multiply_values(const HalfProbabilities& p, int buffer, int half) {
#pragma unroll
    for (int n = 0; n < kValueGroups; ++n) {
      const Values operand = value(buffer, half, n);
#pragma unroll
      for (int part = 0; part < value_parts(); ++part) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_values(n, part, t, p, operand);
      }
    }
  }
  // score becomes p. kKeys: `next` becomes the scores of a half of `buffer`, whose first keys have
  // been read. kValues: O += before V, of a half of `buffer`. beside(n): behind the n-th product.
  template <bool kKeys, bool kValues, class Beside>
  FULMEN_DEVICE void turn(HalfScores& score, HalfProbabilities& p, HalfScores& next, int half,
                          const HalfProbabilities& before, int buffer, const Beside& beside) {
    using ThisTurn = Turn<PipedRows, kKeys, kValues, Beside>;
    ThisTurn turn{*this, HalfSoftmax(score, scale_, shift_), score, p, next, before, half, buffer,
                  beside};
    turn.run();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (ThisTurn::Order::summed_at(t) == ThisTurn::Order::kAll) sum_up(turn.softmax, score, t);
    }
    end_turn(score, p);
  }

  // What Turn takes: an operand's instruction of row tile t.
  FULMEN_DEVICE static Keys key(int buffer, int half, int n) {
    return key_operand(buffer, kHalfTiles * half + n % kHalfTiles, n / kHalfTiles, 0);
  }
  FULMEN_DEVICE static Values value(int buffer, int half, int n) {
    return value_operand(buffer, kHalfSteps * half + n / kDimTiles, n % kDimTiles, 0);
  }
  FULMEN_DEVICE void multiply_keys(int n, int part, int t, const Keys& operand,
                                   HalfScores& score) const {
    float(&sums)[kElements] = score[t][n % kHalfTiles];
#pragma unroll
    for (int e = 0; e < kElements && n < kHalfTiles && part == 0; ++e) sums[e] = 0;
    multiply_score_part(sums, operand, rows_.queries[t][n / kHalfTiles], part);
  }
  FULMEN_DEVICE void multiply_values(int n, int part, int t, const HalfProbabilities& p,
                                     const Values& operand) {
    multiply_value_part(rows_.out[t][n % kDimTiles], p.step[n / kDimTiles][t], operand, part);
  }
  // A row tile's sum, and whether the reference is to follow.
  FULMEN_DEVICE void sum_up(const HalfSoftmax& softmax, const HalfScores& score, int t) {
    follows_ = (t > 0 && follows_) || outgrows(softmax, score, t);
    sums_[t] = rows_.state[t].sum[0];
    rows_.state[t].sum[0] = evaluated(sums_[t] + softmax.sum(t));
  }

  Keys keys[kKeysAhead];  // the next ones

 private:
  // Before the first key every probability is infinite, so that the reference follows.
  FULMEN_DEVICE void find_shift(int t) {
    const RowState& state = rows_.state[t];
    shift_[t] = state.reference[0] == -kInfinity ? kNoShift : exponent_shift(state, scale_, 0);
  }
  // Returns true if the reference of a lane's row is to follow. A lane's probabilities are at most
  // their sum.
  FULMEN_DEVICE bool outgrows(const HalfSoftmax& softmax, const HalfScores& score, int t) const {
    constexpr float kMost = kIsHalf<Element> ? 256.0F / kHalfUnshift : 256.0F;
    if constexpr (!kLosesSmall<Element>) return !(softmax.sum(t) <= kMost);
    float max[kRowsPerLane];
    find_own_maxima(score[t], max);
    return exceeds(rows_.state[t], scale_, max);
  }
  FULMEN_DEVICE void end_turn(HalfScores& score, HalfProbabilities& p) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int step = 0; step < kHalfSteps; ++step) evaluate(p.step[step][t]);
    }
    if (__builtin_expect(any_lane(follows_), 0)) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        rows_.state[t].sum[0] = sums_[t];
        follow(score, t, p);
      }
    }
  }
  // Codes are never piped (kPipelines).
  template <class Probabilities>
  FULMEN_DEVICE static void evaluate(Probabilities& p) {
    if constexpr (!kCodeValues) {
#pragma unroll
      for (unsigned& word : p.words.word) word = evaluated(word);
    }
  }
  FULMEN_DEVICE void follow(HalfScores& score, int t, HalfProbabilities& p) {
    RowState& state = rows_.state[t];
    float max[kRowsPerLane], factor[kRowsPerLane];
    find_own_maxima(score[t], max);
    exchange_maxima(max);
    follow_maxima(state, scale_, max, factor);
    // As pairs: the compiler would pair outputs of different products, and move all of them.
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        float* const two = rows_.out[t][d] + e;
        const Pair product = multiply_add(Pair{two[0], two[1]}, factor[0], 0.0F);
        two[0] = product.x;
        two[1] = product.y;
      }
    }
#pragma unroll
    for (int f = 0; f < kHalfTiles; ++f) exponentiate_keys(state, scale_, score[t][f]);
#pragma unroll
    for (int step = 0; step < kHalfSteps; ++step)
      p.step[step][t] = staged_probabilities(score[t], step);
    find_shift(t);
  }

  WaveRows& rows_;
  float scale_;
  float shift_[kRowTiles];
  float sums_[kRowTiles];  // before the turn
  bool follows_ = false;
};

}  // namespace fulmen::kernels
