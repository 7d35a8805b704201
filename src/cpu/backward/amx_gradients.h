// What a unit's score products leave on matrix tiles: S^T and dP^T, sums in tiles [keys / 16][2],
// become P and dS, which the three other products take from where they are stored.
#pragma once

#include <cstdint>

#include "cpu/amx/operands.h"
#include "cpu/backward/tile.h"
#include "cpu/tile/row_prefetch.h"

namespace fulmen::cpu {

// Operands for the gradients of a unit and some keys, the first of which begins a tile.
struct UnitGradientOperands {
  ScoreScale scale;
  const float* scores;
  const float* dp;
  const float* numbers;   // LseNumbers at the unit's first row
  const float* delta;     // [kUnitRows]
  const float* additive;  // [keys][kBlockM], at the unit's first column; for other kinds than plain
  const float* dropout;   // likewise
  float* dbias;           // likewise, or null: the gradients as fp32, before the softcap's slope
  float* p;               // tiles of a left operand, [keys / 16], pairs of queries are words
  float* ds;              // the same
  int64_t key_tile;       // floats between these tiles
  float* ds_pairs;        // right operand [keys / 32][2], pairs of keys are words
};

// Rows that will be used soon, some at each step, a tensor after the other.
class FetchAhead {
 public:
  FULMEN_INLINE void add(const RowPrefetch& rows) {
    tensors_[count_++] = rows;
    rows_ += rows.rows;
  }
  FULMEN_INLINE void spread(int64_t steps) {
    rows_a_step_ = static_cast<int>((rows_ + steps - 1) / steps);
  }
  template <class Isa>
  FULMEN_INLINE void step() {
    if (at_ >= count_) return;
    RowPrefetch& now = tensors_[at_];
    for (int i = 0; i < rows_a_step_; ++i) now.any_row<Isa>();
    if (now.rows <= 0) ++at_;
  }

 private:
  RowPrefetch tensors_[8];
  int count_ = 0;
  int at_ = 0;
  int64_t rows_ = 0;
  int rows_a_step_ = 1;
};

template <class Isa, ScoreKind kKind, bool kDropout>
class UnitGradients {
  using Vec = typename Isa::Vec;
  static_assert(Isa::kGroup == 2);

 public:
  static __attribute__((noinline)) void run(const UnitGradientOperands& o, int keys,
                                            FetchAhead& ahead) {
    int key = 0;
    for (; key + 4 <= keys; key += 4) {
      ahead.template step<Isa>();
      pairs<2>(o, key, 4);
    }
    for (; key < keys; key += 2) pairs<1>(o, key, keys - key);
  }

 private:
  // Keys from `key` on, of which `left` are there.
  template <int kPairs>
  static FULMEN_INLINE void pairs(const UnitGradientOperands& o, int key, int left) {
    constexpr int kVecs = kPairs * 2 * kUnitTiles;  // [key][column]
    const int64_t from = unit_row(key);
    Vec p[kVecs], ds[kVecs];
    [[maybe_unused]] Vec slope[kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      const int row = i / kUnitTiles, column = i % kUnitTiles;
      const Vec sum = Isa::load(o.scores + from + row * kTile + column * kTileFloats);
      const float* numbers = o.numbers + column * kTile;
      if constexpr (kKind == ScoreKind::plain) {
        p[i] = plain_exponent<Isa>(sum, numbers, o.scale);
      } else {
        const Vec extra = Isa::load(o.additive + (key + row) * kBlockM + column * kTile);
        p[i] = additive_exponent<Isa, kKind>(sum, extra, numbers, o.scale, slope[i]);
      }
    }
    Isa::template exp2<Isa::kExp2Degree>(p);
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      const int row = i / kUnitTiles, column = i % kUnitTiles;
      const int64_t at = static_cast<int64_t>(key + row) * kBlockM + column * kTile;
      Vec dp = Isa::load(o.dp + from + row * kTile + column * kTileFloats), weight = p[i];
      if constexpr (kDropout) {
        const Vec factor = Isa::load(o.dropout + at);
        dp = Isa::mul(dp, factor);
        weight = Isa::mul(weight, factor);
      }
      ds[i] = Isa::mul(p[i], Isa::sub(dp, Isa::load(o.delta + column * kTile)));
      p[i] = weight;
      if (o.dbias != nullptr && row < left) Isa::store(o.dbias + at, ds[i]);
      if constexpr (kKind == ScoreKind::softcap) ds[i] = Isa::mul(ds[i], slope[i]);
    }
    if (kPairs == 1 && left == 1) {  // an odd key's partner
#pragma GCC unroll 2
      for (int i = kUnitTiles; i < 2 * kUnitTiles; ++i) p[i] = ds[i] = Isa::zero();
    }
    const int64_t to = static_cast<int64_t>(key / kTile) * o.key_tile + key % kTile * kTile;
#pragma GCC unroll 4
    for (int row = 0; row < kPairs * 2; ++row) {
      Isa::store(o.p + to + row * kTile,
                 Isa::pack_sequence(p[row * kUnitTiles], p[row * kUnitTiles + 1]));
      Isa::store(o.ds + to + row * kTile,
                 Isa::pack_sequence(ds[row * kUnitTiles], ds[row * kUnitTiles + 1]));
    }
    float* ds_pairs = o.ds_pairs + unit_row(key / 2);
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 2
      for (int column = 0; column < kUnitTiles; ++column) {
        Isa::store(ds_pairs + pair * kTile + column * kTileFloats,
                   Isa::pack_pair(ds[2 * pair * kUnitTiles + column],
                                  ds[(2 * pair + 1) * kUnitTiles + column]));
      }
    }
  }
};

// Rows [first, last) of a left operand's tiles, key_tile floats apart, become 0.
template <class Isa>
FULMEN_INLINE void clear_rows_of_tiles(float* tiles, int64_t key_tile, int first, int last) {
  for (int row = first; row < last; ++row)
    Isa::store(tiles + row / kTile * key_tile + row % kTile * kTile, Isa::zero());
}

// Sums [dims / 32][keys / 16][2], dim_unit floats from 32 dims to the next -> the gradient's rows.
template <class Isa, class T, bool kStreams>
__attribute__((noinline)) void store_key_sums(const float* sums, int64_t dim_unit,
                                              const FinalGradient<Isa, T, kStreams>& to) {
  for (int row = 0; row < to.rows; ++row) {
    for (int d = 0; d < to.dim; d += kTile) {
      to.end(row, d,
             Isa::load(sums + unit_row(row) + d / kUnitRows * dim_unit +
                       d % kUnitRows / kTile * kTileFloats),
             false);
    }
  }
}

// Rows [rows][stride] -> the gradient's.
template <class Isa, class T, bool kStreams>
__attribute__((noinline)) void store_query_rows(const float* from, int64_t stride,
                                                const FinalGradient<Isa, T, kStreams>& to) {
  for (int row = 0; row < to.rows; ++row) {
    for (int d = 0; d < to.dim; d += kTile)
      to.end(row, d, Isa::load(from + row * stride + d), false);
  }
}

}  // namespace fulmen::cpu
