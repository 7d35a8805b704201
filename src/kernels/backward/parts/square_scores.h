// P and dS of a tile of the kernels without matrix instructions, from its two products.
#pragma once

#include "backward/parts/scores.h"
#include "tile/square.h"

namespace fulmen::kernels {

// Rows from `first` on; none from `end` on.
struct RowRange {
  Int64 first, end;
};

// Weights of dk, dv and dq.
struct RoundedPair {
  FULMEN_DEVICE static unsigned pack(float a, float b) { return pack_halves(a, b); }
};

// What a lane's elements have in common with others: the numbers of its queries.
constexpr int kQueries = kRowsAreKeys ? kColumns : kRows;
struct QueryNumbers {
  RowStatistics of[kQueries];

  FULMEN_DEVICE static QueryNumbers load(const BackwardArguments& a, Int64 batch, Int64 head,
                                         Int64 first_row, Int64 first_column) {
    QueryNumbers numbers;
    const Int64 first = kRowsAreKeys ? first_column + lane_column() : first_row + lane_row();
#pragma unroll
    for (int n = 0; n < kQueries; ++n)
      numbers.of[n] = RowStatistics::of(a, batch, head, first + kSide * n);
    return numbers;
  }
};

// Which of a row's columns it meets, as distances from a lane's first one.
struct MetColumns {
  int begin, count;

  FULMEN_DEVICE static MetColumns of(const algorithm::Band& band, Int64 row, RowRange rows,
                                     Int64 first_column) {
    const algorithm::KeyRange met = band.any(row, row + 1);
    const auto near = [&](Int64 column) {
      constexpr Int64 kFar = 2 * kBlockN;  // outside of a tile no distance matters
      return static_cast<int>(algorithm::Band::clamp(column - first_column, -kFar, kFar));
    };
    const int begin = near(met.begin);
    return {begin, row < rows.end ? near(met.end) - begin : 0};
  }
  FULMEN_DEVICE bool meets(int column) const {
    return static_cast<unsigned>(column - begin) < static_cast<unsigned>(count);
  }
};

// dot: q.k, which becomes P (after dropout) or, with kGivesDbias, dbias's terms; dprobability:
// dout.v, which becomes dS.
template <bool kMasked>
FULMEN_DEVICE void to_gradients(const BackwardArguments& a, Int64 batch, Int64 head, RowRange rows,
                                Int64 first_column, RowsByColumns& dot,
                                RowsByColumns& dprobability) {
  // A query without any key, which a mask or a bias of -inf makes, has no gradient, whatever its
  // dout holds, which may reach dk and dv alone.
  constexpr bool kLooksForKeys = !kRowsAreKeys && (kMasked || kBias || kKeepMask);
  const QueryNumbers queries = QueryNumbers::load(a, batch, head, rows.first, first_column);
  DropoutMask dropout(a, batch, head);
  const algorithm::Band band = column_band(a);
  const Int64 lane_first = first_column + lane_column();
  // What rows meet is not computed ahead of the loop: most tiles, or all, need no masks.
  const int y = kMasked ? recompute(lane_row(), first_column) : lane_row();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Int64 row = rows.first + y + kSide * r;
    MetColumns met{};
    if constexpr (kMasked) met = MetColumns::of(band, row, rows, lane_first);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Int64 column = lane_first + kSide * c;
      const Int64 i = kRowsAreKeys ? column : row, j = kRowsAreKeys ? row : column;
      const RowStatistics& numbers = queries.of[kRowsAreKeys ? c : r];
      bool attended = !kMasked || met.meets(kSide * c);
      if constexpr (kLooksForKeys) attended = attended && numbers.has_keys();
      if constexpr (kMaskBits) attended = attended && mask_bit(a, batch, head, i, j);
      const ScoreInputs inputs =
          ScoreInputs::of(a, batch, head, attended ? i : 0, attended ? j : 0);
      const auto keeps = [&] { return dropout.keeps(i, j); };
      const float share = RowShares::load(inputs.share, numbers.offset);
      const ScoreGradient g =
          score_gradient(a, inputs, numbers, dot[r][c], dprobability[r][c], attended, keeps, share);
      dot[r][c] = kGivesDbias ? g.bias : g.weight;
      dprobability[r][c] = g.dot;
    }
  }
}

}  // namespace fulmen::kernels
