#include "tuning/json.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>

namespace fulmen::tuning {
namespace {

constexpr int kMaxDepth = 16;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Json> document() {
    Json value;
    if (read(value, 0)) {
      skip_space();
      if (at_ < text_.size()) fail("nothing more is expected");
    }
    if (!problem_.empty())
      return Status{StatusCode::invalid_argument, fmt::format("byte {}: {}", at_, problem_)};
    return value;
  }

 private:
  bool fail(const char* problem) {
    if (problem_.empty()) problem_ = problem;
    return false;
  }
  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return fail("a value is expected");
    at_ += word.size();
    return true;
  }

  bool read(Json& value, int depth) {
    if (depth > kMaxDepth) return fail("it is nested too deeply");
    skip_space();
    if (at_ >= text_.size()) return fail("the text ends too early");
    switch (text_[at_]) {
      case '{':
        return read_object(value, depth);
      case '[':
        return read_array(value, depth);
      case '"':
        value.kind = Json::Kind::string;
        return read_string(value.string);
      case 't':
      case 'f':
        value.kind = Json::Kind::boolean;
        value.boolean = text_[at_] == 't';
        return take_word(value.boolean ? "true" : "false");
      case 'n':
        return take_word("null");
      default:
        value.kind = Json::Kind::number;
        return read_number(value.number);
    }
  }

  bool read_object(Json& value, int depth) {
    value.kind = Json::Kind::object;
    take('{');
    if (take('}')) return true;
    do {
      Json& member = value.items.emplace_back();
      skip_space();
      if (at_ >= text_.size() || text_[at_] != '"') return fail("a member's name is expected");
      if (!read_string(member.name)) return false;
      if (!take(':')) return fail("':' is expected");
      if (!read(member, depth + 1)) return false;
    } while (take(','));
    return take('}') || fail("',' or '}' is expected");
  }

  bool read_array(Json& value, int depth) {
    value.kind = Json::Kind::array;
    take('[');
    if (take(']')) return true;
    do {
      if (!read(value.items.emplace_back(), depth + 1)) return false;
    } while (take(','));
    return take(']') || fail("',' or ']' is expected");
  }

  bool read_number(double& number) {
    std::size_t end = at_;
    const auto digits = [&] {
      const std::size_t first = end;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      return end > first;
    };
    if (end < text_.size() && text_[end] == '-') ++end;
    const std::size_t whole = end;
    if (!digits()) return fail("a value is expected");
    if (text_[whole] == '0' && end > whole + 1) return fail("a number does not begin with 0");
    if (end < text_.size() && text_[end] == '.') {
      ++end;
      if (!digits()) return fail("a digit is expected after '.'");
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      ++end;
      if (end < text_.size() && (text_[end] == '+' || text_[end] == '-')) ++end;
      if (!digits()) return fail("a digit is expected in the exponent");
    }
    const auto [last, error] = std::from_chars(text_.data() + at_, text_.data() + end, number);
    if (error != std::errc() || last != text_.data() + end || !std::isfinite(number))
      return fail("the number is out of range");
    at_ = end;
    return true;
  }

  bool read_string(std::string& string) {
    ++at_;  // the quote
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
      if (c != '\\') {
        string += c;
        continue;
      }
      if (!read_escape(string)) return false;
    }
    return fail("a string does not end");
  }

  bool read_escape(std::string& string) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return fail("a string does not end");
    const char c = text_[at_++];
    if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
      string += kValues[i];
      return true;
    }
    unsigned code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (c != 'u' || digits.size() < 4 || error != std::errc() || last != digits.data() + 4)
      return fail("no such escape");
    // Nothing that is kept has them.
    if (code >= 0xD800 && code < 0xE000) return fail("surrogates are not read");
    at_ += 4;
    if (code < 0x80) {
      string += static_cast<char>(code);
    } else if (code < 0x800) {
      string += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    } else {
      string += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
                 static_cast<char>(0x80 | (code & 0x3F))};
    }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string problem_;
};

}  // namespace

const Json* Json::find(std::string_view wanted) const {
  if (kind != Kind::object) return nullptr;
  for (const Json& member : items) {
    if (member.name == wanted) return &member;
  }
  return nullptr;
}

Result<Json> parse_json(std::string_view text) { return Reader(text).document(); }

}  // namespace fulmen::tuning
