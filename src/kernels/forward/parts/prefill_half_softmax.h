// Halves of a tile in the pipeline of prefill_pipeline.h: their scores become probabilities beside
// the products of other halves.
#pragma once

#include "forward/parts/prefill_step.h"
#include "tile/read_ahead.h"

namespace fulmen::kernels {

constexpr bool kPipelines = kReadsAhead && kMinWaves > 1 && kPlainScale && !kDropout && !kPaged &&
                            kKeyTiles % 2 == 0 && kValueSteps % 2 == 0;
// Key tiles of a half, and its products with values. Where nothing is piped, its classes are
// compiled all the same.
constexpr int kHalfTiles = kPipelines ? kKeyTiles / 2 : kStepTiles;
constexpr int kHalfSteps = kPipelines ? kValueSteps / 2 : 1;
using HalfScores = Fragment<kRowTiles, kHalfTiles>;
struct HalfProbabilities {
  StagedProbabilities step[kHalfSteps][kRowTiles];
};

// A half's probabilities, element by element in the order in which products with values take them.
class HalfSoftmax {
 public:
  static constexpr int kAll = kRowTiles * kHalfTiles * kElements;

  FULMEN_DEVICE HalfSoftmax(const HalfScores& score, float scale, const float (&shift)[kRowTiles])
      : score_(score), scale_(scale), shift_(shift) {}
  template <int n>
  FULMEN_DEVICE void element(HalfProbabilities& p) {
    constexpr int kGroup = kElements * kValueStepTiles;  // of one operand
    constexpr int e = n % kElements, f = n / kElements % kValueStepTiles,
                  t = n / kGroup % kRowTiles, step = n / (kGroup * kRowTiles);
    if constexpr (e % 2 == 0) {
      const float(&s)[kElements] = score_[t][kValueStepTiles * step + f];
      exponents_ = exponents(Pair{s[e], s[e + 1]}, scale_, shift_[t]);
      group_[f][e] = exp2(exponents_.x);
    } else {
      group_[f][e] = exp2(exponents_.y);
      const Pair two{group_[f][e - 1], group_[f][e]};
      sums_[t] = step == 0 && f == 0 && e == 1 ? two : add(sums_[t], two);
    }
    if constexpr (n % kGroup == kGroup - 1) p.step[step][t] = staged_probabilities(group_, 0);
  }
  FULMEN_DEVICE float sum(int t) const { return sums_[t].x + sums_[t].y; }

 private:
  const HalfScores& score_;
  float scale_;
  const float (&shift_)[kRowTiles];
  Pair exponents_, sums_[kRowTiles];
  TileRow<kValueStepTiles> group_;
};

}  // namespace fulmen::kernels
