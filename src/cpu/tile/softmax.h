// The softmax of a score tile, queries in lanes.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"
#include "cpu/tile/row_spans.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// softmax_tile for kVecs vectors of queries; every pointer is at the first of them.
template <class Isa, int kDegree, algorithm::ScoreUnits kUnits, int kVecs, class Dropout>
FULMEN_INLINE bool softmax_rows(float* scores, const float* tile_max, KeySpan span, float factor,
                                float* max, float* sum_out, float* rescale_out,
                                const float* dropout) {
  using Vec = typename Isa::Vec;
  constexpr int kLanes = Isa::kLanes;
  bool moved = false;
  Vec minus_offset[kVecs], sum[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    const Vec old_max = Isa::load(max + v * kLanes);
    const Vec new_max = Isa::load(tile_max + v * kLanes);
    const auto step = algorithm::softmax_step<Isa, kUnits>(
        old_max, algorithm::maximum_of<Isa, kUnits>(new_max, Isa::set1(factor)));
    moved |= !Isa::all_equal(step.max, old_max);
    minus_offset[v] = Isa::sub(Isa::zero(), step.offset);
    Isa::store(max + v * kLanes, step.max);
    Isa::store(rescale_out + v * kLanes, step.rescale);
    sum[v] = Isa::zero();
  }
  const Vec f = Isa::set1(factor);
  for (int key = span.begin; key < span.end; key += Isa::kGroup) {
    Vec p[Isa::kGroup][kVecs];
#pragma GCC unroll 2
    for (int i = 0; i < Isa::kGroup; ++i) {
      if (i > 0 && key + i == span.end) {  // an odd key's partner
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) p[i][v] = Isa::zero();
        break;
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        p[i][v] = algorithm::exponent_of<Isa, kUnits>(
            Isa::load(scores + (key + i) * kBlockM + v * kLanes), f, minus_offset[v]);
      Isa::template exp2<kDegree>(p[i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[v] = Isa::add(sum[v], p[i][v]);
      if constexpr (Dropout::kAny) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v)
          p[i][v] = Isa::mul(p[i][v], Isa::load(dropout + (key + i) * kBlockM + v * kLanes));
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* word = scores + key / Isa::kGroup * kBlockM + v * kLanes;
      if constexpr (Isa::kGroup == 1) {
        Isa::store(word, p[0][v]);
      } else {
        Isa::store(word, Isa::pack_pair(p[0][v], p[1][v]));
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    Isa::store(sum_out + v * kLanes, Isa::fma(Isa::load(sum_out + v * kLanes),
                                              Isa::load(rescale_out + v * kLanes), sum[v]));
  }
  return moved;
}

// Turns the score tile into P^T in place (pairs: [keys / 2][kBlockM] words) and updates the state.
// factor: what a stored score takes to become a power of 2. Returns false when no row's maximum
// moved, so that earlier output needs no rescaling. kDegree: of the exponential's polynomial.
// kBlockVecs: vectors of the product's register blocks, each of which left scores of its span.
template <class Isa, int kDegree, algorithm::ScoreUnits kUnits, int kBlockVecs, class Dropout>
__attribute__((noinline)) bool softmax_tile(float* scores, const float* tile_max, int rows,
                                            const RowSpans& spans, float factor,
                                            SoftmaxState& state, Dropout dropout) {
  constexpr int kLanes = Isa::kLanes;
  const int padded_rows = static_cast<int>(round_up(rows, kLanes));
  bool moved = false;
  const auto compute = [&]<int kVecs>(int row, KeySpan span) __attribute__((always_inline)) {
    moved |= softmax_rows<Isa, kDegree, kUnits, kVecs, Dropout>(
        scores + row, tile_max + row, span, factor, state.max + row, state.sum + row,
        state.rescale + row, Dropout::kAny ? dropout.factors + row : nullptr);
  };
  if (!spans.same) {
    constexpr int kBlockRows = kBlockVecs * kLanes;
    for (int first = 0; first < padded_rows; first += kBlockRows) {
      const KeySpan span = spans.of(first, kBlockRows);
      if (first + kBlockRows <= padded_rows) {
        compute.template operator()<kBlockVecs>(first, span);
        continue;
      }
      int row = first;
      if constexpr (kBlockVecs > 2) {
        for (; row + 2 * kLanes <= padded_rows; row += 2 * kLanes)
          compute.template operator()<2>(row, span);
      }
      for (; row < padded_rows; row += kLanes) compute.template operator()<1>(row, span);
    }
    return moved;
  }
  int row = 0;
  for (; row + Isa::kSoftmaxVecs * kLanes <= padded_rows; row += Isa::kSoftmaxVecs * kLanes)
    compute.template operator()<Isa::kSoftmaxVecs>(row, spans.all);
  for (; row < padded_rows; row += kLanes) compute.template operator()<1>(row, spans.all);
  return moved;
}

}  // namespace fulmen::cpu
