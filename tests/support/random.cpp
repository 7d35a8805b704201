#include "support/random.h"

#include <cstdlib>

namespace fulmen::testing {

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("FULMEN_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 0) : uint64_t{std::random_device{}()};
  }();
  return seed;
}

}  // namespace fulmen::testing
