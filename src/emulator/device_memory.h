// Memory of the emulated devices: the host's, with a gap around each allocation.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "emulator/memory_map.h"
#include "fulmen/status.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/memory.h"

namespace fulmen::gpu {

class DeviceMemory {
 public:
  Result<void*> allocate(std::size_t bytes) {
    if (bytes > SIZE_MAX - 3 * kGap)
      return Status(StatusCode::out_of_memory, fmt::format("no memory for {} bytes", bytes));
    // The gap on both sides belongs to no allocation, so an index that runs over is found.
    auto* block =
        static_cast<char*>(platform::allocate_aligned(kGap, (bytes + 3 * kGap - 1) / kGap * kGap));
    if (block == nullptr)
      return Status(StatusCode::out_of_memory, fmt::format("no memory for {} bytes", bytes));
    // A large block stays as the system gives it: zeros, without memory until they are used.
    if (bytes <= kMostPoisoned) std::memset(block, kPoison, bytes + 2 * kGap);
    const std::scoped_lock lock(mutex_);
    blocks_[block + kGap] = bytes;
    return static_cast<void*>(block + kGap);
  }
  void free(void* memory) noexcept {
    const std::scoped_lock lock(mutex_);
    if (blocks_.erase(static_cast<char*>(memory)) != 0)
      platform::free_aligned(static_cast<char*>(memory) - kGap);
  }
  // Refuses a range that begins in an allocation, or in the gap around one, and leaves it, and a
  // range that runs into one. Other memory is the host's, of which nothing is known. name: the
  // argument's, for the message; bytes: more than 0.
  Status check_range(const char* name, const void* address, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const auto refuse = [&](const std::string& why) -> Status {
      return {StatusCode::invalid_argument, fmt::format("bytes is {}: {}", bytes, why)};
    };
    if (bytes > UINTPTR_MAX - begin)
      return refuse(fmt::format("{} has no memory of so many", name));
    const std::scoped_lock lock(mutex_);
    const auto next = blocks_.upper_bound(static_cast<char*>(const_cast<void*>(address)));
    if (next != blocks_.begin()) {
      const auto& [block, size] = *std::prev(next);
      const std::size_t offset = begin - reinterpret_cast<std::uintptr_t>(block);
      if (offset <= size && bytes <= size - offset) return {};
      if (offset < size + kGap) {
        return refuse(
            fmt::format("{} points to byte {} of an allocation of {}: up to {} is accepted", name,
                        offset, size, size > offset ? size - offset : 0));
      }
    }
    if (next == blocks_.end()) return {};
    const std::size_t before = reinterpret_cast<std::uintptr_t>(next->first) - begin;
    if (bytes <= before - std::min(before, kGap)) return {};
    return refuse(
        fmt::format("{} points {} bytes before an allocation of the device, which they run into",
                    name, before));
  }

  bool contains(const void* address) const {
    return map().contains(reinterpret_cast<uint64_t>(address), 1);
  }

  MemoryMap map() const {
    const std::scoped_lock lock(mutex_);
    std::vector<MemoryMap::Block> list;
    for (const auto& [block, bytes] : blocks_) {
      const auto begin = reinterpret_cast<uint64_t>(block);
      list.push_back({begin, begin + bytes});
    }
    return MemoryMap(std::move(list));
  }

 private:
  static constexpr std::size_t kGap = 256;
  static constexpr int kPoison = 0xFF;
  static constexpr std::size_t kMostPoisoned = std::size_t{1} << 30;

  mutable Mutex mutex_;
  std::map<char*, std::size_t> blocks_;
};

}  // namespace fulmen::gpu
