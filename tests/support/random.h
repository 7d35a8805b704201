// Fresh randomness for every run of a test program, reproducible from the seed that a failure
// prints.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace fulmen::testing {

// $FULMEN_TEST_SEED, or one from the machine's entropy; the same throughout the process.
uint64_t test_seed();

// Whether a stage of ./dev test runs this ($FULMEN_TEST_SAMPLED is 1): each test on chips takes its
// share of them, by the seed. A test that is run by its name takes all.
bool sampled_run();

// Whether `./dev test --long` runs this ($FULMEN_TEST_LONG is 1): whole grids, where a random
// sample of them is taken otherwise.
bool long_run();

// Whether the seed draws the running test, which it does in one run of so many.
bool is_drawn(std::size_t runs);

// Why a stage of ./dev test leaves out the running test, for GTEST_SKIP(): it is not drawn. Empty:
// it is run.
std::string left_to_other_runs(std::size_t runs);

class Random {
 public:
  // stream tells apart the tests, and cases, that share the process's seed.
  explicit Random(uint64_t stream) : engine_(test_seed() + 0x9E3779B97F4A7C15U * (stream + 1)) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  float normal() { return normal_(engine_); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }
  // `count` of them in their order, all in a long run.
  template <class T>
  std::vector<T> sample(const std::vector<T>& values, std::size_t count) {
    if (long_run()) return values;
    std::vector<T> drawn;
    std::sample(values.begin(), values.end(), std::back_inserter(drawn), count, engine_);
    return drawn;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

}  // namespace fulmen::testing
