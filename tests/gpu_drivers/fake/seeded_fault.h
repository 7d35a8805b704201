// The fault that a fake compiler puts into some kernels for a test.
#pragma once

#include <cstdlib>
#include <string>

namespace fulmen::fake {

// $FULMEN_FAKE_COMPILER is "<fault> <text>": the fault of sources that have the text, "" of others.
inline std::string seeded_fault(const std::string& source) {
  const char* const variable = std::getenv("FULMEN_FAKE_COMPILER");
  const std::string all = variable == nullptr ? "" : variable;
  const std::size_t space = all.find(' ');
  return space != std::string::npos && source.find(all.substr(space + 1)) != std::string::npos
             ? all.substr(0, space)
             : "";
}

}  // namespace fulmen::fake
