// Reading pieces of a file in memory whose offsets may be damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace fulmen {

// A piece of the file, or nothing where it is not all there.
inline std::optional<std::span<const std::byte>> file_piece(std::span<const std::byte> file,
                                                            uint64_t at, uint64_t bytes) {
  if (at > file.size() || bytes > file.size() - at) return {};
  return file.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
}

template <class T>
bool read_piece(std::span<const std::byte> file, uint64_t at, T& value) {
  const std::optional<std::span<const std::byte>> bytes = file_piece(file, at, sizeof(T));
  if (bytes) std::memcpy(&value, bytes->data(), sizeof(T));
  return bytes.has_value();
}

}  // namespace fulmen
