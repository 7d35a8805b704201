#include "score/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "score/words.h"

namespace fulmen::score {
namespace {

// Parentheses, brackets and unary operators inside each other: the parser's own depth.
constexpr int kMaxNesting = kMaxDepth;

struct GivenName {
  std::string_view name;
  Op op;
};
constexpr GivenName kGiven[] = {
    {"score", Op::score}, {"b", Op::batch}, {"h", Op::head}, {"q", Op::query}, {"k", Op::key}};
constexpr std::string_view kConstants[] = {"true", "false", "inf", "nan"};

const Operation* function_of(std::string_view name) {
  for (const Operation& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

bool is_reserved(std::string_view name) {
  const auto same = [&](const auto& one) { return one.name == name; };
  return std::any_of(std::begin(kGiven), std::end(kGiven), same) ||
         std::any_of(std::begin(kFunctions), std::end(kFunctions), same) ||
         std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants);
}

// Recursive descent. After the first error every function returns at once, and what it returns does
// not count.
class Parser {
 public:
  Parser(std::string_view text, FunctionKind kind, const std::vector<Declared>& tensors,
         Builder& builder)
      : lexer_(text), kind_(kind), tensors_(tensors), to_(builder) {
    take();
    take();
  }

  Parsed function() {
    while (ok() && now_.kind == TokenKind::name && ahead_.text == "=") assign();
    if (ok() && now_.kind == TokenKind::end)
      fail(now_, "the last expression, the function's value, is missing");
    int32_t value = expression(1);
    if (ok() && is(";")) take();
    if (ok() && now_.kind != TokenKind::end)
      fail(now_, fmt::format("{} follows the function's value: its end is accepted", words()));
    if (ok()) value = finished(value);
    return {value, std::move(error_)};
  }

 private:
  bool ok() const { return error_.message.empty(); }
  bool is(std::string_view symbol) const {
    return now_.kind == TokenKind::symbol && now_.text == symbol;
  }
  void take() {
    now_ = ahead_;
    ahead_ = lexer_.next();
    if (!lexer_.error().message.empty() && ok()) error_ = lexer_.error();
  }
  std::string words() const {
    return now_.kind == TokenKind::end ? "the end" : fmt::format("'{}'", now_.text);
  }
  int32_t fail(const Token& at, std::string message) {
    if (ok()) error_ = {std::move(message), at.line, at.column};
    return 0;
  }
  bool expect(std::string_view symbol) {
    if (!ok()) return false;
    if (!is(symbol)) {
      fail(now_, fmt::format("{} stands where '{}' is needed", words(), symbol));
      return false;
    }
    take();
    return ok();
  }
  // The value of a node that was made here.
  int32_t checked(const Token& at, int32_t id) {
    if (to_.full()) return fail(at, fmt::format("the function has more than {} nodes", kMaxNodes));
    if (to_.depth(id) > kMaxDepth)
      return fail(at, fmt::format("the expression is more than {} operations deep", kMaxDepth));
    return id;
  }

  void assign() {
    const Token name = now_;
    if (is_reserved(name.text)) {
      fail(name, fmt::format("'{}' is a word of the language: it cannot be assigned", name.text));
    } else if (tensor_of(name.text) != nullptr) {
      fail(name, fmt::format("'{}' is a tensor: it cannot be assigned", name.text));
    } else if (names_.contains(name.text)) {
      fail(name, fmt::format("'{}' is assigned a second time", name.text));
    }
    take();
    take();
    const int32_t value = expression(1);
    if (expect(";")) names_.emplace(name.text, value);
  }

  // The function's own type.
  int32_t finished(int32_t value) {
    const Type type = to_.type(value);
    const Token end = now_;
    if (kind_ == FunctionKind::mask_mod) {
      if (type == Type::boolean) return value;
      return fail(end, fmt::format("the value is {}: mask_mod gives a bool", to_string(type)));
    }
    if (type == Type::boolean)
      return fail(end, "the value is bool: score_mod gives a float; float(x) converts");
    return checked(end, as_real(value));
  }

  int32_t as_real(int32_t id) {
    return to_.type(id) == Type::integer ? to_.make(Op::int_to_real, id) : id;
  }

  // ---- operators ----

  int32_t refused(const Token& at, std::string_view name, std::string_view accepted, Type type) {
    return fail(at,
                fmt::format("'{}' has {} for an argument: {}", name, to_string(type), accepted));
  }

  int32_t apply(const Token& at, const Operation& of, int32_t x, int32_t y) {
    if (!ok()) return 0;
    if (of.swapped) std::swap(x, y);
    const bool two = y >= 0;
    const auto any = [&](Type type) { return to_.type(x) == type || (two && to_.type(y) == type); };
    const auto both = [&](Type type) {
      return to_.type(x) == type && (!two || to_.type(y) == type);
    };
    const auto real = [&] {
      return checked(at, to_.make(of.real, as_real(x), two ? as_real(y) : -1));
    };
    const auto integer = [&] { return checked(at, to_.make(of.integer, x, y)); };
    switch (of.shape) {
      case Shape::reals:
        if (any(Type::boolean))
          return refused(at, of.name, "float and int are accepted; float(x) converts",
                         Type::boolean);
        return real();
      case Shape::numbers:
        if (any(Type::boolean))
          return refused(at, of.name, "float and int are accepted; int(x) converts", Type::boolean);
        return both(Type::integer) ? integer() : real();
      case Shape::integers:
        if (both(Type::integer)) return integer();
        return refused(at, of.name, "int is accepted; int(x) converts",
                       any(Type::real) ? Type::real : Type::boolean);
      case Shape::bits:
        if (both(Type::integer)) return integer();
        if (both(Type::boolean)) {
          return checked(at, two ? to_.make(of.integer, x, y) : to_.make(Op::logical_not, x));
        }
        return fail(at, fmt::format("'{}' has {}{}{} for arguments: ints or bools are accepted",
                                    of.name, to_string(to_.type(x)), two ? " and " : "",
                                    two ? to_string(to_.type(y)) : ""));
      case Shape::compares:
        if (both(Type::boolean) && of.precedence == 6) return integer();
        if (any(Type::boolean)) {
          return refused(at, of.name, "numbers are accepted (== and != take two bools, too)",
                         Type::boolean);
        }
        return both(Type::integer) ? integer() : real();
      case Shape::booleans:
        if (both(Type::boolean)) return integer();
        return refused(at, of.name, "bool is accepted; bool(x) converts",
                       any(Type::real) ? Type::real : Type::integer);
      case Shape::conversion:
      case Shape::choice:
        break;
    }
    return 0;
  }

  int32_t expression(int least) {
    int32_t left = unary();
    while (ok() && now_.kind == TokenKind::symbol) {
      const auto* of = std::find_if(std::begin(kBinary), std::end(kBinary),
                                    [&](const Operation& one) { return one.name == now_.text; });
      if (of == std::end(kBinary) || of->precedence < least) break;
      const Token at = now_;
      take();
      const int32_t right = expression(of->precedence + 1);
      left = apply(at, *of, left, right);
    }
    return left;
  }

  int32_t unary() {
    if (!ok()) return 0;
    const auto* of = std::find_if(std::begin(kUnary), std::end(kUnary),
                                  [&](const Operation& one) { return is(one.name); });
    if (of == std::end(kUnary)) return primary();
    const Token at = now_;
    if (++nesting_ > kMaxNesting)
      return fail(
          at, fmt::format("more than {} operators and parentheses inside each other", kMaxNesting));
    take();
    const int32_t argument = unary();
    --nesting_;
    return apply(at, *of, argument, -1);
  }

  // ---- names, numbers, parentheses ----

  int32_t primary() {
    const Token at = now_;
    if (at.kind == TokenKind::integer) {
      take();
      return checked(at, to_.integer(static_cast<int32_t>(at.value)));
    }
    if (at.kind == TokenKind::real) {
      take();
      return checked(at, to_.real(at.value));
    }
    if (at.kind == TokenKind::name) {
      take();
      return named(at);
    }
    if (!is("(")) return fail(at, fmt::format("{} stands where a value is needed", words()));
    if (++nesting_ > kMaxNesting)
      return fail(
          at, fmt::format("more than {} operators and parentheses inside each other", kMaxNesting));
    take();
    const int32_t value = expression(1);
    --nesting_;
    return expect(")") ? value : 0;
  }

  int32_t named(const Token& at) {
    if (const Operation* function = function_of(at.text)) return call(at, *function);
    for (const GivenName& given : kGiven) {
      if (given.name != at.text) continue;
      if (given.op == Op::score && kind_ == FunctionKind::mask_mod)
        return fail(at, "mask_mod has no score: b, h, q, k and tensors are accepted");
      return checked(at, to_.leaf(given.op));
    }
    if (at.text == "true" || at.text == "false") return checked(at, to_.boolean(at.text == "true"));
    if (at.text == "inf") return checked(at, to_.real(HUGE_VAL));
    if (at.text == "nan") return checked(at, to_.real(std::numeric_limits<double>::quiet_NaN()));
    if (const auto known = names_.find(at.text); known != names_.end()) return known->second;
    if (const Declared* tensor = tensor_of(at.text)) return element(at, *tensor);
    return fail(at, fmt::format("'{}' is no name of this function: {}b, h, q, k, names assigned "
                                "before, functions and the tensors {} are accepted",
                                at.text, kind_ == FunctionKind::score_mod ? "score, " : "",
                                tensor_names()));
  }
  const Declared* tensor_of(std::string_view name) const {
    for (const Declared& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::string tensor_names() const {
    std::string names;
    for (const Declared& tensor : tensors_) names += (names.empty() ? "" : ", ") + tensor.name;
    return names.empty() ? "(none is given)" : names;
  }

  // Expressions with commas between them, up to the closing sign.
  std::vector<int32_t> list(std::string_view close) {
    std::vector<int32_t> values;
    if (++nesting_ > kMaxNesting) {
      fail(now_,
           fmt::format("more than {} operators and parentheses inside each other", kMaxNesting));
      return values;
    }
    while (ok()) {
      values.push_back(expression(1));
      if (!ok() || !is(",")) break;
      take();
    }
    --nesting_;
    expect(close);
    return values;
  }

  int32_t element(const Token& at, const Declared& tensor) {
    std::vector<int32_t> indices;
    if (is("[")) {
      take();
      indices = list("]");
    }
    if (!ok()) return 0;
    if (static_cast<int>(indices.size()) != tensor.dims) {
      return fail(at, fmt::format("'{}' has {} dims, {} indices are given", tensor.name,
                                  tensor.dims, indices.size()));
    }
    for (const int32_t index : indices) {
      if (to_.type(index) != Type::integer) {
        return fail(at, fmt::format("an index of '{}' is {}: int is needed; int(x) converts",
                                    tensor.name, to_string(to_.type(index))));
      }
    }
    return checked(at, to_.load(static_cast<int>(&tensor - tensors_.data()), tensor.type, indices));
  }

  int32_t call(const Token& at, const Operation& function) {
    if (!expect("(")) return 0;
    const std::vector<int32_t> arguments = list(")");
    if (!ok()) return 0;
    if (static_cast<int>(arguments.size()) != function.arguments) {
      return fail(at, fmt::format("{} takes {} arguments, {} are given", at.text,
                                  function.arguments, arguments.size()));
    }
    if (function.shape == Shape::choice) return choose(at, arguments);
    if (function.shape == Shape::conversion) return converted(at, function, arguments[0]);
    return apply(at, function, arguments[0], arguments.size() > 1 ? arguments[1] : -1);
  }

  int32_t choose(const Token& at, const std::vector<int32_t>& a) {
    const Type x = to_.type(a[1]), y = to_.type(a[2]);
    if (to_.type(a[0]) != Type::boolean) {
      return fail(at, fmt::format("select's first argument is {}: bool is needed; bool(x) converts",
                                  to_string(to_.type(a[0]))));
    }
    if (x == y) return checked(at, to_.make(Op::select, a[0], a[1], a[2]));
    if (x == Type::boolean || y == Type::boolean) {
      return fail(at,
                  fmt::format("select's values are {} and {}: both bool, or numbers, are accepted",
                              to_string(x), to_string(y)));
    }
    return checked(at, to_.make(Op::select, a[0], as_real(a[1]), as_real(a[2])));
  }

  int32_t converted(const Token& at, const Operation& to, int32_t x) {
    const Type from = to_.type(x);
    if (to.name == to_string(from)) return x;
    if (to.name == "int")
      return checked(at, to_.make(from == Type::real ? to.real : to.integer, x));
    if (to.name == "float") {
      const int32_t integer = from == Type::boolean ? to_.make(Op::bool_to_int, x) : x;
      return checked(at, to_.make(Op::int_to_real, integer));
    }
    return checked(at, from == Type::real ? to_.make(to.real, x, to_.real(0))
                                          : to_.make(to.integer, x, to_.integer(0)));
  }

  Lexer lexer_;
  FunctionKind kind_;
  const std::vector<Declared>& tensors_;
  Builder& to_;
  Token now_, ahead_;
  TextError error_;
  int nesting_ = 0;
  std::unordered_map<std::string_view, int32_t> names_;
};

}  // namespace

Parsed parse(std::string_view text, FunctionKind kind, const std::vector<Declared>& tensors,
             Builder& builder) {
  if (text.size() > kMaxText) {
    return {0,
            {fmt::format("the text has {} bytes: {} are accepted", text.size(), kMaxText), 1, 1}};
  }
  return Parser(text, kind, tensors, builder).function();
}

std::string bad_name(std::string_view name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const bool word = !name.empty() && name.size() <= 64 && letter(name[0]) &&
                    std::all_of(name.begin(), name.end(),
                                [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
  if (!word) return "letters, digits and _, not a digit first, up to 64, are accepted";
  return is_reserved(name) ? "the language has that name for itself" : "";
}

}  // namespace fulmen::score
