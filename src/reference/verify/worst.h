// What the tolerance rule of docs/contract.md looks for, and how a breach is told.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace fulmen::reference {

constexpr double kAbsolute = 1e-5;

struct Worst {
  double error = -1;    // infinity where a NaN or infinity is wrong
  double slack = 0;     // what is added to 2 P, or to rounding
  double rounding = 0;  // R of docs/contract.md: what roundings may do to the element
  std::array<int64_t, 4> index{};
  double value = 0;
  double expected = 0;
};

// R where it is a number: beside NaN and infinities there is nothing to round.
inline double finite_or_zero(double x) noexcept { return std::isfinite(x) ? x : 0; }

// |value - expected|, 0 where both are NaN or the same infinity, infinity where only one is.
inline double error_of(double value, double expected) noexcept {
  if (std::isnan(value) || std::isnan(expected))
    return std::isnan(value) && std::isnan(expected) ? 0 : HUGE_VAL;
  return value == expected ? 0 : std::fabs(value - expected);
}

inline double mean_of(double sum, int64_t count) noexcept {
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

inline std::string describe(const char* tensor, const char* order, const Worst& worst, double bound,
                            std::string_view rule) {
  const auto& at = worst.index;
  return fmt::format(
      "{}[{}] = [{}, {}, {}, {}]: value {:.9g}, expected {:.9g}, error {:.3g} exceeds {:.3g} ({})",
      tensor, order, at[0], at[1], at[2], at[3], worst.value, worst.expected, worst.error, bound,
      rule);
}

}  // namespace fulmen::reference
