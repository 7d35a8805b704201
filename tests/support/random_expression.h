// Random functions of the language, each with a closure that says what it is worth: an evaluation
// that shares nothing with the library's.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tests/support/random.h"

namespace fulmen::testing {

struct Pair {
  double score = 0;
  int64_t b = 0, h = 0, q = 0, k = 0;
};

// Two tensors that expressions name: floats table[5, 7] and ints numbers[16].
struct Tables {
  float table[5][7];
  int32_t numbers[16];
  explicit Tables(Random& random);
};

template <class T>
struct Expression {
  std::string text;
  std::function<T(const Pair&)> value;
};

// What the expression is worth if functions that round return a neighbour of their value, up to
// 2^-44 of it away: other neighbours for each seed. Far from value(pair), a rounding decides.
// Nothing if there is a quotient by zero, whose sign is not defined.
std::optional<double> with_other_roundings(const Expression<double>& expression, const Pair& pair,
                                           uint64_t seed);

class RandomExpressions {
 public:
  // smooth: floats have derivatives everywhere, and moderate ones.
  RandomExpressions(Random& random, const Tables& tables, bool smooth)
      : random_(random), tables_(tables), smooth_(smooth) {}
  Expression<double> real(int depth);
  Expression<int32_t> integer(int depth);
  Expression<bool> boolean(int depth);
  bool with_score = true;

 private:
  Random& random_;
  const Tables& tables_;
  bool smooth_;
};

}  // namespace fulmen::testing
