// Products of codes whose keys lie in groups: a register block's sums are of all their words, and
// the set says how its instruction adds them up.
#pragma once

#include "cpu/tile/key_codes.h"
#include "cpu/tile/row_spans.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// kKeys keys from `first` on, a multiple of kKeyGroup, of which those before `end` go to the
// epilogue, x kVecs vectors of queries.
template <class Product, int kVecs, int kKeys, class Block>
FULMEN_INLINE void code_block(
    const float* queries,  // [units][kBlockM][kUnitWords], of `units` of words
    const float* keys,     // from their group on
    int64_t stride, int units, int first, int end, Block& epilogue) {
  static_assert(kKeys % kKeyGroup == 0);
  constexpr int kUnitWords = Product::kUnitWords;
  typename Product::Vec sum[kKeys][kVecs];
#pragma GCC unroll 8
  for (int key = 0; key < kKeys; ++key) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[key][v] = Product::zero();
  }
  epilogue.step();
  do {
    Product::add_products(sum, queries, keys, kKeyGroup * stride);
    queries += kBlockM * kUnitWords;
    keys += kKeyGroup * kUnitWords;
  } while (--units > 0);
  Product::split_sums(sum);
#pragma GCC unroll 8
  for (int key = 0; key < kKeys; ++key) {
    if (first + key < end) epilogue.row(sum[key], first + key);
  }
}

// The keys of a span for kVecs vectors of queries, from column `at` of the panel on.
template <class Product, int kVecs, class Epilogue>
FULMEN_INLINE void code_rows(const float* panel, const float* keys, int64_t stride, int words,
                             KeySpan span, const Epilogue& epilogue, int at) {
  static_assert(kSpanKeys % kKeyGroup == 0, "spans begin at groups of keys");
  constexpr int kKeys = kVecs == Product::kQkVecs ? Product::kQkKeys : kKeyGroup;
  typename Epilogue::template Block<kVecs> block(epilogue, at);
  const float* queries = panel + at * Product::kUnitWords;
  const int units = (words + Product::kUnitWords - 1) / Product::kUnitWords;
  int key = span.begin;
  for (; key + kKeys <= span.end; key += kKeys)
    code_block<Product, kVecs, kKeys>(queries, keys + key * stride, stride, units, key, span.end,
                                      block);
  for (; key < span.end; key += kKeyGroup)
    code_block<Product, kVecs, kKeyGroup>(queries, keys + key * stride, stride, units, key,
                                          span.end, block);
  block.end();
}

}  // namespace fulmen::cpu
