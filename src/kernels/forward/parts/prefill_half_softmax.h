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
// exponentiate() of an element comes before its finish(), and that before the next exponentiate().
class HalfSoftmax {
 public:
  static constexpr int kAll = kRowTiles * kHalfTiles * kElements;

  FULMEN_DEVICE HalfSoftmax(const HalfScores& score, float scale, const float (&shift)[kRowTiles])
      : score_(score), scale_(scale), shift_(shift) {
    prepare<0>();
  }
  template <int n>
  FULMEN_DEVICE void exponentiate() {
    pair_[n % 2] = exp2(n % 2 == 0 ? exponents_.x : exponents_.y);
  }
  template <int n>
  FULMEN_DEVICE void finish(HalfProbabilities& p) {
    if constexpr (n % 2 == 0) return;
    constexpr int t = row_tile(n), step = step_of(n);
    const Pair two{pair_[0], pair_[1]};
    sums_[t] = step == 0 && n % kGroup == 1 ? two : add(sums_[t], two);
    set_pair(p.step[step][t], n % kGroup / 2, two);
    if constexpr (n + 1 < kAll) prepare<n + 1>();
  }
  FULMEN_DEVICE float sum(int t) const { return sums_[t].x + sums_[t].y; }

 private:
  static constexpr int kGroup = kElements * kValueStepTiles;  // elements of one operand
  FULMEN_DEVICE static constexpr int row_tile(int n) { return n / kGroup % kRowTiles; }
  FULMEN_DEVICE static constexpr int step_of(int n) { return n / (kGroup * kRowTiles); }
  FULMEN_DEVICE static constexpr int tile_of_step(int n) { return n / kElements % kValueStepTiles; }
  // The exponents of elements n and n + 1.
  template <int n>
  FULMEN_DEVICE void prepare() {
    constexpr int t = row_tile(n), e = n % kElements;
    const float(&s)[kElements] = score_[t][kValueStepTiles * step_of(n) + tile_of_step(n)];
    exponents_ = exponents(Pair{s[e], s[e + 1]}, scale_, shift_[t]);
  }
  // Codes are never piped (kPipelines).
  template <class Probabilities>
  FULMEN_DEVICE static void set_pair(Probabilities& p, int word, const Pair& two) {
    if constexpr (!kCodeValues)
      p.words.word[word] = pack_probabilities<Element, true>(two.x, two.y);
  }

  const HalfScores& score_;
  float scale_;
  const float (&shift_)[kRowTiles];
  Pair exponents_, sums_[kRowTiles];
  float pair_[2];
};

}  // namespace fulmen::kernels
