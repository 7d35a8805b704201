// The first product of the tile algorithm, and its epilogues.
#pragma once

#include <cstdint>

#include "cpu/tile/code_product.h"
#include "cpu/tile/row_prefetch.h"
#include "cpu/tile/row_spans.h"
#include "cpu/tile/step_prefetch.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// One register block of a score product: kRows rows of words by broadcast x kVecs vectors of lanes;
// the sums go to the epilogue, whose step() is called before every kStepWords words of products, to
// fetch what comes next.
template <class Isa, int kVecs, int kRows, class Block>
FULMEN_INLINE void score_block(const float* lanes,  // [words][kBlockM]
                               const float* rows,   // kRows rows of words, stride floats apart
                               int64_t stride, int words, int first_row, Block& epilogue) {
  using Vec = typename Isa::Vec;
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Isa::zero();
  }
  int w = 0;
  do {
    epilogue.step();
    const int end = words - w > Block::kStepWords ? w + Block::kStepWords : words;
    for (; w < end; ++w, lanes += kBlockM) {
      Vec lane[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) lane[v] = Isa::load(lanes + v * Isa::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec row = Isa::broadcast(rows + r * stride + w);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sum[r][v] = Isa::dot(sum[r][v], lane[v], row);
      }
    }
  } while (w < words);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) epilogue.row(sum[r], first_row + r);
}

// Rows of a register block of `vecs` vectors. Narrower blocks are the few last columns of few
// tiles, not worth the code of longer ones, unless the epilogue says that they are all there is.
template <class Isa>
constexpr int block_rows(int vecs, bool narrow_tiles) {
  if (vecs == Isa::kQkVecs) return Isa::kQkKeys;
  const int rows = Isa::kQkVecs * Isa::kQkKeys / vecs / 4 * 4;
  return !narrow_tiles || rows < 8 ? 4 : 8;
}

template <class Isa, int kVecs, class Epilogue>
FULMEN_INLINE void score_rows(const float* lanes, const float* rows, int64_t stride, int words,
                              KeySpan span, const Epilogue& epilogue, int at) {
  if constexpr (kHasKeyGroups<Isa>)
    return code_rows<Isa, kVecs>(lanes, rows, stride, words, span, epilogue, at);
  typename Epilogue::template Block<kVecs> block(epilogue, at);
  constexpr int kShort = 4, kRows = block_rows<Isa>(kVecs, requires { Epilogue::kNarrowTiles; });
  int row = span.begin;
  const int count = span.end;
  // Blocks of 6: 64 rows end with one of 4, and 128 with two.
  for (; row + kRows <= count && (kRows % kShort == 0 || count - row != 2 * kShort); row += kRows) {
    score_block<Isa, kVecs, kRows>(lanes + at, rows + row * stride, stride, words, row, block);
  }
  if constexpr (kRows > kShort) {
    for (; row + kShort <= count; row += kShort) {
      score_block<Isa, kVecs, kShort>(lanes + at, rows + row * stride, stride, words, row, block);
    }
  }
  for (; row < count; ++row)
    score_block<Isa, kVecs, 1>(lanes + at, rows + row * stride, stride, words, row, block);
  block.end();
}

// The score product of a tile: rows of words against `lanes` columns (rounded up to whole vectors)
// of a transposed panel. spans: the rows that each register block's columns need, SameSpan or
// RowSpans.
template <class Isa, class Spans, class Epilogue>
__attribute__((noinline)) void score_tile(const float* panel, int lanes, const float* rows,
                                          int64_t stride, int words, const Spans& spans,
                                          const Epilogue& epilogue) {
  const int vecs = static_cast<int>(round_up(lanes, Isa::kLanes) / Isa::kLanes);
  for (int first = 0; first < vecs; first += Isa::kQkVecs) {
    const int at = first * Isa::kLanes;
    const int left = vecs - first;
    const KeySpan span = spans.of(at, Isa::kQkVecs * Isa::kLanes);
    if (left >= Isa::kQkVecs) {
      score_rows<Isa, Isa::kQkVecs>(panel, rows, stride, words, span, epilogue, at);
    } else if (Isa::kQkVecs > 3 && left == 3) {
      score_rows<Isa, 3>(panel, rows, stride, words, span, epilogue, at);
    } else if (Isa::kQkVecs > 2 && left == 2) {
      score_rows<Isa, 2>(panel, rows, stride, words, span, epilogue, at);
    } else {
      score_rows<Isa, 1>(panel, rows, stride, words, span, epilogue, at);
    }
  }
}
// `count` rows for all columns.
template <class Isa, class Epilogue>
FULMEN_INLINE void score_tile(const float* panel, int lanes, const float* rows, int64_t stride,
                              int words, int count, const Epilogue& epilogue) {
  score_tile<Isa>(panel, lanes, rows, stride, words, SameSpan{{0, count}}, epilogue);
}

// Steps of score_tile's epilogue: no more than there are, since what is left for others is not
// fetched, and not many less.
template <class Isa, bool kNarrowTiles = false, int kStepWords = kFetchWords>
FULMEN_INLINE int64_t score_steps(int lanes, int words, int count) {
  const int64_t vecs = round_up(lanes, Isa::kLanes) / Isa::kLanes;
  const int rows = kNarrowTiles && vecs < Isa::kQkVecs
                       ? block_rows<Isa>(static_cast<int>(vecs), true)
                       : Isa::kQkKeys;
  const int64_t blocks = (vecs + Isa::kQkVecs - 1) / Isa::kQkVecs * (count / rows);
  const int64_t steps = blocks * ((words + kStepWords - 1) / kStepWords);
  return steps > 0 ? steps : 1;
}

// Epilogue of S^T = K Q^T, queries in lanes: scores [keys][kBlockM] and each query's maximum.
template <class Isa, ScoreKind kKind>
struct QueryLaneScores {
  ScoreScale scale;
  const float* additive;  // [keys][kBlockM], for other kinds than plain
  float* scores;          // [keys][kBlockM]
  float* tile_max;        // [kBlockM]
  RowPrefetch* ahead;     // two of them, the second after the first
  int ahead_rows;         // rows fetched at a register block
  CodeRows codes;         // where products are of codes

  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = kWholeBlock;
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const QueryLaneScores& tile, int at)
        : tile_(tile), at_(at), codes_(tile.codes) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) max_[v] = Isa::set1(-__builtin_inff());
    }
    FULMEN_INLINE void step() {
      if (at_ > 0) return;
      RowPrefetch& rows = tile_.ahead[tile_.ahead[0].rows > 0 ? 0 : 1];
      for (int i = 0; i < tile_.ahead_rows; ++i) rows.template any_row<Isa>();
    }
    FULMEN_INLINE void row(const Vec (&sum)[kVecs], int key) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        Vec score = product_of(sum[v], at_ + v * Isa::kLanes);
        const int to = key * kBlockM + at_ + v * Isa::kLanes;
        if constexpr (kKind != ScoreKind::plain)
          score = finished_score<Isa, kKind>(score, Isa::load(tile_.additive + to), tile_.scale);
        max_[v] = Isa::max(max_[v], score);
        Isa::store(tile_.scores + to, score);
      }
    }
    FULMEN_INLINE void end() {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) Isa::store(tile_.tile_max + at_ + v * Isa::kLanes, max_[v]);
    }
    // A sum -> q . k.
    FULMEN_INLINE Vec product_of(Vec sum, [[maybe_unused]] int row) const {
      if constexpr (kIsOfCodes<Isa>) {
        return Isa::fused(Isa::number(sum), Isa::load(codes_.scale + row),
                          Isa::load(codes_.start + row));
      } else {
        return sum;
      }
    }
    const QueryLaneScores& tile_;
    int at_;
    const CodeRows codes_;  // a copy: the scores' stores do not change it
    Vec max_[kVecs];
  };
};

// Epilogue of S = Q K^T, keys in lanes: scores [rows][kBlockM] and, per row, the maximum of each
// lane. With a bias (null: none) the scores are scale * raw + bias, else they stay raw. kRagged:
// the keys end within a vector, whose other lanes become -inf.
template <class Isa, class BiasT, bool kRagged>
struct KeyLaneScores {
  int keys;
  float scale;
  const BiasT* bias;
  int64_t bias_stride;
  float* scores;    // [rows][kBlockM]
  float* lane_max;  // [rows][kLanes]
  StepPrefetch<Isa>* ahead;

  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = kShortStepWords;
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const KeyLaneScores& tile, int at) : tile_(tile), at_(at) {}
    FULMEN_INLINE void step() { tile_.ahead->step(); }
    FULMEN_INLINE void row(Vec (&score)[kVecs], int row) {
      float* to = tile_.scores + row * kBlockM + at_;
      if (tile_.bias != nullptr) {
        const BiasT* bias = tile_.bias + row * tile_.bias_stride + at_;
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          const int left = tile_.keys - at_ - v * Isa::kLanes;
          const bool part = kRagged && v + 1 == kVecs && left < Isa::kLanes;
          score[v] = Isa::fused(score[v], Isa::set1(tile_.scale),
                                part ? Isa::load_as_float(bias + v * Isa::kLanes, left)
                                     : Isa::load_as_float(bias + v * Isa::kLanes));
        }
      }
      if constexpr (kRagged) {
        const Vec past =
            Isa::set1(static_cast<float>(tile_.keys - at_ - (kVecs - 1) * Isa::kLanes) - 0.5F);
        score[kVecs - 1] =
            Isa::select_less(past, Isa::iota(), Isa::set1(-__builtin_inff()), score[kVecs - 1]);
      }
      Vec max = at_ > 0 ? Isa::load(tile_.lane_max + row * Isa::kLanes) : score[0];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        Isa::store(to + v * Isa::kLanes, score[v]);
        max = Isa::max(max, score[v]);
      }
      Isa::store(tile_.lane_max + row * Isa::kLanes, max);
    }
    FULMEN_INLINE void end() {}
    const KeyLaneScores& tile_;
    int at_;
  };
};

}  // namespace fulmen::cpu
