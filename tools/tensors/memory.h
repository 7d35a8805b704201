// Big buffers as a careful caller allocates them: 64-byte aligned at least, and on huge pages where
// the system grants them on request.
#pragma once

#include <cstddef>
#include <memory>

namespace fulmen::tools {

struct UnmapMemory {
  std::size_t bytes = 0;
  void operator()(void* data) const noexcept;
};

class Memory {
 public:
  Memory() = default;
  // Zeroed bytes. Null data when the system has no more (bytes > 0).
  explicit Memory(std::size_t bytes);
  void* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }

 private:
  std::unique_ptr<void, UnmapMemory> data_;
  std::size_t size_ = 0;
};

}  // namespace fulmen::tools
