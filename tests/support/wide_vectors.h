// The vocabulary of 16 lanes that kernels on matrix tiles need beside the tiles, in plain C++: they
// can then be run on any processor.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/tile/key_codes.h"
#include "cpu/tile/storage.h"
#include "runtime/float_formats.h"

namespace fulmen::testing {

// Words of fp32.
struct Wide {
  struct Vec {
    float lane[16];
  };
  static constexpr const char* kName = "wide";
  static constexpr int kLanes = 16;
  static constexpr int kGroup = 1;
  static constexpr int kQkVecs = 2;
  static constexpr int kQkKeys = 4;
  static constexpr int kPvVecs = 2;
  static constexpr int kPvRows = 4;
  static constexpr int kPvRowsNarrow = 4;
  static constexpr int kSoftmaxVecs = 2;
  static constexpr int kExp2Degree = 5;

  // of(lane) for each lane.
  template <class Of>
  static Vec each(const Of& of) {
    Vec x;
    for (int i = 0; i < kLanes; ++i) x.lane[i] = of(i);
    return x;
  }
  static Vec zero() { return set1(0); }
  static Vec set1(float x) {
    return each([&](int) { return x; });
  }
  static Vec load(const float* p) {
    Vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }
  static Vec broadcast(const void* p) {
    float x = 0;
    std::memcpy(&x, p, sizeof x);
    Vec all;
    for (int i = 0; i < kLanes; ++i) std::memcpy(all.lane + i, &x, sizeof x);
    return all;
  }
  static Vec add(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Vec sub(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Vec mul(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Vec div(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Vec fma(Vec a, Vec b, Vec c) { return fused(a, b, c); }
  static Vec fused(Vec a, Vec b, Vec c) {
    return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Vec max(Vec a, Vec b) {  // a NaN in b is kept
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec min(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec abs(Vec a) {
    return each([&](int i) { return std::fabs(a.lane[i]); });
  }
  static Vec iota() {
    return each([](int i) { return static_cast<float>(i); });
  }
  static Vec select_less(Vec x, Vec y, Vec a, Vec b) {
    return each([&](int i) { return x.lane[i] < y.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec select_minus_infinity(Vec test, Vec a, Vec b) {
    return each([&](int i) {
      return test.lane[i] == -std::numeric_limits<float>::infinity() ? a.lane[i] : b.lane[i];
    });
  }
  static Vec replace_minus_infinity(Vec x, Vec by) { return select_minus_infinity(x, by, x); }
  static bool all_equal(Vec a, Vec b) {
    for (int i = 0; i < kLanes; ++i) {
      if (a.lane[i] != b.lane[i]) return false;
    }
    return true;
  }
  static float reduce_add(Vec x) {
    float sum = 0;
    for (const float lane : x.lane) sum += lane;
    return sum;
  }
  static float reduce_max(Vec x) {
    float most = x.lane[0];
    for (const float lane : x.lane) most = most > lane ? most : lane;
    return most;
  }
  template <int kDegree = kExp2Degree, int kCount>
  static void exp2(Vec (&x)[kCount]) {
    for (Vec& vec : x) vec = each([&](int i) { return std::exp2(vec.lane[i]); });
  }
  template <int kDegree = kExp2Degree>
  static Vec exp2(Vec x) {
    Vec one[1] = {x};
    exp2<kDegree>(one);
    return one[0];
  }
  static Vec dot(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }

  template <class T>
  static Vec load_as_float(const T* p) {
    return load_as_float(p, kLanes);
  }
  template <class T>
  static Vec load_as_float(const T* p, int n) {
    return each([&](int i) { return i < n ? number(p[i]) : 0.0F; });
  }
  template <class T>
  static void store_from_float(T* p, Vec x) {
    store_from_float(p, x, kLanes);
  }
  static void store_from_float(float* p, Vec x, int n) {
    std::memcpy(p, &x, static_cast<std::size_t>(n) * sizeof(float));
  }
  static void store_from_float(cpu::Bf16* p, Vec x, int n) {
    for (int i = 0; i < n; ++i) p[i] = {reference::to_bf16(x.lane[i])};
  }
  static void transpose(Vec (&rows)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) std::swap(rows[i].lane[j], rows[j].lane[i]);
    }
  }
  static void prefetch(const void* /*p*/) {}

  static float number(float x) { return x; }
  static float number(uint8_t x) { return static_cast<float>(x); }
  static float number(int8_t x) { return static_cast<float>(x); }
  static float number(cpu::Bf16 x) { return reference::from_bf16(x.bits); }
  static float number(cpu::Fp16 x) { return reference::from_fp16(x.bits); }
};

// Words of pairs of bf16, and matrix tiles.
template <class Tiles>
struct WideAmx : Wide {
  using TileInstructions = Tiles;
  static constexpr int kGroup = 2;
  static constexpr bool kRoundsExp2 = true;

  template <int kCount>
  static void exp2_to_round(Vec (&x)[kCount]) {
    exp2(x);
    for (Vec& vec : x)
      vec = each([&](int i) { return reference::from_bf16(reference::to_bf16(vec.lane[i])); });
  }
  static Vec upper_halves(Vec a, Vec b) { return pack_pair(a, b); }
  static Vec ones() { return pack_pair(set1(1), set1(1)); }
  static Vec dot(Vec sum, Vec a, Vec b) {
    uint16_t of_a[32], of_b[32];
    std::memcpy(of_a, &a, sizeof of_a);
    std::memcpy(of_b, &b, sizeof of_b);
    const auto product = [&](int i) {
      return reference::from_bf16(of_a[i]) * reference::from_bf16(of_b[i]);
    };
    return each([&](int i) { return sum.lane[i] + product(2 * i) + product(2 * i + 1); });
  }
  static Vec load_words(const void* p) { return load(static_cast<const float*>(p)); }
  static Vec load_words(const void* p, int elements) {
    Vec x = zero();
    std::memcpy(&x, p, static_cast<std::size_t>(elements) * 2);
    return x;
  }
  static void interleave(Vec a, Vec b, Vec& low, Vec& high) {
    uint16_t of_a[32], of_b[32], words[64];
    std::memcpy(of_a, &a, sizeof of_a);
    std::memcpy(of_b, &b, sizeof of_b);
    for (int i = 0; i < 32; ++i) {
      words[2 * i] = of_a[i];
      words[2 * i + 1] = of_b[i];
    }
    std::memcpy(&low, words, sizeof low);
    std::memcpy(&high, words + 32, sizeof high);
  }
  static Vec pack_pair(Vec a, Vec b) {
    uint16_t words[32];
    for (int i = 0; i < kLanes; ++i) {
      words[2 * i] = reference::to_bf16(a.lane[i]);
      words[2 * i + 1] = reference::to_bf16(b.lane[i]);
    }
    Vec x;
    std::memcpy(&x, words, sizeof x);
    return x;
  }
};

// Words of four codes.
template <class Isa, class Tiles>
struct WideInt8 : Isa {
  using typename Isa::Vec;
  using Numbers = Wide;
  using TileInstructions = Tiles;
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 0;

  static Vec number(Vec sum) {
    int32_t sums[Wide::kLanes];
    std::memcpy(sums, &sum, sizeof sums);
    return Wide::each([&](int i) { return static_cast<float>(sums[i]); });
  }
  static void store_codes(float* to, Vec rounded) {
    uint8_t bytes[Wide::kLanes];
    for (int i = 0; i < Wide::kLanes; ++i)
      bytes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(rounded.lane[i]));
    std::memcpy(to, bytes, sizeof bytes);
  }
  static void store_key_codes(float* to, Vec rounded) { store_codes(to, rounded); }
};

}  // namespace fulmen::testing
