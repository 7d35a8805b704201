// Checks of options' numbers, in words. CLI11's own let too large whole numbers pass as the largest
// one and NaN as a positive number, and print the largest double in full.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace fulmen::tools {

// Accepts decimal digits alone. It is for transform() and removes leading zeros, because CLI11
// would read 010 as 8.
CLI::Validator whole_number(uint64_t least, uint64_t most);
inline CLI::Validator any_uint64() { return whole_number(0, std::numeric_limits<uint64_t>::max()); }
// For an int and an int64_t.
inline CLI::Validator int_from(uint64_t least) {
  return whole_number(least, std::numeric_limits<int>::max());
}
inline CLI::Validator int64_from(uint64_t least) {
  return whole_number(least, std::numeric_limits<int64_t>::max());
}

CLI::Validator finite_number();
// Accepts seconds and gigabytes: above 0 or, where that is allowed, 0.
CLI::Validator amount(bool zero_is_accepted);

}  // namespace fulmen::tools
