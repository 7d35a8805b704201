// A wave's rows in the pipeline of prefill_pipeline.h: a turn's products and the softmax between
// them.
#pragma once

#include "forward/parts/prefill_half_softmax.h"

namespace fulmen::kernels {

// A wave's rows in the pipeline.
class PipedRows {
  using Keys = decltype(key_operand(0, 0, 0, 0));
  using Values = decltype(value_operand(0, 0, 0, 0));
  static constexpr int kKeyGroups = kHalfTiles * kMmaSteps, kValueGroups = kHalfSteps * kDimTiles;

 public:
  static constexpr int kTurnGroups = kKeyGroups + kValueGroups;
  FULMEN_DEVICE PipedRows(const PrefillTask& task, WaveRows& rows)
      : rows_(rows), scale_(softmax_scale(task.map.arguments)) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) find_shift(t);
  }

  // The first keys of a half in `buffer`, for the next turn.
  FULMEN_DEVICE void read_first_keys(int buffer, int half) {
#pragma unroll
    for (int n = 0; n < kKeysAhead; ++n) keys_[n] = key(buffer, half, n);
  }
  FULMEN_DEVICE void multiply_keys(int buffer, int half, HalfScores& score) const {
#pragma unroll
    for (int n = 0; n < kKeyGroups; ++n) multiply_keys(n, key(buffer, half, n), score);
  }
  FULMEN_DEVICE void multiply_values(const HalfProbabilities& p, int buffer, int half) {
#pragma unroll
    for (int n = 0; n < kValueGroups; ++n) {
      const Values values = value(buffer, half, n);
#pragma unroll
      for (int part = 0; part < value_parts(); ++part) multiply_values(n, part, p, values);
    }
  }
  // score becomes p. kKeys: `next` becomes the scores of a half of `buffer`, whose first keys have
  // been read. kValues: O += before V, of a half of `buffer`. beside(g, last): after the g-th
  // products of kTurnGroups. Those after the last-th take nothing from LDS that is not in flight.
  template <bool kKeys, bool kValues, class Beside>
  FULMEN_DEVICE void turn(HalfScores& score, HalfProbabilities& p, HalfScores& next, int half,
                          const HalfProbabilities& before, int buffer, const Beside& beside) {
    Turn<kKeys, kValues, Beside> turn{
        *this, HalfSoftmax(score, scale_, shift_), p, next, before, half, buffer, beside};
    if constexpr (!kKeys) turn.template read_values<0, kValuesAhead>();
    schedule_fence();
    turn.template group<0>();
    end_turn(turn.softmax, score, p);
  }

 private:
  // Operands ahead of their products. With three waves a SIMD more would spill.
  static constexpr int kMostKeys = kMinWaves > 2 ? 2 : kKeysHeld,
                       kMostValues = kMinWaves > 2 ? 2 : kValuesHeld;
  static constexpr int kKeysAhead = kMostKeys < kKeyGroups ? kMostKeys : kKeyGroups,
                       kValuesAhead = kMostValues < kValueGroups ? kMostValues : kValueGroups;

  // The products of a turn, with the softmax between them.
  template <bool kKeys, bool kValues, class Beside>
  struct Turn {
    static constexpr int kFirst = kKeys ? kKeyGroups : 0,
                         kGroups = kFirst + (kValues ? kValueGroups : 0);
    // Behind the group that waits for what was read last but one.
    static constexpr int kBehindRead = kGroups - (kValues ? kValuesAhead : kKeysAhead) + 1,
                         kLastRead = kBehindRead < kGroups ? kBehindRead : kGroups - 1;
    PipedRows& rows;
    HalfSoftmax softmax;
    HalfProbabilities& p;
    HalfScores& next;
    const HalfProbabilities& before;
    int half, buffer;
    const Beside& beside;
    Values values[kValuesAhead];

    // Instructions of a group, of each row tile, that have elements of their own.
    FULMEN_DEVICE static constexpr int parts(int g) { return g < kFirst ? 1 : value_parts(); }
    // Elements that are done before a part of group g: as many as products.
    FULMEN_DEVICE static constexpr int elements(int g, int part) {
      const int keys = g < kFirst ? g : kFirst, here = g < kFirst ? kStepDims : kValueDepth,
                all = kFirst * kStepDims + (kGroups - kFirst) * kValueDepth;
      return HalfSoftmax::kAll *
             ((keys * kStepDims + (g - keys) * kValueDepth) * parts(g) + part * here) /
             (all * parts(g));
    }
    // What later groups take, in the place of what this one has taken.
    template <int kGroup>
    FULMEN_DEVICE void read_ahead() {
      if constexpr (kGroup < kFirst) {
        constexpr int kNext = kGroup + kKeysAhead, kValue = kGroup - (kFirst - kValuesAhead);
        if constexpr (kNext < kFirst) rows.keys_[kNext % kKeysAhead] = key(buffer, half, kNext);
        if constexpr (kValues && kGroup == kFirst - 1) {
          read_values<(kFirst >= kValuesAhead ? kValue : 0), kValuesAhead>();
        } else if constexpr (kValues && kFirst >= kValuesAhead && kValue >= 0) {
          read_values<kValue, kValue + 1>();
        }
      } else {
        constexpr int kNext = kGroup - kFirst + kValuesAhead;
        if constexpr (kNext < kValueGroups) read_values<kNext, kNext + 1>();
      }
    }
    template <int kFrom, int kUntil>
    FULMEN_DEVICE void exponentiate() {
      if constexpr (kFrom < kUntil) {
        softmax.template exponentiate<kFrom>();
        if constexpr (kFrom + 1 < kUntil) softmax.template finish<kFrom>(p);
        exponentiate<kFrom + 1, kUntil>();
      }
    }
    template <int kGroup, int kPart>
    FULMEN_DEVICE void part() {
      constexpr int kBegin = elements(kGroup, kPart), kEnd = elements(kGroup, kPart + 1);
      if constexpr (kGroup < kFirst) {
        rows.multiply_keys(kGroup, rows.keys_[kGroup % kKeysAhead], next);
      } else {
        rows.multiply_values(kGroup - kFirst, kPart, before,
                             values[(kGroup - kFirst) % kValuesAhead]);
      }
      if constexpr (kAlternates) {
        schedule_fence();
      } else {
        read_ahead<kGroup>();
      }
      exponentiate<kBegin, kEnd>();
      if constexpr (kAlternates) schedule_fence();
      if constexpr (kBegin < kEnd) softmax.template finish<kEnd - 1>(p);
      if constexpr (kPart + 1 < parts(kGroup)) {
        schedule_fence();
        part<kGroup, kPart + 1>();
      }
    }
    template <int kFrom, int kUntil>
    FULMEN_DEVICE void read_values() {
      if constexpr (kFrom < kUntil) {
        values[kFrom % kValuesAhead] = value(buffer, half, kFrom);
        read_values<kFrom + 1, kUntil>();
      }
    }
    template <int kGroup>
    FULMEN_DEVICE void group() {
      if constexpr (kGroup >= kGroups) return;
      part<kGroup, 0>();
      if constexpr (kAlternates) read_ahead<kGroup>();
      beside(kGroup, kLastRead);
      schedule_fence();
      if constexpr (kGroup + 1 < kGroups) group<kGroup + 1>();
    }
  };

  FULMEN_DEVICE static Keys key(int buffer, int half, int n) {
    return key_operand(buffer, kHalfTiles * half + n % kHalfTiles, n / kHalfTiles, 0);
  }
  FULMEN_DEVICE static Values value(int buffer, int half, int n) {
    return value_operand(buffer, kHalfSteps * half + n / kDimTiles, n % kDimTiles, 0);
  }
  FULMEN_DEVICE void multiply_keys(int n, const Keys& keys, HalfScores& score) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float(&sums)[kElements] = score[t][n % kHalfTiles];
#pragma unroll
      for (int e = 0; e < kElements && n < kHalfTiles; ++e) sums[e] = 0;
      multiply_scores<Element>(sums, keys, rows_.queries[t][n / kHalfTiles]);
    }
  }
  FULMEN_DEVICE void multiply_values(int n, int part, const HalfProbabilities& p,
                                     const Values& values) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      multiply_value_part(rows_.out[t][n % kDimTiles], p.step[n / kDimTiles][t], values, part);
    }
  }

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
  FULMEN_DEVICE void end_turn(const HalfSoftmax& softmax, HalfScores& score, HalfProbabilities& p) {
    bool follows = false;
    float sums[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      follows = follows || outgrows(softmax, score, t);
      sums[t] = rows_.state[t].sum[0];
      rows_.state[t].sum[0] = evaluated(sums[t] + softmax.sum(t));
#pragma unroll
      for (int step = 0; step < kHalfSteps; ++step) evaluate(p.step[step][t]);
    }
    if (__builtin_expect(any_lane(follows), 0)) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        rows_.state[t].sum[0] = sums[t];
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
  Keys keys_[kKeysAhead];  // the next ones
};

}  // namespace fulmen::kernels
