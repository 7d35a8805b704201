// Checks of the memory of a call's tensors: whether it is there, and whether it overlaps another's.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

struct MemoryRange {
  const char* name;
  const void* data;
  std::size_t bytes;  // 0: nothing is read or written
  DType dtype;
};

inline std::uintptr_t address_of(const MemoryRange& range) {
  return reinterpret_cast<std::uintptr_t>(range.data);
}

inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.bytes > 0 && b.bytes > 0 && address_of(a) < address_of(b) + b.bytes &&
         address_of(b) < address_of(a) + a.bytes;
}

// Where a tensor with elements is: somewhere, at a multiple of its element.
inline bool addressable(const MemoryRange& range) {
  return range.bytes == 0 ||
         (range.data != nullptr &&
          address_of(range) % static_cast<std::uintptr_t>(size_of(range.dtype)) == 0);
}

// needed: what a null pointer lacks.
inline Status bad_address(const MemoryRange& range, const std::string& needed) {
  if (range.data == nullptr)
    return {StatusCode::invalid_argument, fmt::format("{}.data is null: {}", range.name, needed)};
  return {StatusCode::invalid_argument,
          fmt::format("{}.data is {}: an address divisible by the {} bytes of its dtype is needed",
                      range.name, range.data, size_of(range.dtype))};
}

// written: what needs memory of its own.
inline Status bad_overlap(const MemoryRange& a, const MemoryRange& b, const char* written) {
  return {StatusCode::invalid_argument,
          fmt::format("{} at {} overlaps {} at {}: {} need memory of their own", a.name, a.data,
                      b.name, b.data, written)};
}

}  // namespace fulmen
