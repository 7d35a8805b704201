// Reading MessagePack, one token after another: a map or an array is its size, its members follow.
// Any bytes are safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fulmen::gpu {

class MessagePackReader {
 public:
  enum class Kind { nothing, boolean, integer, number, text, binary, array, map };
  struct Token {
    Kind kind = Kind::nothing;
    int64_t value = 0;      // of an integer or boolean; how many members an array, how many pairs a
                            // map has
    std::string_view text;  // of a text or binary
  };

  explicit MessagePackReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  // False at the end and for what is malformed.
  bool next(Token& token) {
    uint64_t tag = 0;
    if (!take(1, tag)) return false;
    if (tag < 0x80) return integer(token, static_cast<int64_t>(tag));
    if (tag < 0x90) return members(token, Kind::map, tag & 0xFU);
    if (tag < 0xA0) return members(token, Kind::array, tag & 0xFU);
    if (tag < 0xC0) return text(token, Kind::text, tag & 0x1FU);
    if (tag >= 0xE0) return integer(token, static_cast<int8_t>(tag));
    switch (tag) {
      case 0xC0:
        token = {};
        return true;
      case 0xC2:
      case 0xC3:
        token = {Kind::boolean, static_cast<int64_t>(tag & 1U), {}};
        return true;
      case 0xC4:
      case 0xC5:
      case 0xC6:
        return sized(token, Kind::binary, 1U << (tag - 0xC4U));
      case 0xCA:
      case 0xCB:
        return number(token, 4U << (tag - 0xCAU));
      case 0xCC:
      case 0xCD:
      case 0xCE:
      case 0xCF:
        return wide_integer(token, 1U << (tag - 0xCCU), false);
      case 0xD0:
      case 0xD1:
      case 0xD2:
      case 0xD3:
        return wide_integer(token, 1U << (tag - 0xD0U), true);
      case 0xD9:
      case 0xDA:
      case 0xDB:
        return sized(token, Kind::text, 1U << (tag - 0xD9U));
      case 0xDC:
      case 0xDD:
        return sized(token, Kind::array, 2U << (tag - 0xDCU));
      case 0xDE:
      case 0xDF:
        return sized(token, Kind::map, 2U << (tag - 0xDEU));
      default:
        return false;  // extensions: metadata has none
    }
  }

  // Passes over one value with all that is in it.
  bool skip() {
    for (uint64_t pending = 1; pending > 0; --pending) {
      Token token;
      if (!next(token)) return false;
      if (token.kind == Kind::array) pending += static_cast<uint64_t>(token.value);
      if (token.kind == Kind::map) pending += 2 * static_cast<uint64_t>(token.value);
    }
    return true;
  }

 private:
  bool take(std::size_t bytes, uint64_t& value) {
    if (rest_.size() < bytes) return false;
    value = 0;
    for (const std::byte b : rest_.first(bytes)) value = value << 8U | std::to_integer<uint64_t>(b);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  static bool integer(Token& token, int64_t value) {
    token = {Kind::integer, value, {}};
    return true;
  }
  bool wide_integer(Token& token, std::size_t bytes, bool negative) {
    uint64_t value = 0;
    if (!take(bytes, value)) return false;
    const auto unused = static_cast<unsigned>(64 - 8 * bytes);
    return integer(token, negative ? static_cast<int64_t>(value << unused) >> unused
                                   : static_cast<int64_t>(value));
  }
  bool number(Token& token, std::size_t bytes) {
    uint64_t ignored = 0;
    token = {Kind::number, 0, {}};
    return take(bytes, ignored);
  }
  // Each member is a byte at least: a larger count is a lie.
  bool members(Token& token, Kind kind, uint64_t count) {
    token = {kind, static_cast<int64_t>(count), {}};
    return count <= rest_.size();
  }
  bool text(Token& token, Kind kind, uint64_t length) {
    if (length > rest_.size()) return false;
    token = {
        kind, 0, {reinterpret_cast<const char*>(rest_.data()), static_cast<std::size_t>(length)}};
    rest_ = rest_.subspan(static_cast<std::size_t>(length));
    return true;
  }
  bool sized(Token& token, Kind kind, std::size_t bytes) {
    uint64_t size = 0;
    if (!take(bytes, size)) return false;
    return kind == Kind::array || kind == Kind::map ? members(token, kind, size)
                                                    : text(token, kind, size);
  }

  std::span<const std::byte> rest_;
};

}  // namespace fulmen::gpu
