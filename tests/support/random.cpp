#include "support/random.h"

#include <cstdlib>
#include <string_view>

namespace fulmen::testing {

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("FULMEN_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 0) : uint64_t{std::random_device{}()};
  }();
  return seed;
}

namespace {

bool is_one(const char* variable) {
  const char* given = std::getenv(variable);
  return given != nullptr && std::string_view(given) == "1";
}

}  // namespace

bool long_run() { return is_one("FULMEN_TEST_LONG"); }
bool sampled_run() { return is_one("FULMEN_TEST_SAMPLED") && !long_run(); }

}  // namespace fulmen::testing
