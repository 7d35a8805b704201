// The softmax of a unit's scores, S^T in tiles [keys / 16][2], which become P^T as a right operand
// in place.
//
// For some 360 cycles after a tile instruction Intel's processors run floating point of 512 bits at
// half rate, so that tiles and exponentials alternate instead of being interleaved.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"
#include "cpu/amx/operands.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// The state of a unit's rows: pointers into their tile's SoftmaxState.
struct UnitState {
  float* max;
  float* sum;
  float* rescale;
  // Tiles of columns that hold rows: what the others hold, if anything, decides nothing.
  int columns;
};

// A unit's sums of codes -> q . k.
template <class Isa, class Product>
__attribute__((noinline)) void number_unit(float* scores, int keys, const float* scale,
                                           const float* start) {
  typename Isa::Vec scales[kUnitTiles], starts[kUnitTiles];
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column) {
    scales[column] = Isa::load(scale + column * kTile);
    starts[column] = Isa::load(start + column * kTile);
  }
  for (int key = 0; key < keys; ++key) {
    float* row = scores + unit_row(key);
#pragma GCC unroll 2
    for (int column = 0; column < kUnitTiles; ++column) {
      float* at = row + column * kTileFloats;
      Isa::store(at, Isa::fused(Product::number(Isa::load(at)), scales[column], starts[column]));
    }
  }
}

// Raw products -> scores, and each query's maximum. additive: [keys][kBlockM], for other kinds than
// plain.
template <class Isa, ScoreKind kKind>
__attribute__((noinline)) void finish_unit(float* scores, int keys, const ScoreScale& scale,
                                           const float* additive, float* tile_max) {
  using Vec = typename Isa::Vec;
  Vec max[kUnitTiles];
#pragma GCC unroll 2
  for (auto& column : max) column = Isa::set1(-__builtin_inff());
  for (int key = 0; key < keys; ++key) {
    float* row = scores + unit_row(key);
#pragma GCC unroll 2
    for (int column = 0; column < kUnitTiles; ++column) {
      float* at = row + column * kTileFloats;
      Vec score = Isa::load(at);
      if constexpr (kKind != ScoreKind::plain) {
        score = finished_score<Isa, kKind>(
            score, Isa::load(additive + key * kBlockM + column * kTile), scale);
        Isa::store(at, score);
      }
      max[column] = Isa::max(max[column], score);
    }
  }
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column)
    Isa::store(tile_max + column * kTile, max[column]);
}

// Scores -> P^T, their exponents by exponent_of, zeros to the end of the last tile's words, and
// sum += the rows' sums.
template <class Isa, int kDegree, algorithm::ScoreUnits kUnits, class Dropout>
class UnitExponentials {
  using Vec = typename Isa::Vec;
  // Rounded by the exponential's last step, and added up as rounded: cheapest, and the output's
  // numerator and denominator agree.
  static constexpr bool kRounded =
      Isa::kRoundsExp2 && kDegree == Isa::kExp2Degree && !Dropout::kAny;

 public:
  static FULMEN_INLINE void run(float* scores, int keys, float factor,
                                const Vec (&minus_offset)[kUnitTiles], Vec (&sum)[kUnitTiles],
                                Dropout dropout) {
    const Vec f = Isa::set1(factor);
    int key = 0;
    for (; key + 4 <= keys; key += 4) pairs<2>(scores, key, 4, f, minus_offset, sum, dropout);
    for (; key < keys; key += 2) pairs<1>(scores, key, keys - key, f, minus_offset, sum, dropout);
    clear_last_words<Isa>(scores, (keys + 1) / 2);
  }

 private:
  // Keys from `key` on, of which `left` are there.
  template <int kPairs>
  static FULMEN_INLINE void pairs(float* scores, int key, int left, Vec f,
                                  const Vec (&minus_offset)[kUnitTiles], Vec (&sum)[kUnitTiles],
                                  Dropout dropout) {
    const float* from = scores + unit_row(key);
    Vec p[kPairs * 2 * kUnitTiles];  // [key][column]
#pragma GCC unroll 8
    for (int i = 0; i < kPairs * 2 * kUnitTiles; ++i) {
      const int column = i % kUnitTiles;
      const Vec score = Isa::load(from + i / kUnitTiles * kTile + column * kTileFloats);
      p[i] = algorithm::exponent_of<Isa, kUnits>(score, f, minus_offset[column]);
    }
    if constexpr (kRounded) {
      Isa::exp2_to_round(p);
    } else {
      Isa::template exp2<kDegree>(p);
    }
    if (kPairs == 1 && left == 1) {  // an odd key's partner
#pragma GCC unroll 2
      for (int column = 0; column < kUnitTiles; ++column) p[kUnitTiles + column] = Isa::zero();
    }
    float* to = scores + unit_row(key / 2);
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 2
      for (int column = 0; column < kUnitTiles; ++column) {
        Vec a = p[2 * pair * kUnitTiles + column], b = p[(2 * pair + 1) * kUnitTiles + column];
        Vec word;
        if constexpr (kRounded) {
          word = Isa::upper_halves(a, b);
          sum[column] = Isa::dot(sum[column], word, Isa::ones());
        } else {
          sum[column] = Isa::add(Isa::add(sum[column], a), b);
          if constexpr (Dropout::kAny) {
            const float* factors = dropout.factors + (key + 2 * pair) * kBlockM + column * kTile;
            a = Isa::mul(a, Isa::load(factors));
            if (2 * pair + 1 < left) b = Isa::mul(b, Isa::load(factors + kBlockM));
          }
          word = Isa::pack_pair(a, b);
        }
        Isa::store(to + pair * kTile + column * kTileFloats, word);
      }
    }
  }
};

// P^T by the offsets that the rows had, if these still serve: false, and the scores are lost, where
// a row's sum leaves what is safe or is a NaN. Sums and outputs of earlier key tiles then need no
// rescaling, and the scores' maxima are not looked for.
template <class Isa, int kDegree>
__attribute__((noinline)) bool softmax_unit_by_last_max(float* scores, int keys, float factor,
                                                        const UnitState& rows) {
  using Vec = typename Isa::Vec;
  Vec minus_offset[kUnitTiles], sum[kUnitTiles];
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column) {
    minus_offset[column] = Isa::sub(Isa::zero(), Isa::load(rows.max + column * kTile));
    sum[column] = Isa::zero();
  }
  UnitExponentials<Isa, kDegree, algorithm::ScoreUnits::base2, NoDropout>::run(
      scores, keys, factor, minus_offset, sum, {});
  // As much headroom as fp16's words have, and 16 bits of fp32's for what values are.
  const float limit = 0x1p12F;
  bool served = true;
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column) {
    const Vec excess =
        Isa::select_less(sum[column], Isa::set1(limit), Isa::zero(), Isa::set1(1.0F));
    served &= column >= rows.columns || Isa::all_equal(excess, Isa::zero());
  }
  if (!served) return false;
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column) {
    float* total = rows.sum + column * kTile;
    Isa::store(total, Isa::add(Isa::load(total), sum[column]));
  }
  return true;
}

// What the maxima of a unit's scores did to its rows.
struct UnitStep {
  bool moved;    // some row's maximum: what was added up before has to be rescaled
  bool settled;  // every row has a maximum
};

// P^T by the maxima of these scores and those before.
template <class Isa, int kDegree, algorithm::ScoreUnits kUnits, class Dropout>
__attribute__((noinline)) UnitStep softmax_unit(float* scores, const float* tile_max, int keys,
                                                float factor, const UnitState& rows,
                                                Dropout dropout) {
  using Vec = typename Isa::Vec;
  UnitStep result{false, true};
  Vec minus_offset[kUnitTiles], sum[kUnitTiles];
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column) {
    const int at = column * kTile;
    const Vec old_max = Isa::load(rows.max + at);
    const Vec new_max = Isa::load(tile_max + at);
    const auto step = algorithm::softmax_step<Isa, kUnits>(
        old_max, algorithm::maximum_of<Isa, kUnits>(new_max, Isa::set1(factor)));
    if (column < rows.columns) {
      result.moved |= !Isa::all_equal(step.max, old_max);
      result.settled &= Isa::all_equal(step.max, step.offset);
    }
    minus_offset[column] = Isa::sub(Isa::zero(), step.offset);
    Isa::store(rows.max + at, step.max);
    Isa::store(rows.rescale + at, step.rescale);
    sum[column] = Isa::zero();
  }
  UnitExponentials<Isa, kDegree, kUnits, Dropout>::run(scores, keys, factor, minus_offset, sum,
                                                       dropout);
#pragma GCC unroll 2
  for (int column = 0; column < kUnitTiles; ++column) {
    const int at = column * kTile;
    Isa::store(rows.sum + at,
               Isa::fma(Isa::load(rows.sum + at), Isa::load(rows.rescale + at), sum[column]));
  }
  return result;
}

}  // namespace fulmen::cpu
