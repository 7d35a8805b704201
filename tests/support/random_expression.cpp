#include "support/random_expression.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

namespace fulmen::testing {
namespace {

int32_t wrapped(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }

// Python's: the quotient is rounded down, the rest has the divisor's sign.
int32_t python_quotient(int64_t a, int64_t b) {
  return b == 0 ? 0 : wrapped(static_cast<int64_t>(std::floor(static_cast<long double>(a) / b)));
}
int32_t python_rest(int64_t a, int64_t b) {
  return b == 0
             ? 0
             : wrapped(a - b * static_cast<int64_t>(std::floor(static_cast<long double>(a) / b)));
}

int32_t to_int(double x) {
  if (std::isnan(x)) return 0;
  if (x >= std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
  if (x <= std::numeric_limits<int32_t>::min()) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(x);
}

// 0 while functions return what they compute.
thread_local uint64_t rounding_seed = 0;
thread_local bool divided_by_zero = false;

double rounded(double x) {
  if (rounding_seed == 0) return x;
  rounding_seed = rounding_seed * 6364136223846793005U + 1442695040888963407U;
  const double share = static_cast<double>(rounding_seed >> 11) * 0x1p-52 - 1;
  return x * (1 + share * 0x1p-44);
}

}  // namespace

std::optional<double> with_other_roundings(const Expression<double>& expression, const Pair& pair,
                                           uint64_t seed) {
  divided_by_zero = false;
  rounding_seed = 2 * seed + 1;
  const double value = expression.value(pair);
  rounding_seed = 0;
  if (divided_by_zero) return std::nullopt;
  return value;
}

Tables::Tables(Random& random) {
  for (auto& row : table) {
    for (float& value : row) value = random.normal();
  }
  for (int32_t& number : numbers) number = static_cast<int32_t>(random.between(-3, 20));
}

Expression<double> RandomExpressions::real(int depth) {
  if (depth <= 0) {
    switch (random_.between(0, 3)) {
      case 0:
        if (!with_score) return {"1.0", [](const Pair&) { return 1.0; }};
        return {"score", [](const Pair& p) { return p.score; }};
      case 1: {
        const float value = 0.25F * static_cast<float>(random_.between(-8, 8));
        // Negative ones in parentheses: a number has no sign.
        return {value < 0 ? fmt::format("({:.2f})", value) : fmt::format("{:.2f}", value),
                [value](const Pair&) { return value; }};
      }
      case 2: {
        const Expression<int32_t> index = integer(0);
        const auto* table = &tables_.table;
        return {fmt::format("table[h, {}]", index.text), [index, table](const Pair& p) {
                  const int32_t i = index.value(p);
                  return p.h < 5 && i >= 0 && i < 7 ? (*table)[p.h][i] : 0.0F;
                }};
      }
      default:
        return {"(0.125 * (q - k))",
                [](const Pair& p) { return 0.125 * static_cast<double>(p.q - p.k); }};
    }
  }
  const Expression<double> x = real(depth - 1), y = real(depth - 1);
  using F = std::function<double(double, double)>;
  const auto two = [&](const char* form, F f) {
    return Expression<double>{fmt::format(fmt::runtime(form), x.text, y.text),
                              [x, y, f](const Pair& p) { return f(x.value(p), y.value(p)); }};
  };
  switch (random_.between(0, smooth_ ? 11 : 20)) {
    case 0:
      return two("({} + {})", [](double a, double b) { return a + b; });
    case 1:
      return two("({} - {})", [](double a, double b) { return a - b; });
    case 2:
      return two("({} * {})", [](double a, double b) { return a * b; });
    case 3:
      return two("tanh({0})", [](double a, double) { return rounded(std::tanh(a)); });
    case 4:
      return two("(sigmoid({0}) * {1})",
                 [](double a, double b) { return b * rounded(1 / (1 + std::exp(-a))); });
    case 5:
      return two("(-{0})", [](double a, double) { return -a; });
    case 6:
      return two("({} / (1.5 + cos({})))",
                 [](double a, double b) { return rounded(a / (1.5 + std::cos(b))); });
    case 7:
      return two("sin({0})", [](double a, double) { return rounded(std::sin(a)); });
    case 8:
      return two("erf({0})", [](double a, double) { return rounded(std::erf(a)); });
    case 9:
      return two("log(1.0 + exp2(tanh({0})))",
                 [](double a, double) { return rounded(std::log(1 + std::exp2(std::tanh(a)))); });
    case 10:
      return two("(sqrt(2.0 + sin({0})) * rsqrt(2.0 + cos({1})))", [](double a, double b) {
        return rounded(std::sqrt(2 + std::sin(a)) / std::sqrt(2 + std::cos(b)));
      });
    case 11:
      return two("pow(2.0 + tanh({0}), sin({1}))", [](double a, double b) {
        return rounded(std::pow(2 + std::tanh(a), std::sin(b)));
      });
    case 12:
      return two("max({}, {})", [](double a, double b) {
        return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b);
      });
    case 13:
      return two("min({}, {})", [](double a, double b) {
        return std::isnan(a) || std::isnan(b) ? NAN : std::fmin(a, b);
      });
    case 14:
      return two("({} / {})", [](double a, double b) {
        divided_by_zero = divided_by_zero || b == 0;
        return rounded(a / b);
      });
    case 15:
      return two("abs({0})", [](double a, double) { return std::abs(a); });
    case 16:
      return two("floor({0})", [](double a, double) { return std::floor(a); });
    case 17:
      return two("(round({0}) + trunc({1}) + ceil({0}))", [](double a, double b) {
        return std::nearbyint(a) + std::trunc(b) + std::ceil(a);
      });
    case 18:
      return two("(exp(-abs({0})) + log2({1}))", [](double a, double b) {
        return rounded(std::exp(-std::abs(a))) + rounded(std::log2(b));
      });
    case 19: {
      const Expression<int32_t> i = integer(depth - 1);
      return {fmt::format("float({})", i.text),
              [i](const Pair& p) { return static_cast<double>(i.value(p)); }};
    }
    default: {
      const Expression<bool> c = boolean(depth - 1);
      return {fmt::format("select({}, {}, {})", c.text, x.text, y.text),
              [c, x, y](const Pair& p) { return c.value(p) ? x.value(p) : y.value(p); }};
    }
  }
}

Expression<int32_t> RandomExpressions::integer(int depth) {
  if (depth <= 0) {
    switch (random_.between(0, 5)) {
      case 0:
        return {"b", [](const Pair& p) { return static_cast<int32_t>(p.b); }};
      case 1:
        return {"h", [](const Pair& p) { return static_cast<int32_t>(p.h); }};
      case 2:
        return {"q", [](const Pair& p) { return static_cast<int32_t>(p.q); }};
      case 3:
        return {"k", [](const Pair& p) { return static_cast<int32_t>(p.k); }};
      default: {
        const auto value = static_cast<int32_t>(random_.between(0, 40));
        return {fmt::format("{}", value), [value](const Pair&) { return value; }};
      }
    }
  }
  const Expression<int32_t> x = integer(depth - 1), y = integer(depth - 1);
  using F = std::function<int32_t(int64_t, int64_t)>;
  const auto two = [&](const char* form, F f) {
    return Expression<int32_t>{fmt::format(fmt::runtime(form), x.text, y.text),
                               [x, y, f](const Pair& p) { return f(x.value(p), y.value(p)); }};
  };
  switch (random_.between(0, 14)) {
    case 0:
      return two("({} + {})", [](int64_t a, int64_t b) { return wrapped(a + b); });
    case 1:
      return two("({} - {})", [](int64_t a, int64_t b) { return wrapped(a - b); });
    case 2:
      return two("({} * {})", [](int64_t a, int64_t b) { return wrapped(a * b); });
    case 3:
      return two("({} // {})", python_quotient);
    case 4:
      return two("({} % {})", python_rest);
    case 5:
      return two("min({}, {})", [](int64_t a, int64_t b) { return wrapped(a < b ? a : b); });
    case 6:
      return two("max({}, {})", [](int64_t a, int64_t b) { return wrapped(a < b ? b : a); });
    case 7:
      return two("abs(-{0})",
                 [](int64_t a, int64_t) { return wrapped(std::abs(int64_t{wrapped(-a)})); });
    case 8:
      return two("({} << {})", [](int64_t a, int64_t b) { return wrapped(a << (b & 31)); });
    case 9:
      return two("({} >> {})", [](int64_t a, int64_t b) { return wrapped(a >> (b & 31)); });
    case 10:
      return two("({} & {})", [](int64_t a, int64_t b) { return wrapped(a & b); });
    case 11:
      return two("({} | ~{})", [](int64_t a, int64_t b) { return wrapped(a | ~b); });
    case 12:
      return two("({} ^ {})", [](int64_t a, int64_t b) { return wrapped(a ^ b); });
    case 13: {
      const auto* numbers = &tables_.numbers;
      return {fmt::format("numbers[{}]", x.text), [x, numbers](const Pair& p) {
                const int32_t i = x.value(p);
                return i >= 0 && i < 16 ? (*numbers)[i] : 0;
              }};
    }
    default: {
      const bool with = std::exchange(with_score, false);
      const Expression<double> r = real(0);
      with_score = with;
      return {fmt::format("int({} * 3.0)", r.text),
              [r](const Pair& p) { return to_int(r.value(p) * 3); }};
    }
  }
}

Expression<bool> RandomExpressions::boolean(int depth) {
  if (depth > 1 && random_.chance(0.5)) {
    const Expression<bool> x = boolean(depth - 1), y = boolean(depth - 1);
    switch (random_.between(0, 4)) {
      case 0:
        return {fmt::format("({} && {})", x.text, y.text),
                [x, y](const Pair& p) { return x.value(p) && y.value(p); }};
      case 1:
        return {fmt::format("({} | {})", x.text, y.text),
                [x, y](const Pair& p) { return x.value(p) || y.value(p); }};
      case 2:
        return {fmt::format("({} ^ {})", x.text, y.text),
                [x, y](const Pair& p) { return x.value(p) != y.value(p); }};
      case 3:
        return {fmt::format("({} == {})", x.text, y.text),
                [x, y](const Pair& p) { return x.value(p) == y.value(p); }};
      default:
        return {fmt::format("!({})", x.text), [x](const Pair& p) { return !x.value(p); }};
    }
  }
  if (random_.chance(0.3)) {
    const bool with = std::exchange(with_score, false);
    const Expression<double> x = real(0), y = real(0);
    with_score = with;
    if (random_.chance(0.5))
      return {fmt::format("({} < {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) < y.value(p); }};
    return {fmt::format("isnan({} / {})", x.text, y.text),
            [x, y](const Pair& p) { return std::isnan(x.value(p) / y.value(p)); }};
  }
  const Expression<int32_t> x = integer(depth - 1), y = integer(depth - 1);
  switch (random_.between(0, 5)) {
    case 0:
      return {fmt::format("({} < {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) < y.value(p); }};
    case 1:
      return {fmt::format("({} <= {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) <= y.value(p); }};
    case 2:
      return {fmt::format("({} > {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) > y.value(p); }};
    case 3:
      return {fmt::format("({} >= {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) >= y.value(p); }};
    case 4:
      return {fmt::format("({} == {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) == y.value(p); }};
    default:
      return {fmt::format("({} != {})", x.text, y.text),
              [x, y](const Pair& p) { return x.value(p) != y.value(p); }};
  }
}

}  // namespace fulmen::testing
