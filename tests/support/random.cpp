#include "support/random.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
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

bool is_drawn(std::size_t runs) {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + test->name();
  // Cases and chips of fp32 are drawn by the seed modulo 2, 3 and 6: not by the same digit.
  return (std::hash<std::string>()(name) + test_seed() / 6) % runs == 0;
}

std::string left_to_other_runs(std::size_t runs) {
  return sampled_run() && !is_drawn(runs) ? "drawn in one run of " + std::to_string(runs) : "";
}

}  // namespace fulmen::testing
