// What the readers of both vendors' disassemblies share.
#pragma once

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

namespace fulmen::gpu {

// Takes the first line off the text; false at its end.
inline bool take_line(std::string_view& text, std::string_view& line) {
  if (text.empty()) return false;
  const std::size_t end = std::min(text.find('\n'), text.size());
  line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return true;
}

inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The first word; the rest stays in text.
inline std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  text.remove_prefix(word.size());
  text = trimmed(text);
  return word;
}

inline bool begins_with_any(std::string_view name,
                            std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// m * n * k of the first "<m>x<n>x<k>" in a name, 0 where there is none.
inline long shape_product(std::string_view name) {
  for (std::size_t at = name.find_first_of("0123456789"); at != std::string_view::npos;) {
    long product = 1;
    const char* p = name.data() + at;
    const char* const kEnd = name.data() + name.size();
    for (int dim = 0; dim < 3; ++dim) {
      unsigned short value = 0;
      const auto [next, error] = std::from_chars(p, kEnd, value);
      if (error != std::errc() || (dim < 2 && (next == kEnd || *next != 'x'))) break;
      product *= value;
      p = next + 1;
      if (dim == 2) return product;
    }
    at = name.find_first_not_of("0123456789", at);
    if (at != std::string_view::npos) at = name.find_first_of("0123456789", at);
  }
  return 0;
}

constexpr long kProduct = 16L * 16 * 16;  // what LoopCounts::matrix_products counts

}  // namespace fulmen::gpu
