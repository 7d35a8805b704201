// The online softmax of the kernels without matrix instructions: 16 lanes share a row's keys.
#pragma once

#include "core/scores.h"
#include "tile/neighbours.h"
#include "tile/square.h"

namespace fulmen::kernels {

// Times a difference of what the softmax takes (q.k with kPlainScale, else scores): the exponent
// of 2.
FULMEN_DEVICE float exponent_scale(const ForwardArguments& a) {
  return kPlainScale ? a.scale : kLog2OfUnit;
}

// A lane's rows. Probabilities are e^(score - reference): the reference follows the running maximum
// only when a score is more than 2^8 away, so that most tiles need neither the row's maximum nor a
// rescaling of what was summed before.
struct SquareRows {
  float reference[kRows];
  float shift[kRows];  // what the reference adds to an exponent; kNaturalUnits: to a score
  float sum[kRows];    // of the lane's own probabilities

  FULMEN_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      reference[r] = -kInfinity;
      shift[r] = sum[r] = 0;
    }
  }

  // Scores become probabilities. Calls rescale(r, factor) where a row's outputs must be rescaled.
  template <class Rescale>
  FULMEN_DEVICE void exponentiate(float scale, RowsByColumns& score, const Rescale& rescale) {
    // As many as 2^8 would take in natural units, or fewer.
    const float slack = kNaturalUnits ? 4.0F : 8.0F * reciprocal(scale);
    float max[kRows];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      max[r] = score[r][0];
#pragma unroll
      for (int c = 1; c < kColumns; ++c) max[r] = larger(max[r], score[r][c]);
      moves = moves || max[r] > reference[r] + slack;
    }
    if (__builtin_expect(any_lane(moves), 0)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float moved = larger(reference[r], max_of_neighbours<kSide>(max[r])),
                    offset = moved == -kInfinity ? 0.0F : moved;
        const float factor = exp2((reference[r] - offset) * scale);
        reference[r] = moved;
        shift[r] = kNaturalUnits ? -offset : kShift - offset * scale;
        sum[r] *= factor;
        FULMEN_INLINED rescale(r, factor);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if constexpr (kNaturalUnits) {
          score[r][c] = exp2((score[r][c] + shift[r]) * scale + kShift);
        } else {
          score[r][c] = exp2(score[r][c] * scale + shift[r]);
        }
        sum[r] += score[r][c];
      }
    }
  }

  FULMEN_DEVICE RowEnd end(const ForwardArguments& a, Int64 head, int r) const {
    const float max = kNaturalUnits ? reference[r] : reference[r] * exponent_scale(a);
    return end_row(a, head, max, sum_of_neighbours<kSide>(sum[r]) * kUnshift);
  }
};

// Modifies and masks a tile's scores.
struct ScoreTile {
  const ForwardArguments& arguments;
  Int64 batch, head, row_begin, row_end;

  template <bool kMasked>
  FULMEN_DEVICE void modify(Int64 first_key, RowsByColumns& score) const {
    if constexpr (!kMasked && kPlainScale) return;
    // What rows may attend is not computed ahead of the loop: most tiles, or all, need no masks.
    const int y = kMasked ? recompute(lane_row(), first_key) : lane_row();
    const ForwardArguments& a = kMasked ? again(arguments, first_key) : arguments;
    first_key += lane_column();
    Int64 i = row_begin + y;
    // Rows past the end have those of one that is there.
    ScoreRow row = ScoreRow::of(a, batch, head, !kMasked || i < row_end ? i : row_end - 1);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Keys that the row attends, from the lane's first one on.
      const algorithm::KeyRange keys = kMasked ? band_of(a).any(i, i + 1) : algorithm::KeyRange{};
      const int begin = near(keys.begin - first_key),
                count = i < row_end ? near(keys.end - first_key) - begin : 0;
      const int distance = kAlibi ? row.distance(first_key) : 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int j = kSide * c;
        bool kept = !kMasked || static_cast<unsigned>(j - begin) < static_cast<unsigned>(count);
        float bias = 0;
        if constexpr (kBias)
          bias = kept ? kUnitsOfScore * to_float(global_load(row.bias + first_key + j)) : 0.0F;
        if constexpr (kKeepMask) kept = kept && row.keeps(first_key + j);
        float x = score[r][c];
        if constexpr (!kPlainScale) x = row.finish(a, x, bias, distance - j, first_key + j);
        score[r][c] = kept ? x : -kInfinity;
      }
      i += kSide;
      if (!kMasked || i < row_end) row.advance(a, kSide);
    }
  }

 private:
  // A distance of keys; outside of a tile no distance matters.
  FULMEN_DEVICE static int near(Int64 keys) {
    return static_cast<int>(algorithm::Band::clamp(keys, -2 * kBlockN, 2 * kBlockN));
  }
};

}  // namespace fulmen::kernels
