// NEON with the dot products of Armv8.2: sdot adds the products of four signed bytes. Its second
// operand is one word of a vector for all lanes: a key's of the four that one load reads.
#pragma once

#include "cpu/isa/neon_codes.h"

namespace fulmen::cpu {

struct NeonDotprod : NeonCodes<struct NeonDotprodSet> {
  static constexpr const char* kName = "neon_dotprod";
  static constexpr int kUnitWords = 1;

  // sum[key][query vector] + the products of a unit of words. queries: [kVecs][kLanes], keys:
  // [kKeyGroup] of each group of keys.
  template <int kKeys, int kVecs>
  static FULMEN_INLINE void add_products(Vec (&sum)[kKeys][kVecs], const float* queries,
                                         const float* keys, int64_t group_stride) {
    Vec of_queries[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) of_queries[v] = load(queries + v * kLanes);
#pragma GCC unroll 8
    for (int key = 0; key < kKeys; key += kKeyGroup, keys += group_stride) {
      const Vec group = load(keys);
      add_key<0>(sum[key], of_queries, group);
      add_key<1>(sum[key + 1], of_queries, group);
      add_key<2>(sum[key + 2], of_queries, group);
      add_key<3>(sum[key + 3], of_queries, group);
    }
  }
  // The sums of each key, of what add_products left.
  template <int kKeys, int kVecs>
  static FULMEN_INLINE void split_sums(Vec (&)[kKeys][kVecs]) {}

 private:
  template <int kKey, int kVecs>
  static FULMEN_INLINE void add_key(Vec (&sum)[kVecs], const Vec (&queries)[kVecs], Vec group) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      asm("sdot %0.4s, %1.16b, %2.4b[%c3]" : "+w"(sum[v]) : "w"(queries[v]), "w"(group), "i"(kKey));
  }
};

}  // namespace fulmen::cpu
