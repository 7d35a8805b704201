// The memory that an emulated launch may touch: the device's allocations when it begins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace fulmen::gpu {

class MemoryMap {
 public:
  struct Block {
    uint64_t begin = 0, end = 0;
  };
  explicit MemoryMap(std::vector<Block> sorted) : blocks_(std::move(sorted)) {}
  // Returns true if all of the bytes are in one allocation.
  bool contains(uint64_t address, uint64_t bytes) {
    if (address >= last_.begin && address + bytes <= last_.end) return true;
    return find(address, bytes);
  }

 private:
  bool find(uint64_t address, uint64_t bytes) {
    auto block = std::upper_bound(blocks_.begin(), blocks_.end(), address,
                                  [](uint64_t at, const Block& b) { return at < b.begin; });
    if (block == blocks_.begin()) return false;
    --block;
    if (address > block->end || bytes > block->end - address) return false;
    last_ = *block;
    return true;
  }

  std::vector<Block> blocks_;
  Block last_;  // the block of the last access
};

}  // namespace fulmen::gpu
