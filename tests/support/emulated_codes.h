// Products of codes of int8 in plain C++, so that any processor can test the kernels of those that
// have them.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/isa/scalar.h"
#include "cpu/tile/key_codes.h"

namespace fulmen::testing {

// Words of four codes.
struct EmulatedCodes : cpu::Scalar {
  using Numbers = cpu::Scalar;
  static constexpr int kGroup = 4;

  static Vec number(Vec sum) {
    int32_t sums[kLanes];
    std::memcpy(sums, &sum, sizeof sums);
    Vec x{};
    for (int lane = 0; lane < kLanes; ++lane) x[lane] = static_cast<float>(sums[lane]);
    return x;
  }
  static Vec code(Vec rounded) { return sub(rounded, set1(cpu::kCodeOrigin)); }
  static void store_codes(float* to, Vec rounded) { store_bytes(to, rounded, 0); }

 protected:
  static void store_bytes(float* to, Vec rounded, uint32_t flipped) {
    uint8_t bytes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      bytes[lane] = static_cast<uint8_t>(bits(rounded)[lane] ^ flipped);
    std::memcpy(to, bytes, sizeof bytes);
  }
};

// What cpu/isa/avx_vnni.h and avx512_vnni.h have: keys' codes are unsigned, by an offset of 128.
struct EmulatedVnni : EmulatedCodes {
  static constexpr const char* kName = "vnni_emulated";
  static constexpr float kKeyOffset = 128;

  static Vec dot(Vec sum, Vec a, Vec b) {
    int32_t sums[kLanes];
    int8_t of_queries[kLanes][4];
    uint8_t of_keys[kLanes][4];
    std::memcpy(sums, &sum, sizeof sums);
    std::memcpy(of_queries, &a, sizeof of_queries);
    std::memcpy(of_keys, &b, sizeof of_keys);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) sums[lane] += of_keys[lane][i] * of_queries[lane][i];
    }
    std::memcpy(&sum, sums, sizeof sum);
    return sum;
  }
  static void store_key_codes(float* to, Vec rounded) { store_bytes(to, rounded, 0x80); }
};

// Signed codes of keys that lie in groups: kUnit words of a row at once.
template <int kUnit>
struct EmulatedGroups : EmulatedCodes {
  static constexpr float kKeyOffset = 0;
  static constexpr int kUnitWords = kUnit;

  static void store_key_codes(float* to, Vec rounded) { store_bytes(to, rounded, 0); }

 protected:
  // sum + the products of a row's unit of one query and of one key.
  static int32_t added(int32_t sum, const float* query, const float* key) {
    int8_t a[4 * kUnit], b[4 * kUnit];
    std::memcpy(a, query, sizeof a);
    std::memcpy(b, key, sizeof b);
    for (int i = 0; i < 4 * kUnit; ++i) sum += a[i] * b[i];
    return sum;
  }
  static const float* place(const float* keys, int64_t group_stride, int key) {
    return keys + key / cpu::kKeyGroup * group_stride + key % cpu::kKeyGroup * kUnit;
  }
};

// cpu/isa/neon_dotprod.h.
struct EmulatedSdot : EmulatedGroups<1> {
  static constexpr const char* kName = "sdot_emulated";

  template <int kKeys, int kVecs>
  static void add_products(Vec (&sum)[kKeys][kVecs], const float* queries, const float* keys,
                           int64_t group_stride) {
    for (int key = 0; key < kKeys; ++key) {
      for (int v = 0; v < kVecs; ++v) {
        int32_t sums[kLanes];
        std::memcpy(sums, &sum[key][v], sizeof sums);
        for (int lane = 0; lane < kLanes; ++lane)
          sums[lane] =
              added(sums[lane], queries + v * kLanes + lane, place(keys, group_stride, key));
        std::memcpy(&sum[key][v], sums, sizeof sums);
      }
    }
  }
  template <int kKeys, int kVecs>
  static void split_sums(Vec (&)[kKeys][kVecs]) {}
};

// cpu/isa/neon_i8mm.h: lane 2 i + j of smmla's result is row i of its first operand by row j of
// its second.
struct EmulatedSmmla : EmulatedGroups<2> {
  static constexpr const char* kName = "smmla_emulated";
  static constexpr int kQkVecs = 2;
  static constexpr int kQkKeys = 8;

  template <int kKeys, int kVecs>
  static void add_products(Vec (&sum)[kKeys][kVecs], const float* queries, const float* keys,
                           int64_t group_stride) {
    for (int key = 0; key < kKeys; ++key) {
      for (int v = 0; v < kVecs; ++v) {
        int32_t sums[kLanes];
        std::memcpy(sums, &sum[key][v], sizeof sums);
        for (int lane = 0; lane < kLanes; ++lane)
          sums[lane] = added(sums[lane], queries + (v * kLanes + key % 2 * 2 + lane % 2) * 2,
                             place(keys, group_stride, key / 2 * 2 + lane / 2));
        std::memcpy(&sum[key][v], sums, sizeof sums);
      }
    }
  }
  template <int kKeys, int kVecs>
  static void split_sums(Vec (&sum)[kKeys][kVecs]) {
    for (int key = 0; key < kKeys; key += 2) {
      for (int v = 0; v < kVecs; ++v) {
        const Vec a = sum[key][v], b = sum[key + 1][v];
        sum[key][v] = Vec{a[0], a[1], b[0], b[1]};
        sum[key + 1][v] = Vec{a[2], a[3], b[2], b[3]};
      }
    }
  }
};

}  // namespace fulmen::testing
