// The expressions of score functions as nodes of a graph: data alone, without the text.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace fulmen::score {

enum class Type : uint8_t { boolean, integer, real };
const char* to_string(Type type) noexcept;  // "bool", "int", "float"

// What a node computes of its arguments. Booleans are ints that are 0 or 1.
enum class Op : uint8_t {
  constant,
  score,
  batch,
  head,
  query,
  key,
  load,  // a tensor's element; the arguments are its indices
  // float -> float
  negate,
  abs,
  exp,
  exp2,
  log,
  log2,
  tanh,
  sqrt,
  rsqrt,
  sigmoid,
  sin,
  cos,
  erf,
  floor,
  ceil,
  round,
  trunc,
  // float, float -> float
  add,
  subtract,
  multiply,
  divide,
  min,
  max,
  power,
  // float, float -> bool
  less,
  less_equal,
  equal,
  not_equal,
  // int -> int
  int_negate,
  int_abs,
  int_invert,
  // int, int -> int
  int_add,
  int_subtract,
  int_multiply,
  floor_divide,
  modulo,
  shift_left,
  shift_right,
  int_min,
  int_max,
  // ints or bools, the result has their type
  bit_and,
  bit_xor,
  bit_or,
  // int, int -> bool
  int_less,
  int_less_equal,
  int_equal,
  int_not_equal,
  logical_not,  // bool -> bool
  is_nan,       // float -> bool
  select,       // bool, x, x -> x
  int_to_real,  // of bools, too
  real_to_int,
  bool_to_int,
};
constexpr int kOps = static_cast<int>(Op::bool_to_int) + 1;
const char* to_string(Op op) noexcept;

constexpr int kMaxArguments = 4;  // of a load: a tensor's dims

// A value of any type: an int or a bool in `integer`, a float in `real`.
template <class Real>
struct BasicValue {
  Real real = 0;
  int32_t integer = 0;
};
using Value = BasicValue<double>;

struct Node {
  Op op = Op::constant;
  Type type = Type::real;
  uint8_t arguments = 0;  // how many of `args` there are
  uint8_t tensor = 0;     // of a load: its place in the list
  std::array<int32_t, kMaxArguments> args{-1, -1, -1, -1};
  Value constant;
};

// Nodes in an order in which arguments come before what reads them, and those whose values are
// wanted.
struct Graph {
  std::vector<Node> nodes;
  std::vector<int32_t> results;
};
// Without nodes that no result needs.
Graph live_part(const Graph& graph);

// Which of b, h (always), q and k a value depends on, and whether on the score.
struct Dependence {
  bool query = false, key = false, score = false;
};
std::vector<Dependence> dependences(const std::vector<Node>& nodes);

// Limits of a function.
constexpr int kMaxText = 64 * 1024;
constexpr int kMaxNodes = 4096;
constexpr int kMaxDepth = 256;
constexpr int kMaxTensors = 32;
// Of a function with its derivatives: no text reaches it that keeps to the limits above.
constexpr int kMaxDerivativeNodes = 32 * kMaxNodes;

}  // namespace fulmen::score
