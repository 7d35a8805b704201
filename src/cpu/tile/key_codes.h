// Keys as codes of int8 in the workspace, which products in int8 read: made once a call, before its
// tasks.
//
//   mean[dims]          of the keys that a head's queries attend, from the sums of parts of them
//   scale[block]        of kCodedKeys keys: max |k - mean| / 127
//   words[keys][words]  round((k - mean) / scale), or in groups of keys (kHasKeyGroups)
#pragma once

#include <cstdint>

#include "cpu/tile/tile.h"

namespace fulmen::cpu {

constexpr int kCodedKeys = kMaxBlockN;  // keys with one scale: no key tile meets two of them
constexpr float kLargestCode = 127.0F;
constexpr float kNoNumber = 0x1p-118F;  // rows of no larger numbers are zeros

// Adding it to a number of a smaller size than 2^22 leaves the nearest integer in the low bits.
constexpr float kCodeOrigin = 0x1.8p23F;

FULMEN_INLINE float code_scale(float most) {
  return most <= kNoNumber ? 0.0F : most * (1.0F / kLargestCode);
}
FULMEN_INLINE float code_factor(float most) {
  return most <= kNoNumber ? 0.0F : kLargestCode / most;
}

// Coded keys of a head before sequence b, which begins at row k_row of packed keys: each sequence's
// are whole blocks.
FULMEN_INLINE int64_t packed_codes_before(int64_t k_row, int64_t b) {
  return k_row / kCodedKeys * kCodedKeys + b * kCodedKeys;
}

struct KeyCodes {
  float* words = nullptr;
  float* scales = nullptr;
  float* sums = nullptr;   // [batch][kv_heads][parts][dims]
  int64_t key_stride = 0;  // floats of a key's words
  int64_t dims = 0;        // floats of a mean: head_dim, rounded up to whole vectors
  int64_t kv_heads = 1;
  int64_t parts = 1;               // of the longest sequence's keys
  int64_t part_keys = kCodedKeys;  // a multiple of kCodedKeys
  // Where a head's keys begin, as a number of keys.
  int64_t first = 0;
  int64_t batch_keys = 0;
  int64_t head_keys = 0;

  // Packed keys: those of sequence b of `length` keys, which begin at k_row.
  FULMEN_INLINE void select_packed(int64_t b, int64_t k_row, int64_t length) {
    first = packed_codes_before(k_row, b) * kv_heads;
    batch_keys = 0;
    head_keys = round_up(length, kCodedKeys);
  }
  FULMEN_INLINE int64_t key_of(int64_t batch, int64_t kv_head, int64_t key) const {
    return first + batch * batch_keys + kv_head * head_keys + key;
  }
  FULMEN_INLINE float* words_of(int64_t batch, int64_t kv_head, int64_t key) const {
    return words + key_of(batch, kv_head, key) * key_stride;
  }
  FULMEN_INLINE float* scale_of(int64_t batch, int64_t kv_head, int64_t key) const {
    return scales + key_of(batch, kv_head, key) / kCodedKeys;
  }
  FULMEN_INLINE float* sums_of(int64_t batch, int64_t kv_head, int64_t part) const {
    return sums + ((batch * kv_heads + kv_head) * parts + part) * dims;
  }
};

// A part of a head's keys: its sums, or its codes once all of the head's sums are there.
struct KeyCodesTask {
  enum class Step { sums, codes } step = Step::sums;
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t part = 0;
};

// Rows' numbers that turn sums of codes into products of numbers: sum * scale + start.
struct CodeRows {
  const float* scale;  // [kBlockM]
  const float* start;  // [kBlockM]
};

// What belongs to the codes of a task's queries.
struct QueryCodes {
  float* scales = nullptr;   // [tiles][kBlockM]
  float* starts = nullptr;   // [tiles][kBlockM]: q . mean
  float* offsets = nullptr;  // [tiles][kBlockM]: what kKeyOffset adds to q . k, but for k's scale
  float* scale = nullptr;    // CodeRows of the tile at hand
  float* start = nullptr;
};

// Whether an instruction set's products are of codes.
template <class Product>
constexpr bool kIsOfCodes = requires { Product::kKeyOffset; };

// Whether its products read codes of neighbouring keys by one load, and kUnitWords words of a row
// at once. Keys then lie as [groups of keys][units of words][kKeyGroup][kUnitWords], a tile's
// queries as [units of words][kBlockM][kUnitWords].
constexpr int kKeyGroup = 4;
template <class Product>
constexpr bool kHasKeyGroups = requires { Product::kUnitWords; };

template <class Product>
constexpr __attribute__((always_inline)) int unit_words() {
  if constexpr (kHasKeyGroups<Product>) {
    return Product::kUnitWords;
  } else {
    return 1;
  }
}

// The words of a row of `elements` codes, whole units.
template <class Product>
constexpr __attribute__((always_inline)) int64_t code_words(int64_t elements) {
  return round_up((elements + Product::kGroup - 1) / Product::kGroup, unit_words<Product>());
}

// Floats from a block's first key to a word of one of its keys.
template <class Product>
FULMEN_INLINE int64_t code_place(int64_t key, int64_t word, int64_t stride) {
  if constexpr (kHasKeyGroups<Product>) {
    constexpr int kUnit = Product::kUnitWords;
    return key / kKeyGroup * kKeyGroup * stride + word / kUnit * (kKeyGroup * kUnit) +
           key % kKeyGroup * kUnit + word % kUnit;
  } else {
    return key * stride + word;
  }
}

}  // namespace fulmen::cpu
