// Bringing tensors into tiles: transposed queries, key and value panels, the additive score tile,
// and results back to memory.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "algorithm/online_softmax.h"
#include "cpu/tile/key_rows.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Words that hold `elements` elements.
template <class Isa>
constexpr __attribute__((always_inline)) int words_of(int64_t elements) {
  return static_cast<int>((elements + Isa::kGroup - 1) / Isa::kGroup);
}

// Up to kLanes words of a row of which `elements` elements are left; zeros follow.
template <class Isa, class T>
FULMEN_INLINE typename Isa::Vec load_row_words(const T* p, int64_t elements) {
  constexpr int kElements = Isa::kLanes * Isa::kGroup;
  if constexpr (Isa::kGroup == 1) {
    return elements >= kElements ? Isa::load_as_float(p)
                                 : Isa::load_as_float(p, static_cast<int>(elements));
  } else {
    return elements >= kElements ? Isa::load_words(p)
                                 : Isa::load_words(p, static_cast<int>(elements));
  }
}

// Where word `word` of row `row` lies: [words][kBlockM].
struct WordRows {
  FULMEN_INLINE int64_t operator()(int word, int row) const {
    return static_cast<int64_t>(word) * kBlockM + row;
  }
};

// q rows [rows][dim] -> out at the place of each vector of rows, [words][kBlockM]; rows up to the
// next whole vector become zeros.
template <class Isa, class T, class Place = WordRows>
__attribute__((noinline)) void pack_queries(const T* q, int64_t stride, int rows, int64_t dim,
                                            float* out, Place place = {}) {
  using Vec = typename Isa::Vec;
  constexpr int kElements = Isa::kLanes * Isa::kGroup;
  const int words = words_of<Isa>(dim);
  for (int row = 0; row < rows; row += Isa::kLanes) {
    const int valid = rows - row < Isa::kLanes ? rows - row : Isa::kLanes;
    for (int word = 0; word < words; word += Isa::kLanes) {
      const int64_t element = static_cast<int64_t>(word) * Isa::kGroup;
      Vec block[Isa::kLanes];
      if (valid == Isa::kLanes && dim - element >= kElements) {
#pragma GCC unroll 16
        for (int i = 0; i < Isa::kLanes; ++i)
          block[i] = load_row_words<Isa>(q + (row + i) * stride + element, kElements);
      } else {
        for (int i = 0; i < Isa::kLanes; ++i) {
          block[i] = i < valid
                         ? load_row_words<Isa>(q + (row + i) * stride + element, dim - element)
                         : Isa::zero();
        }
      }
      Isa::transpose(block);
      const int count = words - word < Isa::kLanes ? words - word : Isa::kLanes;
      if (count == Isa::kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < Isa::kLanes; ++i) Isa::store(out + place(word + i, row), block[i]);
      } else {
        for (int i = 0; i < count; ++i) Isa::store(out + place(word + i, row), block[i]);
      }
    }
  }
}

// k rows [keys][dim] -> panel [keys][panel_stride] of words; zeros to the end of the last vector.
// alive as in pack_values.
template <class Isa, class Rows>
__attribute__((noinline)) void pack_keys(Rows k, int keys, int64_t dim, float* panel,
                                         int64_t panel_stride, const uint8_t* alive = nullptr) {
  constexpr int kElements = Isa::kLanes * Isa::kGroup;
  for (int key = 0; key < keys; ++key) {
    const auto* row = k[key];
    float* out = panel + key * panel_stride;
    if (alive != nullptr && alive[key] == 0) {
      for (int64_t word = 0; word < panel_stride; word += Isa::kLanes)
        Isa::store(out + word, Isa::zero());
      continue;
    }
    for (int64_t element = 0; element < dim; element += kElements) {
      Isa::store(out + element / Isa::kGroup, load_row_words<Isa>(row + element, dim - element));
    }
  }
}

// v rows [keys][dim] -> panel [words of keys][panel_stride]: word (w, d) holds
// V[kGroup w .. kGroup w + kGroup - 1][d]. Rows whose alive is 0 become zeros: no query attends
// them, and what they hold, a NaN even, must not reach the output. alive may be null: all are.
template <class Isa, class Rows>
__attribute__((noinline)) void pack_values(Rows v, int keys, int64_t dim, float* panel,
                                           int64_t panel_stride, const uint8_t* alive) {
  constexpr int kElements = Isa::kLanes * Isa::kGroup;
  const auto load = [&](int key, int64_t element) __attribute__((always_inline)) {
    if (key >= keys || (alive != nullptr && alive[key] == 0)) return Isa::zero();
    return load_row_words<Isa>(v[key] + element, dim - element);
  };
  for (int key = 0; key < keys; key += Isa::kGroup) {
    float* out = panel + key / Isa::kGroup * panel_stride;
    for (int64_t element = 0; element < dim; element += kElements) {
      if constexpr (Isa::kGroup == 1) {
        Isa::store(out + element, load(key, element));
      } else {
        typename Isa::Vec low, high;
        Isa::interleave(load(key, element), load(key + 1, element), low, high);
        Isa::store(out + element, low);
        if (element + Isa::kLanes < panel_stride) Isa::store(out + element + Isa::kLanes, high);
      }
    }
  }
}

// A [rows][keys] operand of the scores at its first row and key; null data is absent.
template <class T>
struct ScoreOperand {
  const T* data = nullptr;
  int64_t row_stride = 0;  // 0: the same for every query
};

// What a tile's place adds to its scores.
struct AdditivePlace {
  float alibi_slope = 0;      // of this head; 0: none
  bool masked_range = false;  // the tile is only partly inside the band
  algorithm::Band band;
  int64_t first_row = 0;  // of the tile in the sequence
  int64_t first_key = 0;
};

// What is added to a tile's scores, in natural units, built as [keys][kBlockM].
template <class BiasT>
struct AdditiveTile {
  ScoreOperand<BiasT> bias;
  ScoreOperand<uint8_t> keep;
  AdditivePlace place;
};

// One vector of a row's bias and mask: the bias, -inf where the mask is false.
template <class Isa, class BiasT>
FULMEN_INLINE typename Isa::Vec load_additive(const BiasT* bias, const uint8_t* keep, int count) {
  auto x = Isa::zero();
  if (bias != nullptr)
    x = count >= Isa::kLanes ? Isa::load_as_float(bias) : Isa::load_as_float(bias, count);
  if (keep != nullptr) {
    const auto kept =
        count >= Isa::kLanes ? Isa::load_as_float(keep) : Isa::load_as_float(keep, count);
    x = Isa::select_less(Isa::zero(), kept, x, Isa::set1(-__builtin_inff()));
  }
  return x;
}

// Adds ALiBi to a tile [keys][kBlockM], and -inf outside the band.
template <class Isa>
__attribute__((noinline)) void add_place(const AdditivePlace& place, int rows, int keys,
                                         float* out) {
  using Vec = typename Isa::Vec;
  // Distances are taken relative to the tile so that they are exact in fp32 at any sequence length.
  // j - (i + diagonal) at the tile's corner.
  const int64_t origin = place.first_key - place.first_row - place.band.diagonal;
  const auto near = [](int64_t x) {
    return static_cast<float>(algorithm::Band::clamp(x, -(1 << 22), 1 << 22));
  };
  const bool left = place.band.left >= 0 && place.masked_range,
             right = place.band.right >= 0 && place.masked_range;
  const Vec minus_infinity = Isa::set1(-__builtin_inff());
  for (int row = 0; row < rows; row += Isa::kLanes) {
    const Vec lane_row = Isa::add(Isa::iota(), Isa::set1(static_cast<float>(row)));
    for (int key = 0; key < keys; ++key) {
      float* at = out + key * kBlockM + row;
      Vec x = Isa::load(at);
      // Within the tile.
      const Vec key_minus_row = Isa::sub(Isa::set1(static_cast<float>(key)), lane_row);
      if (place.alibi_slope != 0.0F) {
        const Vec distance =
            Isa::abs(Isa::add(key_minus_row, Isa::set1(static_cast<float>(origin))));
        x = Isa::fused(distance, Isa::set1(-place.alibi_slope), x);
      }
      // Attended: -left <= origin + key_minus_row <= right.
      if (left)
        x = Isa::select_less(key_minus_row, Isa::set1(near(-place.band.left - origin)),
                             minus_infinity, x);
      if (right)
        x = Isa::select_less(Isa::set1(near(place.band.right - origin)), key_minus_row,
                             minus_infinity, x);
      Isa::store(at, x);
    }
  }
}

// A vector of keys by one of rows, of which `valid` rows and `count` keys are there, transposed.
template <class Isa, class BiasT>
FULMEN_INLINE void additive_block(const BiasT* bias, int64_t bias_stride, const uint8_t* keep,
                                  int64_t keep_stride, int valid, int count, float* out) {
  constexpr int kLanes = Isa::kLanes;
  typename Isa::Vec block[kLanes];
  const bool whole = valid == kLanes && count == kLanes;
  if (whole && keep == nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) block[i] = Isa::load_as_float(bias + i * bias_stride);
  } else if (whole && bias == nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      block[i] = load_additive<Isa, BiasT>(nullptr, keep + i * keep_stride, kLanes);
  } else {
    for (int i = 0; i < kLanes; ++i) {
      const int64_t row = i < valid ? i : 0;
      block[i] = load_additive<Isa>(bias == nullptr ? bias : bias + row * bias_stride,
                                    keep == nullptr ? keep : keep + row * keep_stride, count);
    }
  }
  Isa::transpose(block);
  if (count == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) Isa::store(out + i * kBlockM, block[i]);
  } else {
    for (int i = 0; i < count; ++i) Isa::store(out + i * kBlockM, block[i]);
  }
}

template <class Isa, class BiasT>
__attribute__((noinline)) void build_additive(const AdditiveTile<BiasT>& tile, int rows, int keys,
                                              float* out) {
  constexpr int kLanes = Isa::kLanes;
  const BiasT* bias = tile.bias.data;
  const uint8_t* keep = tile.keep.data;
  const int64_t bias_stride = tile.bias.row_stride, keep_stride = tile.keep.row_stride;
  const auto count_of = [&](int key) { return keys - key < kLanes ? keys - key : kLanes; };
  if ((bias != nullptr && bias_stride != 0) || (keep != nullptr && keep_stride != 0)) {
    // A row's keys one after the other: the processor fetches what follows in a row by itself.
    for (int row = 0; row < rows; row += kLanes) {
      const int valid = rows - row < kLanes ? rows - row : kLanes;
      for (int key = 0; key < keys; key += kLanes) {
        additive_block<Isa>(bias == nullptr ? bias : bias + row * bias_stride + key, bias_stride,
                            keep == nullptr ? keep : keep + row * keep_stride + key, keep_stride,
                            valid, count_of(key), out + key * kBlockM + row);
      }
    }
  } else {
    const int padded_rows = static_cast<int>(round_up(rows, kLanes));
    for (int key = 0; key < keys; key += kLanes) {
      alignas(64) float line[kLanes];
      Isa::store(line, load_additive<Isa>(bias == nullptr ? bias : bias + key,
                                          keep == nullptr ? keep : keep + key, count_of(key)));
      for (int i = 0; i < count_of(key); ++i) {
        const auto x = Isa::broadcast(line + i);
        for (int row = 0; row < padded_rows; row += kLanes)
          Isa::store(out + (key + i) * kBlockM + row, x);
      }
    }
  }
  if (tile.place.alibi_slope != 0.0F || tile.place.masked_range)
    add_place<Isa>(tile.place, rows, keys, out);
}

// x -> up to kLanes elements of a row of which `left` are there.
template <class Isa, class T>
FULMEN_INLINE void store_row_part(T* out, typename Isa::Vec x, int64_t left) {
  if (left >= Isa::kLanes) {
    Isa::store_from_float(out, x);
  } else {
    Isa::store_from_float(out, x, static_cast<int>(left));
  }
}

// rows of O [rows][o_stride] -> out, each times its factor, rounded to T.
template <class Isa, class T>
__attribute__((noinline)) void store_output(const float* o, int64_t o_stride, const float* factor,
                                            int rows, int64_t dim, T* out, int64_t out_stride) {
  for (int row = 0; row < rows; ++row) {
    const auto f = Isa::broadcast(factor + row);
    for (int64_t d = 0; d < dim; d += Isa::kLanes) {
      store_row_part<Isa>(out + row * out_stride + d,
                          Isa::mul(Isa::load(o + row * o_stride + d), f), dim - d);
    }
  }
}

}  // namespace fulmen::cpu
