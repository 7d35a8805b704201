// A fuzzer's input as numbers, and tensors of a call made of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

// Row-major; a dim of size 1 is broadcast, but for the last.
inline fulmen_tensor packed(int32_t dtype, std::array<int64_t, 4> shape) {
  fulmen_tensor t{nullptr, dtype, {}, {}};
  int64_t stride = 1;
  for (std::size_t d = 4; d-- > 0;) {
    t.shape[d] = shape[d];
    t.strides[d] = shape[d] == 1 && d < 3 ? 0 : stride;
    stride *= shape[d];
  }
  return t;
}

}  // namespace fulmen::fuzz
