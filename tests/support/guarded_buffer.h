// Memory between two pages that cannot be touched: reading or writing one byte outside it stops the
// test.
#pragma once

#include <cstddef>

namespace fulmen::testing {

class GuardedBuffer {
 public:
  // flush says which guard page the data touches. At the end the data is only as aligned as its
  // size allows.
  enum class Flush { end, start };
  GuardedBuffer() = default;
  explicit GuardedBuffer(std::size_t bytes, Flush flush = Flush::end);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  // From now on writing stops the test as well.
  void make_read_only();

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::byte* mapping_ = nullptr;
  std::size_t mapped_ = 0;  // with both guard pages
};

}  // namespace fulmen::testing
