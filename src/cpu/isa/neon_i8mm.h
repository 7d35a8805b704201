// NEON with Armv8.6's products of matrices of bytes: smmla adds two rows of eight codes times two
// others, twice the products of sdot. A vector of sums is two keys by two queries.
#pragma once

#include "cpu/isa/neon_codes.h"

namespace fulmen::cpu {

struct NeonI8mm : NeonCodes<struct NeonI8mmSet> {
  static constexpr const char* kName = "neon_i8mm";
  static constexpr int kUnitWords = 2;
  // 16 sums, 4 vectors of queries and 4 of keys: 24 instructions for 512 products, of 16 queries
  // and 4 keys 26.
  static constexpr int kQkVecs = 2;
  static constexpr int kQkKeys = 8;

  // sum[key of a pair][query vector] of keys 2i and 2i + 1: both keys by the first two and by the
  // last two queries of the vector. queries: [kVecs][kLanes][kUnitWords], keys: [kKeyGroup]
  // [kUnitWords] of each group of keys.
  template <int kKeys, int kVecs>
  static FULMEN_INLINE void add_products(Vec (&sum)[kKeys][kVecs], const float* queries,
                                         const float* keys, int64_t group_stride) {
    Vec of_queries[kVecs][2];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      of_queries[v][0] = load(queries + v * 2 * kLanes);
      of_queries[v][1] = load(queries + v * 2 * kLanes + kLanes);
    }
#pragma GCC unroll 8
    for (int key = 0; key < kKeys; key += 2) {
      const Vec pair = load(keys + key / kKeyGroup * group_stride + key % kKeyGroup * kUnitWords);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        add_pair(sum[key][v], pair, of_queries[v][0]);
        add_pair(sum[key + 1][v], pair, of_queries[v][1]);
      }
    }
  }
  // The sums of each key, of what add_products left.
  template <int kKeys, int kVecs>
  static FULMEN_INLINE void split_sums(Vec (&sum)[kKeys][kVecs]) {
#pragma GCC unroll 8
    for (int key = 0; key < kKeys; key += 2) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const Vec first = low_pairs(sum[key][v], sum[key + 1][v]);
        sum[key + 1][v] = high_pairs(sum[key][v], sum[key + 1][v]);
        sum[key][v] = first;
      }
    }
  }

 private:
  static FULMEN_INLINE void add_pair(Vec& sum, Vec keys, Vec queries) {
    asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(keys), "w"(queries));
  }
};

}  // namespace fulmen::cpu
