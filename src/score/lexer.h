// The words of a score function's text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fulmen::score {

enum class TokenKind : uint8_t { end, name, integer, real, symbol };

struct Token {
  TokenKind kind = TokenKind::end;
  std::string_view text;  // of a symbol one of "<<", "//", "(", ...
  double value = 0;       // of a number
  int line = 1, column = 1;
};

// What is wrong with a text, and where; no message: nothing is.
struct TextError {
  std::string message;
  int line = 1, column = 1;
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  // The next word; an end forever after the last one. On an error that is set, an end, too.
  Token next();
  const TextError& error() const { return error_; }

 private:
  void skip_space();
  void advance(std::size_t count);
  Token number();
  Token fail(std::string message);
  bool digit(std::size_t at) const;

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1, column_ = 1;
  TextError error_;
};

}  // namespace fulmen::score
