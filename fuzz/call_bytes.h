// A fuzzer's input as numbers, and tensors of a call made of them.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "fulmen/fulmen_c.h"

namespace fulmen::fuzz {

// The input; zeros behind its end.
class Bytes {
 public:
  Bytes(const uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool more() const { return at_ < size_; }
  uint8_t next() { return at_ < size_ ? data_[at_++] : 0; }
  template <class T, std::size_t n>
  T pick(const std::array<T, n>& from) {
    return from[next() % n];
  }

 private:
  const uint8_t* data_;
  std::size_t size_, at_ = 0;
};

// A struct of the C ABI, followed by the bytes that a larger one would have.
template <class Struct>
struct Roomy {
  Struct call;
  std::array<unsigned char, 8192> behind{};
};

// Row-major; a dim of size 1 is broadcast, but for the last.
inline fulmen_tensor packed(int32_t dtype, std::array<int64_t, 4> shape) {
  return fulmen_tensor_row_major(nullptr, dtype, shape[0], shape[1], shape[2], shape[3]);
}

inline std::size_t size_of(int32_t dtype) {
  if (dtype == FULMEN_FP32 || dtype == FULMEN_INT32) return 4;
  return dtype == FULMEN_FP16 || dtype == FULMEN_BF16 ? 2 : 1;
}

// The bytes that a tensor's strides reach. The tensor was checked, so nothing overflows.
inline std::size_t elements(const fulmen_tensor& t) {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] == 0) return 0;
    const int64_t size = d == 3 ? fulmen_row_elements(t.dtype, t.shape[d]) : t.shape[d];
    if (size > 1) last += (size - 1) * t.strides[d];
  }
  return static_cast<std::size_t>(last) + 1;
}

// Of k and v: q's, or, for two of three numbers, int8 and the formats behind it. Blocks take 32
// numbers: `dim` becomes that.
inline int32_t stored_dtype(int number, int32_t dtype, int64_t& dim) {
  constexpr int kFormats = FULMEN_Q5_1 - FULMEN_INT8 + 1;
  if (number % 16 >= kFormats) return dtype;
  const int32_t stored = FULMEN_INT8 + number % 16;
  if (stored >= FULMEN_Q8_0) dim = 32;
  return stored;
}

inline bool absent(const fulmen_tensor& t) {
  return std::all_of(t.shape, t.shape + 4, [](int64_t n) { return n == 0; });
}

// Memory of exactly the sizes asked for. An access beyond is found by AddressSanitizer, or, without
// it, by an inaccessible page behind the end.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    for (const auto& [address, room] : owned_) spare()[room].push_back(address);
    for (void* one : allocated_) std::free(one);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  // Every second empty tensor is at null, which is allowed.
  void* take(std::size_t bytes) {
    if (bytes == 0 && ++empty_ % 2 == 0) return nullptr;
    if (kSanitized) return allocated_.emplace_back(std::malloc(bytes));
    const std::size_t room = (bytes + kPage - 1) / kPage * kPage;
    char* const place = owned_.emplace_back(guarded(room), room).first + (room - bytes);
    std::memset(place, 0, bytes);
    return place;
  }

 private:
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  static constexpr bool kSanitized = true;
#else
  static constexpr bool kSanitized = false;
#endif
#else
  static constexpr bool kSanitized = false;
#endif
  static constexpr std::size_t kPage = 65536;  // a multiple of every system's

  // Mappings of former calls by their sizes: to map and protect one takes longer than most calls.
  static std::map<std::size_t, std::vector<char*>>& spare() {
    static std::map<std::size_t, std::vector<char*>> places;
    return places;
  }
  // Memory with an inaccessible page behind its end.
  static char* guarded(std::size_t room) {
    std::vector<char*>& places = spare()[room];
    if (!places.empty()) {
      char* const place = places.back();
      places.pop_back();
      return place;
    }
    void* const address =
        mmap(nullptr, room + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED ||
        mprotect(static_cast<char*>(address) + room, kPage, PROT_NONE) != 0)
      std::abort();
    return static_cast<char*>(address);
  }

  std::size_t empty_ = 0;
  std::vector<void*> allocated_;
  std::vector<std::pair<char*, std::size_t>> owned_;
};

constexpr std::size_t kMostBytes = std::size_t{1} << 18U;  // of a tensor that gets memory

}  // namespace fulmen::fuzz
