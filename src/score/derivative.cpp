#include "score/derivative.h"

#include <cstddef>

namespace fulmen::score {
namespace {

class Reverse {
 public:
  explicit Reverse(Builder& builder) : to_(builder) {}

  // What the node's arguments get of what it has itself.
  void pass(const Node& node, int32_t self, int32_t got, std::vector<int32_t>& adjoints) {
    const int32_t x = node.args[0], y = node.args[1];
    const auto give = [&](int32_t argument, int32_t value) {
      int32_t& sum = adjoints[static_cast<std::size_t>(argument)];
      sum = sum < 0 ? value : to_.make(Op::add, sum, value);
    };
    const auto times = [&](int32_t factor) { return product(got, factor); };
    switch (node.op) {
      case Op::negate:
        return give(x, to_.make(Op::negate, got));
      case Op::abs:
        return give(x, times(sign(x)));
      case Op::exp:
        return give(x, times(self));
      case Op::exp2:
        return give(x, times(product(self, to_.real(kLn2))));
      case Op::log:
        return give(x, to_.make(Op::divide, got, x));
      case Op::log2:
        return give(x, to_.make(Op::divide, times(to_.real(1 / kLn2)), x));
      case Op::tanh:
        return give(x, times(one_minus(product(self, self))));
      case Op::sqrt:
        return give(x, to_.make(Op::divide, times(to_.real(0.5)), self));
      case Op::rsqrt:
        return give(x, times(product(to_.real(-0.5), product(self, product(self, self)))));
      case Op::sigmoid:
        return give(x, times(product(self, one_minus(self))));
      case Op::sin:
        return give(x, times(to_.make(Op::cos, x)));
      case Op::cos:
        return give(x, times(to_.make(Op::negate, to_.make(Op::sin, x))));
      case Op::erf:
        return give(x, times(product(to_.real(kTwoByRootPi),
                                     to_.make(Op::exp, to_.make(Op::negate, product(x, x))))));
      case Op::add:
        give(x, got);
        return give(y, got);
      case Op::subtract:
        give(x, got);
        return give(y, to_.make(Op::negate, got));
      case Op::multiply:
        give(x, times(y));
        return give(y, times(x));
      case Op::divide:
        give(x, to_.make(Op::divide, got, y));
        return give(y, to_.make(Op::negate, to_.make(Op::divide, times(self), y)));
      case Op::min:
      case Op::max: {
        const bool min = node.op == Op::min;
        const int32_t first = to_.make(Op::less, min ? x : y, min ? y : x),
                      second = to_.make(Op::less, min ? y : x, min ? x : y);
        give(x, times(share(first, second)));
        return give(y, times(share(second, first)));
      }
      case Op::power:
        return power(x, y, self, got, give);
      case Op::select: {
        const int32_t none = to_.real(0), z = node.args[2];
        give(y, to_.make(Op::select, x, got, none));
        return give(z, to_.make(Op::select, x, none, got));
      }
      // Steps have no derivative, and what is no float has none.
      default:
        return;
    }
  }

 private:
  static constexpr double kLn2 = 0.69314718055994530942, kTwoByRootPi = 1.1283791670955125739;

  int32_t product(int32_t x, int32_t y) { return to_.make(Op::multiply, x, y); }
  int32_t one_minus(int32_t x) { return to_.make(Op::subtract, to_.real(1), x); }
  int32_t sign(int32_t x) {
    const int32_t zero = to_.real(0), below = to_.make(Op::less, x, zero),
                  above = to_.make(Op::less, zero, x);
    return to_.make(Op::select, above, to_.real(1),
                    to_.make(Op::select, below, to_.real(-1), zero));
  }
  // 1 where it is this side that min or max took, 0 where it is the other, else a half.
  int32_t share(int32_t mine, int32_t other) {
    return to_.make(Op::select, mine, to_.real(1),
                    to_.make(Op::select, other, to_.real(0), to_.real(0.5)));
  }
  // d x^y: y x^(y - 1), 0 where y is 0; x^y log(x), 0 where x is 0 and y is not negative.
  template <class Give>
  void power(int32_t x, int32_t y, int32_t self, int32_t got, Give give) {
    const int32_t zero = to_.real(0), less_one = to_.make(Op::subtract, y, to_.real(1)),
                  by_base = product(y, to_.make(Op::power, x, less_one));
    give(x, product(got, to_.make(Op::select, to_.make(Op::equal, y, zero), zero, by_base)));
    if (to_.node(y).op == Op::constant) return;  // nobody reads it
    const int32_t at_zero = to_.make(Op::bit_and, to_.make(Op::equal, x, zero),
                                     to_.make(Op::less_equal, zero, y)),
                  by_exponent = product(self, to_.make(Op::log, x));
    give(y, product(got, to_.make(Op::select, at_zero, zero, by_exponent)));
  }

  Builder& to_;
};

}  // namespace

Derivatives differentiate(Builder& builder, int32_t value, const std::vector<bool>& wanted) {
  const std::size_t count = static_cast<std::size_t>(value) + 1;
  // Whether a node is or reads, as a float, what is differentiated by: others get no adjoint.
  std::vector<char> leads(count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const Node& node = builder.nodes()[i];
    if (node.type != Type::real) continue;
    leads[i] = node.op == Op::score || (node.op == Op::load && wanted[node.tensor]) ? 1 : 0;
    for (int a = 0; a < node.arguments && node.op != Op::load; ++a)
      leads[i] |= leads[static_cast<std::size_t>(node.args[a])];
  }
  std::vector<int32_t> adjoints(count, -1);
  adjoints.back() = builder.real(1);
  Reverse reverse(builder);
  Derivatives derivatives{builder.real(0), {}};
  for (std::size_t i = count; i-- > 0 && !builder.full();) {
    const Node node = builder.nodes()[i];
    if (adjoints[i] < 0 || leads[i] == 0) continue;
    const auto id = static_cast<int32_t>(i);
    if (node.op == Op::score) derivatives.by_score = adjoints[i];
    if (node.op == Op::load) derivatives.loads.push_back({id, adjoints[i]});
    reverse.pass(node, id, adjoints[i], adjoints);
  }
  return derivatives;
}

}  // namespace fulmen::score
