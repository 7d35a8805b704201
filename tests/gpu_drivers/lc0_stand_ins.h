// The parts of lc0 that integrations/lc0's FulmenAttention uses. The build gives this file the
// names of lc0's headers.
#pragma once

#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <variant>

namespace lczero {

class Exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Messages that lc0 would print.
inline std::string& log() {
  static std::string text;
  return text;
}
class LogLine : public std::ostringstream {
 public:
  ~LogLine() override { log() += str() + "\n"; }
};

class OptionsDict {
 public:
  std::map<std::string, std::variant<bool, std::string>> values;
  template <class T>
  T GetOrDefault(const std::string& name, const T& otherwise) const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : std::get<T>(found->second);
  }
};

}  // namespace lczero

#define CERR lczero::LogLine()
