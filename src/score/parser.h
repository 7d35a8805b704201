// From a score function's text to its graph.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "score/builder.h"
#include "score/lexer.h"

namespace fulmen::score {

// A tensor that the text may name.
struct Declared {
  std::string name;
  Type type = Type::real;  // of an element as the text sees it
  int dims = 0;
};

enum class FunctionKind : uint8_t { score_mod, mask_mod };

struct Parsed {
  int32_t result = 0;  // in the builder
  TextError error;     // where its message is not empty
};
Parsed parse(std::string_view text, FunctionKind kind, const std::vector<Declared>& tensors,
             Builder& builder);

// What is wrong with a tensor's name, or "".
std::string bad_name(std::string_view name);

}  // namespace fulmen::score
