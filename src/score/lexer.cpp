#include "score/lexer.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace fulmen::score {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Longest first: a symbol of one character begins some of two.
constexpr std::string_view kSymbols[] = {"//", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "!",
                                         "~",  "-",  "*",  "/",  "%",  "+",  "<",  ">",  "&",  "^",
                                         "|",  "(",  ")",  "[",  "]",  ",",  ";",  "="};

}  // namespace

bool Lexer::digit(std::size_t at) const { return at < text_.size() && is_digit(text_[at]); }

void Lexer::advance(std::size_t count) {
  for (; count > 0; --count, ++at_) {
    if (text_[at_] == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
  }
}

void Lexer::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '#') {
      while (at_ < text_.size() && text_[at_] != '\n') advance(1);
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      advance(1);
    } else {
      return;
    }
  }
}

Token Lexer::fail(std::string message) {
  error_ = {std::move(message), line_, column_};
  at_ = text_.size();
  return {TokenKind::end, {}, 0, error_.line, error_.column};
}

Token Lexer::number() {
  std::size_t end = at_;
  bool real = false;
  while (digit(end)) ++end;
  if (end < text_.size() && text_[end] == '.') {
    real = true;
    ++end;
    while (digit(end)) ++end;
  }
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    std::size_t exponent = end + 1;
    if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
    if (digit(exponent)) {
      real = true;
      end = exponent;
      while (digit(end)) ++end;
    }
  }
  if (end < text_.size() && is_letter(text_[end])) {
    return fail(fmt::format("a number ends with the letter '{}': 1, 1.5 and 1e-3 are accepted",
                            text_[end]));
  }
  Token token{real ? TokenKind::real : TokenKind::integer, text_.substr(at_, end - at_), 0, line_,
              column_};
  const char *begin = token.text.data(), *last = begin + token.text.size();
  if (real) {
    // An fp32 number, as the language's floats are.
    float value = 0;
    if (std::from_chars(begin, last, value).ec != std::errc())
      return fail(fmt::format("{} is beyond the range of fp32", token.text));
    token.value = value;
  } else {
    int32_t value = 0;
    if (std::from_chars(begin, last, value).ec != std::errc()) {
      return fail(fmt::format(
          "{} is beyond the range of int: up to 2147483647 is accepted, {}.0 is a float",
          token.text, token.text));
    }
    token.value = value;
  }
  advance(token.text.size());
  return token;
}

Token Lexer::next() {
  skip_space();
  Token token{TokenKind::end, {}, 0, line_, column_};
  if (at_ >= text_.size()) return token;
  const char c = text_[at_];
  if (is_digit(c) || (c == '.' && digit(at_ + 1))) return number();
  if (is_letter(c)) {
    std::size_t end = at_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    token.kind = TokenKind::name;
    token.text = text_.substr(at_, end - at_);
    advance(token.text.size());
    return token;
  }
  for (const std::string_view symbol : kSymbols) {
    if (text_.substr(at_, symbol.size()) != symbol) continue;
    token.kind = TokenKind::symbol;
    token.text = text_.substr(at_, symbol.size());
    advance(symbol.size());
    return token;
  }
  if (c > ' ' && c < 0x7F) return fail(fmt::format("'{}' is no sign of the language", c));
  return fail(
      fmt::format("byte 0x{:02x} is no sign of the language", static_cast<unsigned char>(c)));
}

}  // namespace fulmen::score
