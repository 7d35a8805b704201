#include "score/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "score/apply.h"

namespace fulmen::score {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(),
                  kMost = std::numeric_limits<int32_t>::max();
// Elements of a tensor that are looked at for one block: more than a block's rows and keys, far
// fewer than its pairs.
constexpr int64_t kMostElements = 1024;

Bounds exactly(int64_t value) { return {.least = value, .most = value}; }
Bounds any_integer() { return {.least = kLeast, .most = kMost}; }
Bounds any_boolean() { return {.least = 0, .most = 1}; }
Bounds any_real() { return {.least_real = -HUGE_VAL, .most_real = HUGE_VAL, .maybe_nan = true}; }
Bounds truth(bool maybe_false, bool maybe_true) {
  return {.least = maybe_false ? 0 : 1, .most = maybe_true ? 1 : 0};
}
bool is_exact(const Bounds& x) { return x.least == x.most; }

// What does not wrap keeps its bounds.
Bounds integers(int64_t least, int64_t most) {
  if (least < kLeast || most > kMost) return any_integer();
  return {.least = least, .most = most};
}

// a q + c k + d over the block: its extremes are at corners.
Bounds linear_form(int64_t by_query, int64_t by_key, int64_t offset, const Block& block) {
  constexpr int64_t kMostFactor = int64_t{1} << 30;
  if (std::abs(by_query) > kMostFactor || std::abs(by_key) > kMostFactor ||
      std::abs(offset) > int64_t{1} << 32)
    return any_integer();
  const int64_t q0 = by_query * block.query_first, q1 = by_query * block.query_last,
                k0 = by_key * block.key_first, k1 = by_key * block.key_last;
  Bounds bounds = integers(std::min(q0, q1) + std::min(k0, k1) + offset,
                           std::max(q0, q1) + std::max(k0, k1) + offset);
  bounds.linear = bounds.least > kLeast || bounds.most < kMost;
  bounds.by_query = by_query;
  bounds.by_key = by_key;
  bounds.offset = offset;
  return bounds;
}

Bounds sum(const Bounds& x, const Bounds& y, int64_t sign, const Block& block) {
  if (x.linear && y.linear) {
    return linear_form(x.by_query + sign * y.by_query, x.by_key + sign * y.by_key,
                       x.offset + sign * y.offset, block);
  }
  return sign > 0 ? integers(x.least + y.least, x.most + y.most)
                  : integers(x.least - y.most, x.most - y.least);
}

Bounds product(const Bounds& x, const Bounds& y, const Block& block) {
  if (x.linear && is_exact(y))
    return linear_form(x.by_query * y.least, x.by_key * y.least, x.offset * y.least, block);
  if (y.linear && is_exact(x)) return product(y, x, block);
  const int64_t corners[] = {x.least * y.least, x.least * y.most, x.most * y.least,
                             x.most * y.most};
  return integers(*std::min_element(std::begin(corners), std::end(corners)),
                  *std::max_element(std::begin(corners), std::end(corners)));
}

// The difference x - y without wrapping, as comparisons see it.
struct Difference {
  int64_t least, most;
};
Difference difference(const Bounds& x, const Bounds& y, const Block& block) {
  if (x.linear && y.linear) {
    const int64_t a = x.by_query - y.by_query, c = x.by_key - y.by_key, d = x.offset - y.offset;
    const int64_t q0 = a * block.query_first, q1 = a * block.query_last, k0 = c * block.key_first,
                  k1 = c * block.key_last;
    return {std::min(q0, q1) + std::min(k0, k1) + d, std::max(q0, q1) + std::max(k0, k1) + d};
  }
  return {x.least - y.most, x.most - y.least};
}

Bounds divided(const Bounds& x, const Bounds& y) {
  if (!is_exact(y) || y.least == 0) return y.least == 0 && y.most == 0 ? exactly(0) : any_integer();
  const auto by = static_cast<int32_t>(y.least);
  if (by == -1) return integers(-x.most, -x.least);
  const int64_t a = floor_divide(static_cast<int32_t>(x.least), by),
                b = floor_divide(static_cast<int32_t>(x.most), by);
  return {.least = std::min(a, b), .most = std::max(a, b)};
}

Bounds remainder(const Bounds& x, const Bounds& y) {
  if (!is_exact(y) || y.least == 0) return y.least == 0 && y.most == 0 ? exactly(0) : any_integer();
  const auto by = static_cast<int32_t>(y.least);
  if (by == -1) return exactly(0);
  const auto low = static_cast<int32_t>(x.least), high = static_cast<int32_t>(x.most);
  if (floor_divide(low, by) == floor_divide(high, by))
    return {.least = modulo(low, by), .most = modulo(high, by)};
  return by > 0 ? Bounds{.least = 0, .most = int64_t{by} - 1}
                : Bounds{.least = int64_t{by} + 1, .most = 0};
}

Bounds bits(Op op, const Bounds& x, const Bounds& y, bool boolean) {
  if (is_exact(x) && is_exact(y)) {
    const Value a{0, static_cast<int32_t>(x.least)}, b{0, static_cast<int32_t>(y.least)};
    return exactly(apply(op, a, b, Value{}).integer);
  }
  if (boolean) {
    if (op == Op::bit_and) return {.least = x.least & y.least, .most = x.most & y.most};
    if (op == Op::bit_or) return {.least = x.least | y.least, .most = x.most | y.most};
    return any_boolean();
  }
  if (x.least >= 0 && y.least >= 0) {
    if (op == Op::bit_and) return {.least = 0, .most = std::min(x.most, y.most)};
    int64_t above = 1;
    while (above <= std::max(x.most, y.most)) above *= 2;
    return {.least = 0, .most = above - 1};
  }
  return any_integer();
}

Bounds shifted(Op op, const Bounds& x, const Bounds& y) {
  if (!is_exact(y)) return any_integer();
  const int64_t count = y.least & 31;
  if (op == Op::shift_right) return {.least = x.least >> count, .most = x.most >> count};
  const int64_t factor = int64_t{1} << count;
  return integers(x.least * factor, x.most * factor);
}

// Floats in fp32: roundings are monotonic, so those of the ends are the ends. What may give NaN is
// left to the pairs.
float to_fp32(double x) { return static_cast<float>(x); }
Bounds reals(double least, double most) {
  if (!(least <= most)) return any_real();
  return {.least_real = least, .most_real = most};
}
Bounds real_operation(Op op, const Bounds& x, const Bounds& y) {
  if (x.maybe_nan || y.maybe_nan || !std::isfinite(x.least_real) || !std::isfinite(x.most_real) ||
      !std::isfinite(y.least_real) || !std::isfinite(y.most_real))
    return any_real();
  const float a = to_fp32(x.least_real), b = to_fp32(x.most_real), c = to_fp32(y.least_real),
              d = to_fp32(y.most_real);
  switch (op) {
    case Op::negate:
      return reals(-x.most_real, -x.least_real);
    case Op::abs:
      return reals(a > 0 ? a : b < 0 ? -b : 0, std::fmax(std::fabs(a), std::fabs(b)));
    case Op::floor:
      return reals(std::floor(a), std::floor(b));
    case Op::ceil:
      return reals(std::ceil(a), std::ceil(b));
    case Op::round:
      return reals(std::nearbyint(a), std::nearbyint(b));
    case Op::trunc:
      return reals(std::trunc(a), std::trunc(b));
    case Op::add:
      return reals(a + c, b + d);
    case Op::subtract:
      return reals(a - d, b - c);
    case Op::multiply: {
      const float corners[] = {a * c, a * d, b * c, b * d};
      return reals(*std::min_element(std::begin(corners), std::end(corners)),
                   *std::max_element(std::begin(corners), std::end(corners)));
    }
    case Op::min:
      return reals(std::fmin(a, c), std::fmin(b, d));
    case Op::max:
      return reals(std::fmax(a, c), std::fmax(b, d));
    default:
      return any_real();
  }
}

Bounds compared_reals(Op op, const Bounds& x, const Bounds& y) {
  const bool nan = x.maybe_nan || y.maybe_nan;
  const bool apart = x.most_real < y.least_real || y.most_real < x.least_real;
  const bool same =
      x.least_real == x.most_real && y.least_real == y.most_real && x.least_real == y.least_real;
  switch (op) {
    case Op::less:
      return truth(nan || !(x.most_real < y.least_real), x.least_real < y.most_real);
    case Op::less_equal:
      return truth(nan || !(x.most_real <= y.least_real), x.least_real <= y.most_real);
    case Op::equal:
      return truth(nan || !same, !apart);
    default:
      return truth(!apart && !nan ? true : !apart, nan || !same);
  }
}

Bounds compared(Op op, const Bounds& x, const Bounds& y, const Block& block) {
  const auto [least, most] = difference(x, y, block);
  switch (op) {
    case Op::int_less:
      return truth(most >= 0, least < 0);
    case Op::int_less_equal:
      return truth(most > 0, least <= 0);
    case Op::int_equal:
      return truth(least != 0 || most != 0, least <= 0 && most >= 0);
    default:
      return truth(least <= 0 && most >= 0, least != 0 || most != 0);
  }
}

Bounds of_constant(const Node& node, const Block& block) {
  if (node.type == Type::real) {
    const double value = to_fp32(node.constant.real);
    return value == value ? reals(value, value) : any_real();
  }
  return node.type == Type::integer ? linear_form(0, 0, node.constant.integer, block)
                                    : exactly(node.constant.integer);
}

// Both values' bounds together.
Bounds either(const Bounds& x, const Bounds& y) {
  return {.least = std::min(x.least, y.least),
          .most = std::max(x.most, y.most),
          .least_real = std::min(x.least_real, y.least_real),
          .most_real = std::max(x.most_real, y.most_real),
          .maybe_nan = x.maybe_nan || y.maybe_nan};
}

Bounds to_integer(const Bounds& x) {
  if (x.maybe_nan) return any_integer();
  return {.least = truncate(x.least_real), .most = truncate(x.most_real)};
}

}  // namespace

Bounds Intervals::of_load(const Node& node, std::size_t id) {
  const Elements& tensor = tensors_[node.tensor];
  Found looked;
  bool outside = false;
  int64_t count = 1;
  uint64_t hash = id;
  for (int d = 0; d < tensor.dims; ++d) {
    const Bounds& index = at(node.args[d]);
    outside |= index.least < 0 || index.most >= tensor.shape[d];
    const int64_t first = std::max<int64_t>(index.least, 0),
                  last = std::min<int64_t>(index.most, tensor.shape[d] - 1);
    looked.range[2 * d] = first;
    looked.range[2 * d + 1] = last;
    count = first > last ? 0 : std::min(count * (last - first + 1), kMostElements + 1);
    hash =
        (hash ^ static_cast<uint64_t>(first)) * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(last);
  }
  const bool real = node.type == Type::real;
  if (count == 0) return real ? reals(0, 0) : exactly(0);
  if (count > kMostElements)
    return real ? any_real() : node.type == Type::boolean ? any_boolean() : any_integer();
  Bounds bounds;
  looked.load = static_cast<int64_t>(id);
  Found& place = found_[(hash ^ hash >> 32) % kFound];
  if (place.load == looked.load && place.range == looked.range) {
    bounds = place.bounds;
  } else {
    int32_t indices[kMaxArguments] = {};
    for (int d = 0; d < tensor.dims; ++d) indices[d] = static_cast<int32_t>(looked.range[2 * d]);
    // Few numbers, not whole Bounds, from one element to the next: this is all that a call does
    // for each element.
    Bounds ints{.least = kMost, .most = kLeast};
    float least = HUGE_VALF, most = -HUGE_VALF;
    bool nan = false;
    for (int64_t i = 0; i < count; ++i) {
      const BasicValue<float> value = element_at<float>(tensor, indices);
      ints.least = std::min<int64_t>(ints.least, value.integer);
      ints.most = std::max<int64_t>(ints.most, value.integer);
      least = std::min(least, value.real);
      most = std::max(most, value.real);
      nan = nan || std::isnan(value.real);
      for (int d = tensor.dims - 1; d >= 0; --d) {
        if (++indices[d] <= looked.range[2 * d + 1]) break;
        indices[d] = static_cast<int32_t>(looked.range[2 * d]);
      }
    }
    bounds = !real ? ints : nan ? any_real() : reals(least, most);
    looked.bounds = bounds;
    place = looked;
  }
  return outside ? either(bounds, real ? reals(0, 0) : exactly(0)) : bounds;
}

Bounds Intervals::bounds(const Node& node, std::size_t id, const Block& block) {
  const Bounds none;
  const auto argument = [&](int a) -> const Bounds& {
    return a < node.arguments ? at(node.args[a]) : none;
  };
  const Bounds &x = argument(0), &y = argument(1);
  switch (node.op) {
    case Op::constant:
      return of_constant(node, block);
    case Op::batch:
      return linear_form(0, 0, block.batch, block);
    case Op::head:
      return linear_form(0, 0, block.head, block);
    case Op::query:
      return linear_form(1, 0, 0, block);
    case Op::key:
      return linear_form(0, 1, 0, block);
    case Op::load:
      return of_load(node, id);
    case Op::int_negate:
      return sum(linear_form(0, 0, 0, block), x, -1, block);
    case Op::int_abs:
      return x.least >= 0  ? x
             : x.most <= 0 ? integers(-x.most, -x.least)
                           : integers(0, std::max(-x.least, x.most));
    case Op::int_invert:
      return {.least = ~x.most, .most = ~x.least};
    case Op::int_add:
      return sum(x, y, 1, block);
    case Op::int_subtract:
      return sum(x, y, -1, block);
    case Op::int_multiply:
      return product(x, y, block);
    case Op::floor_divide:
      return divided(x, y);
    case Op::modulo:
      return remainder(x, y);
    case Op::shift_left:
    case Op::shift_right:
      return shifted(node.op, x, y);
    case Op::int_min:
      return {.least = std::min(x.least, y.least), .most = std::min(x.most, y.most)};
    case Op::int_max:
      return {.least = std::max(x.least, y.least), .most = std::max(x.most, y.most)};
    case Op::bit_and:
    case Op::bit_xor:
    case Op::bit_or:
      return bits(node.op, x, y, node.type == Type::boolean);
    case Op::int_less:
    case Op::int_less_equal:
    case Op::int_equal:
    case Op::int_not_equal:
      return compared(node.op, x, y, block);
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::not_equal:
      return compared_reals(node.op, x, y);
    case Op::logical_not:
      return {.least = 1 - x.most, .most = 1 - x.least};
    case Op::is_nan:
      return truth(true, x.maybe_nan);
    case Op::select:
      if (is_exact(x)) return x.least != 0 ? y : argument(2);
      return either(y, argument(2));
    case Op::int_to_real:
      return reals(to_fp32(static_cast<double>(x.least)), to_fp32(static_cast<double>(x.most)));
    case Op::real_to_int:
      return to_integer(x);
    case Op::bool_to_int:
      return {.least = x.least, .most = x.most};
    default:
      return real_operation(node.op, x, y);
  }
}

Verdict Intervals::of(const Block& block) {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
    bounds_[i] = bounds(graph_.nodes[i], i, block);
  const Bounds& value = at(graph_.results.front());
  return value.least == 1 ? Verdict::all : value.most == 0 ? Verdict::none : Verdict::some;
}

}  // namespace fulmen::score
