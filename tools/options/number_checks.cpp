#include "tools/options/number_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

namespace fulmen::tools {
namespace {

// Returns NaN where the text is no number.
double number_in(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::nan("") : value;
}

}  // namespace

CLI::Validator whole_number(uint64_t least, uint64_t most) {
  const auto check = [least, most](std::string& text) -> std::string {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least &&
        value <= most) {
      text = std::to_string(value);
      return {};
    }
    return fmt::format("'{}' is given, a whole number from {} to {} is accepted", text, least,
                       most);
  };
  return {check, ""};
}

CLI::Validator finite_number() {
  const auto check = [](std::string& text) -> std::string {
    const double value = number_in(text);
    const auto stored = static_cast<float>(value);
    if (!std::isfinite(stored))
      return fmt::format("'{}' is given, a finite number of fp32 is accepted", text);
    if (value != 0 && stored == 0) return fmt::format("'{}' is given, which is 0 in fp32", text);
    return {};
  };
  return {check, ""};
}

CLI::Validator amount(bool zero_is_accepted) {
  const auto check = [zero_is_accepted](std::string& text) -> std::string {
    constexpr double kMost = 1e9;
    const double value = number_in(text);
    if ((value > 0 || (zero_is_accepted && value == 0)) && value <= kMost) return {};
    return fmt::format("'{}' is given, a number {} 0, up to {:g}, is accepted", text,
                       zero_is_accepted ? "from" : "above", kMost);
  };
  return {check, ""};
}

}  // namespace fulmen::tools
