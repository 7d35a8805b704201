// Sums of products of codes by a set's register blocks, for a test beside plain loops.
#pragma once

#include <cstdint>

#include "cpu/tile/score_product.h"

namespace fulmen::testing {

// Codes are [rows][dims]. What the product reads of others is `rest`.
struct CodeSums {
  const int8_t* queries = nullptr;  // [rows][dims]
  const int8_t* keys = nullptr;     // [end][dims]
  int rows = 0, begin = 0, end = 0, dims = 0;
  int8_t rest = 0;
  float* panel = nullptr;  // the product's operands
  float* groups = nullptr;
  int32_t* sums = nullptr;  // [end][kBlockM], of keys from `begin` on
};

// The epilogue that keeps sums as they are.
template <class Product>
struct KeptSums {
  int32_t* sums;
  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = cpu::kWholeBlock;
    FULMEN_INLINE Block(const KeptSums& tile, int at) : to_(tile.sums + at) {}
    FULMEN_INLINE void step() {}
    FULMEN_INLINE void row(const typename Product::Vec (&sum)[kVecs], int key) {
      for (int v = 0; v < kVecs; ++v)
        Product::store(reinterpret_cast<float*>(to_ + key * cpu::kBlockM + v * Product::kLanes),
                       sum[v]);
    }
    FULMEN_INLINE void end() {}
    int32_t* to_;
  };
};

// The words of a row's codes go to the place of each of them.
template <class Product, class Place>
__attribute__((noinline)) void place_codes(const int8_t* row, int dims, int8_t rest, float* out,
                                           const Place& place) {
  const auto words = static_cast<int>(cpu::code_words<Product>(dims));
  for (int word = 0; word < words; ++word) {
    int8_t codes[4];
    for (int i = 0; i < 4; ++i) codes[i] = 4 * word + i < dims ? row[4 * word + i] : rest;
    __builtin_memcpy(out + place(word), codes, sizeof codes);
  }
}

// Keys' codes behind the last dim are `rest`, queries' 0.
template <class Product>
__attribute__((noinline)) void code_sums(const CodeSums& call) {
  constexpr int kUnit = cpu::unit_words<Product>();
  const int64_t stride = cpu::code_words<Product>(call.dims);
  for (int row = 0; row < call.rows; ++row) {
    place_codes<Product>(
        call.queries + static_cast<int64_t>(row) * call.dims, call.dims, 0, call.panel,
        [&](int word) { return (word / kUnit * cpu::kBlockM + row) * kUnit + word % kUnit; });
  }
  for (int key = 0; key < call.end; ++key) {
    place_codes<Product>(call.keys + static_cast<int64_t>(key) * call.dims, call.dims, call.rest,
                         call.groups,
                         [&](int word) { return cpu::code_place<Product>(key, word, stride); });
  }
  cpu::score_tile<Product>(call.panel, call.rows, call.groups, stride,
                           static_cast<int>((call.dims + 3) / 4),
                           cpu::SameSpan{{call.begin, call.end}}, KeptSums<Product>{call.sums});
}

}  // namespace fulmen::testing
