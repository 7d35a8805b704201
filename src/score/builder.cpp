#include "score/builder.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "score/apply.h"

namespace fulmen::score {
namespace {

bool is_commutative(Op op) {
  switch (op) {
    case Op::add:
    case Op::multiply:
    case Op::equal:
    case Op::not_equal:
    case Op::int_add:
    case Op::int_multiply:
    case Op::int_min:
    case Op::int_max:
    case Op::bit_and:
    case Op::bit_xor:
    case Op::bit_or:
    case Op::int_equal:
    case Op::int_not_equal:
      return true;
    default:
      return false;
  }
}

}  // namespace

Type result_type(Op op, Type x, Type y) noexcept {
  if (op == Op::constant || op == Op::load) return x;
  if (op == Op::score || (op >= Op::negate && op <= Op::power) || op == Op::int_to_real)
    return Type::real;
  if ((op >= Op::batch && op <= Op::key) || (op >= Op::int_negate && op <= Op::int_max) ||
      op == Op::real_to_int || op == Op::bool_to_int)
    return Type::integer;
  if (op >= Op::bit_and && op <= Op::bit_or) return x;
  return op == Op::select ? y : Type::boolean;
}

std::size_t Builder::Hash::operator()(const Node& node) const noexcept {
  uint64_t hash = (static_cast<uint64_t>(node.op) << 16) ^ (uint64_t{node.tensor} << 8) ^
                  static_cast<uint64_t>(node.type);
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15U + (hash >> 29);
  };
  for (const int32_t argument : node.args) mix(static_cast<uint32_t>(argument));
  mix(std::bit_cast<uint64_t>(node.constant.real));
  mix(static_cast<uint32_t>(node.constant.integer));
  return hash;
}

// Constants by their bits: 0 and -0 differ, and a NaN is itself.
bool Builder::Same::operator()(const Node& a, const Node& b) const noexcept {
  return a.op == b.op && a.type == b.type && a.tensor == b.tensor && a.args == b.args &&
         std::bit_cast<uint64_t>(a.constant.real) == std::bit_cast<uint64_t>(b.constant.real) &&
         a.constant.integer == b.constant.integer;
}

int32_t Builder::add(const Node& node) {
  if (const auto found = ids_.find(node); found != ids_.end()) return found->second;
  if (nodes_.size() >= static_cast<std::size_t>(most_)) {
    // The caller sees full(); until then every node is the first one.
    full_ = true;
    return 0;
  }
  const auto id = static_cast<int32_t>(nodes_.size());
  int depth = 0;
  for (int a = 0; a < node.arguments; ++a) depth = std::max(depth, this->depth(node.args[a]));
  nodes_.push_back(node);
  depths_.push_back(depth + 1);
  deepest_ = std::max(deepest_, depth + 1);
  ids_.emplace(node, id);
  return id;
}

int32_t Builder::leaf(Op op) {
  Node node;
  node.op = op;
  node.type = result_type(op, Type::real, Type::real);
  return add(node);
}
int32_t Builder::real(double value) {
  Node node;
  node.constant.real = value;
  return add(node);
}
int32_t Builder::integer(int32_t value) {
  Node node;
  node.type = Type::integer;
  node.constant.integer = value;
  return add(node);
}
int32_t Builder::boolean(bool value) {
  Node node;
  node.type = Type::boolean;
  node.constant.integer = value ? 1 : 0;
  return add(node);
}
int32_t Builder::load(int tensor, Type type, const std::vector<int32_t>& indices) {
  Node node;
  node.op = Op::load;
  node.type = type;
  node.tensor = static_cast<uint8_t>(tensor);
  node.arguments = static_cast<uint8_t>(indices.size());
  std::copy(indices.begin(), indices.end(), node.args.begin());
  return add(node);
}

int32_t Builder::make(Op op, int32_t x, int32_t y, int32_t z) {
  if (full_) return 0;
  if (is_constant(x) && (y < 0 || is_constant(y)) && (z < 0 || is_constant(z))) {
    const Value none, value = apply(op, node(x).constant, y < 0 ? none : node(y).constant,
                                    z < 0 ? none : node(z).constant);
    switch (result_type(op, type(x), y < 0 ? type(x) : type(y))) {
      case Type::real:
        return real(value.real);
      case Type::integer:
        return integer(value.integer);
      case Type::boolean:
        return boolean(value.integer != 0);
    }
  }
  if (is_commutative(op) && x > y) std::swap(x, y);
  if (const int32_t known = simplified(op, x, y, z); known >= 0) return known;
  Node node;
  node.op = op;
  node.type = result_type(op, type(x), y < 0 ? type(x) : type(y));
  node.args = {x, y, z, -1};
  node.arguments = static_cast<uint8_t>(y < 0 ? 1 : z < 0 ? 2 : 3);
  return add(node);
}

bool Builder::is_real(int32_t id, double value) const {
  return is_constant(id) && type(id) == Type::real && node(id).constant.real == value;
}
bool Builder::is_integer(int32_t id, int32_t value) const {
  return is_constant(id) && type(id) != Type::real && node(id).constant.integer == value;
}

// What is equal for all values, NaN and inf included (but for the sign of a zero), or -1.
int32_t Builder::simplified(Op op, int32_t x, int32_t y, int32_t z) {
  switch (op) {
    case Op::negate:
    case Op::int_negate:
    case Op::int_invert:
    case Op::logical_not:
      return node(x).op == op ? node(x).args[0] : -1;
    case Op::add:
      return is_real(x, 0) ? y : is_real(y, 0) ? x : -1;
    case Op::subtract:
      return is_real(y, 0) ? x : is_real(x, 0) ? make(Op::negate, y) : -1;
    case Op::multiply:
      if (is_real(x, -1)) return make(Op::negate, y);
      if (is_real(y, -1)) return make(Op::negate, x);
      return is_real(x, 1) ? y : is_real(y, 1) ? x : -1;
    case Op::divide:
      return is_real(y, 1) ? x : -1;
    case Op::int_add:
      return is_integer(x, 0) ? y : is_integer(y, 0) ? x : -1;
    case Op::int_subtract:
      return is_integer(y, 0) ? x : x == y ? integer(0) : -1;
    case Op::int_multiply:
      if (is_integer(x, 0) || is_integer(y, 0)) return integer(0);
      return is_integer(x, 1) ? y : is_integer(y, 1) ? x : -1;
    case Op::floor_divide:
      return is_integer(y, 1) ? x : -1;
    case Op::bit_and:
      if (x == y) return x;
      if (is_integer(x, 0)) return x;
      if (is_integer(y, 0)) return y;
      if (type(x) != Type::boolean) return -1;
      return is_integer(x, 1) ? y : is_integer(y, 1) ? x : -1;
    case Op::bit_or:
      if (x == y || is_integer(y, 0)) return x;
      if (is_integer(x, 0)) return y;
      if (type(x) != Type::boolean) return -1;
      return is_integer(x, 1) ? x : is_integer(y, 1) ? y : -1;
    case Op::bit_xor:
      return is_integer(y, 0) ? x : is_integer(x, 0) ? y : -1;
    case Op::select:
      if (is_constant(x)) return node(x).constant.integer != 0 ? y : z;
      return y == z ? y : -1;
    default:
      return -1;
  }
}

}  // namespace fulmen::score
