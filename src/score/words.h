// The functions and operators of the language, as tables.
#pragma once

#include <string_view>

#include "score/node.h"

namespace fulmen::score {

// What an operator or a function takes and gives.
enum class Shape : uint8_t {
  reals,       // float, ...: ints convert
  numbers,     // ints where all are, else floats: has an operation of each
  integers,    // int, ...
  bits,        // two ints or two bools
  compares,    // two numbers, or two bools where has_bools: bool
  booleans,    // bool, ...
  conversion,  // the function's name is the type
  choice,      // select
};

struct Operation {
  std::string_view name;
  Shape shape;
  int arguments;
  Op real, integer;  // the second of ints and bools
  int precedence;    // of a binary operator; 0: a function
  bool swapped;      // a > b is b < a
};

inline constexpr Operation kBinary[] = {
    {"*", Shape::numbers, 2, Op::multiply, Op::int_multiply, 10, false},
    {"/", Shape::reals, 2, Op::divide, Op::divide, 10, false},
    {"//", Shape::integers, 2, Op::floor_divide, Op::floor_divide, 10, false},
    {"%", Shape::integers, 2, Op::modulo, Op::modulo, 10, false},
    {"+", Shape::numbers, 2, Op::add, Op::int_add, 9, false},
    {"-", Shape::numbers, 2, Op::subtract, Op::int_subtract, 9, false},
    {"<<", Shape::integers, 2, Op::shift_left, Op::shift_left, 8, false},
    {">>", Shape::integers, 2, Op::shift_right, Op::shift_right, 8, false},
    {"<", Shape::compares, 2, Op::less, Op::int_less, 7, false},
    {"<=", Shape::compares, 2, Op::less_equal, Op::int_less_equal, 7, false},
    {">", Shape::compares, 2, Op::less, Op::int_less, 7, true},
    {">=", Shape::compares, 2, Op::less_equal, Op::int_less_equal, 7, true},
    {"==", Shape::compares, 2, Op::equal, Op::int_equal, 6, false},
    {"!=", Shape::compares, 2, Op::not_equal, Op::int_not_equal, 6, false},
    {"&", Shape::bits, 2, Op::bit_and, Op::bit_and, 5, false},
    {"^", Shape::bits, 2, Op::bit_xor, Op::bit_xor, 4, false},
    {"|", Shape::bits, 2, Op::bit_or, Op::bit_or, 3, false},
    {"&&", Shape::booleans, 2, Op::bit_and, Op::bit_and, 2, false},
    {"||", Shape::booleans, 2, Op::bit_or, Op::bit_or, 1, false},
};

inline constexpr Operation kUnary[] = {
    {"!", Shape::booleans, 1, Op::logical_not, Op::logical_not, 0, false},
    {"~", Shape::bits, 1, Op::int_invert, Op::int_invert, 0, false},
    {"-", Shape::numbers, 1, Op::negate, Op::int_negate, 0, false},
};

inline constexpr Operation kFunctions[] = {
    {"min", Shape::numbers, 2, Op::min, Op::int_min, 0, false},
    {"max", Shape::numbers, 2, Op::max, Op::int_max, 0, false},
    {"abs", Shape::numbers, 1, Op::abs, Op::int_abs, 0, false},
    {"exp", Shape::reals, 1, Op::exp, Op::exp, 0, false},
    {"exp2", Shape::reals, 1, Op::exp2, Op::exp2, 0, false},
    {"log", Shape::reals, 1, Op::log, Op::log, 0, false},
    {"log2", Shape::reals, 1, Op::log2, Op::log2, 0, false},
    {"tanh", Shape::reals, 1, Op::tanh, Op::tanh, 0, false},
    {"sqrt", Shape::reals, 1, Op::sqrt, Op::sqrt, 0, false},
    {"rsqrt", Shape::reals, 1, Op::rsqrt, Op::rsqrt, 0, false},
    {"sigmoid", Shape::reals, 1, Op::sigmoid, Op::sigmoid, 0, false},
    {"sin", Shape::reals, 1, Op::sin, Op::sin, 0, false},
    {"cos", Shape::reals, 1, Op::cos, Op::cos, 0, false},
    {"erf", Shape::reals, 1, Op::erf, Op::erf, 0, false},
    {"floor", Shape::reals, 1, Op::floor, Op::floor, 0, false},
    {"ceil", Shape::reals, 1, Op::ceil, Op::ceil, 0, false},
    {"round", Shape::reals, 1, Op::round, Op::round, 0, false},
    {"trunc", Shape::reals, 1, Op::trunc, Op::trunc, 0, false},
    {"pow", Shape::reals, 2, Op::power, Op::power, 0, false},
    {"isnan", Shape::reals, 1, Op::is_nan, Op::is_nan, 0, false},
    {"select", Shape::choice, 3, Op::select, Op::select, 0, false},
    {"int", Shape::conversion, 1, Op::real_to_int, Op::bool_to_int, 0, false},
    {"float", Shape::conversion, 1, Op::int_to_real, Op::int_to_real, 0, false},
    {"bool", Shape::conversion, 1, Op::not_equal, Op::int_not_equal, 0, false},
};

}  // namespace fulmen::score
