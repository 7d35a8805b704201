#include "fulmen/printable.h"

#include <cstddef>

namespace fulmen {
namespace {

// Bytes of the UTF-8 character that text begins with; 0 where there is none that may be shown:
// control characters, overlong forms.
std::size_t shown_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = at(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) return 0;
  }
  const bool control = first == 0xC2 && at(1) < 0xA0;  // U+0080 to U+009F
  const bool overlong = (first == 0xE0 && at(1) < 0xA0) || (first == 0xF0 && at(1) < 0x90);
  const bool no_character = (first == 0xED && at(1) > 0x9F) || (first == 0xF4 && at(1) > 0x8F);
  return control || overlong || no_character ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    const std::size_t bytes = shown_bytes(text);
    if (bytes > 0) {
      shown += text.substr(0, bytes);
    } else if (text.front() == '\n') {
      shown += "\\n";
    } else {
      const auto byte = static_cast<unsigned char>(text.front());
      (shown += "\\x").append({kDigits[byte >> 4U], kDigits[byte & 15U]});
    }
    text.remove_prefix(bytes > 0 ? bytes : 1);
  }
  return shown;
}

}  // namespace fulmen
