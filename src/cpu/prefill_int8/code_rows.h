// Rows of fp32 -> codes of int8.
#pragma once

#include "cpu/tile/key_codes.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// The largest |row - minus| of `dims`, whole vectors; NaNs do not count.
template <class Isa>
FULMEN_INLINE typename Isa::Vec largest_of(const float* row, const float* minus, int64_t dims,
                                           typename Isa::Vec most) {
  for (int64_t d = 0; d < dims; d += Isa::kLanes) {
    const auto x = Isa::sub(Isa::load(row + d), Isa::load(minus + d));
    most = Isa::max(Isa::abs(x), most);
  }
  return most;
}

// What a row of q gives beside its codes.
struct CodedQuery {
  float scale, start, offset;  // of QueryCodes
};

// row[dims] becomes words in place.
template <class Product>
__attribute__((noinline)) CodedQuery code_query(float* row, const float* mean, int64_t dims) {
  using Isa = typename Product::Numbers;
  using Vec = typename Isa::Vec;
  Vec most = Isa::zero(), start = Isa::zero();
  for (int64_t d = 0; d < dims; d += Isa::kLanes) {
    const Vec x = Isa::load(row + d);
    most = Isa::max(Isa::abs(x), most);
    start = Isa::fma(x, Isa::load(mean + d), start);
  }
  const float largest = Isa::reduce_max(most);
  const Vec factor = Isa::set1(code_factor(largest));
  Vec sum = Isa::zero();
  for (int64_t d = 0; d < dims; d += Isa::kLanes) {
    const Vec rounded = Isa::fused(Isa::load(row + d), factor, Isa::set1(kCodeOrigin));
    if constexpr (Product::kKeyOffset != 0) sum = Isa::add(sum, Product::code(rounded));
    Product::store_codes(row + d / Product::kGroup, rounded);
  }
  const float scale = code_scale(largest);
  return {scale, Isa::reduce_add(start), Product::kKeyOffset * Isa::reduce_add(sum) * scale};
}

}  // namespace fulmen::cpu
