// Memory of the emulated devices: the host's, with room around each allocation that belongs to none.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::gpu::emulated {

class DeviceMemory {
 public:
  Result<void*> allocate(std::size_t bytes) {
    if (bytes > SIZE_MAX - 3 * kGap) return Status(StatusCode::out_of_memory, fmt::format("no memory for {} bytes", bytes));
    // Room on both sides that belongs to no allocation: an index that runs over is found.
    auto* block = static_cast<char*>(std::aligned_alloc(kGap, (bytes + 3 * kGap - 1) / kGap * kGap));
    if (block == nullptr) return Status(StatusCode::out_of_memory, fmt::format("no memory for {} bytes", bytes));
    // A large one stays as the system gives it, zeros without memory of their own until they are used.
    if (bytes <= kMostPoisoned) std::memset(block, kPoison, bytes + 2 * kGap);
    const std::scoped_lock lock(mutex_);
    blocks_[block + kGap] = bytes;
    return static_cast<void*>(block + kGap);
  }
  void free(void* memory) noexcept {
    const std::scoped_lock lock(mutex_);
    last_ = last_end_ = nullptr;
    if (blocks_.erase(static_cast<char*>(memory)) != 0) std::free(static_cast<char*>(memory) - kGap);
  }
  bool contains(const void* address, std::size_t bytes) const {
    const auto* at = static_cast<const char*>(address);
    const std::scoped_lock lock(mutex_);
    if (at >= last_ && at + bytes <= last_end_) return true;
    auto block = blocks_.upper_bound(const_cast<char*>(at));
    if (block == blocks_.begin()) return false;
    --block;
    if (at + bytes > block->first + block->second) return false;
    last_ = block->first;
    last_end_ = block->first + block->second;
    return true;
  }

  // Begin and end of every allocation, in order.
  std::vector<std::pair<const char*, const char*>> blocks() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::pair<const char*, const char*>> list;
    for (const auto& [begin, bytes] : blocks_) list.emplace_back(begin, begin + bytes);
    return list;
  }

 private:
  static constexpr std::size_t kGap = 256;
  static constexpr int kPoison = 0xFF;
  static constexpr std::size_t kMostPoisoned = std::size_t{1} << 30;

  mutable std::mutex mutex_;
  mutable const char* last_ = nullptr;  // the block that the last access was in
  mutable const char* last_end_ = nullptr;
  std::map<char*, std::size_t> blocks_;
};

}  // namespace fulmen::gpu::emulated
