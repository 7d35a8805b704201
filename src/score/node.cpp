#include "score/node.h"

#include <cstddef>

namespace fulmen::score {

const char* to_string(Type type) noexcept {
  return type == Type::boolean ? "bool" : type == Type::integer ? "int" : "float";
}

const char* to_string(Op op) noexcept {
  constexpr const char* kNames[] = {"constant",
                                    "score",
                                    "b",
                                    "h",
                                    "q",
                                    "k",
                                    "load",
                                    "negate",
                                    "abs",
                                    "exp",
                                    "exp2",
                                    "log",
                                    "log2",
                                    "tanh",
                                    "sqrt",
                                    "rsqrt",
                                    "sigmoid",
                                    "sin",
                                    "cos",
                                    "erf",
                                    "floor",
                                    "ceil",
                                    "round",
                                    "trunc",
                                    "add",
                                    "subtract",
                                    "multiply",
                                    "divide",
                                    "min",
                                    "max",
                                    "pow",
                                    "less",
                                    "less_equal",
                                    "equal",
                                    "not_equal",
                                    "int_negate",
                                    "int_abs",
                                    "int_invert",
                                    "int_add",
                                    "int_subtract",
                                    "int_multiply",
                                    "floor_divide",
                                    "modulo",
                                    "shift_left",
                                    "shift_right",
                                    "int_min",
                                    "int_max",
                                    "bit_and",
                                    "bit_xor",
                                    "bit_or",
                                    "int_less",
                                    "int_less_equal",
                                    "int_equal",
                                    "int_not_equal",
                                    "logical_not",
                                    "isnan",
                                    "select",
                                    "int_to_real",
                                    "real_to_int",
                                    "bool_to_int"};
  static_assert(sizeof kNames / sizeof *kNames == kOps);
  return kNames[static_cast<std::size_t>(op)];
}

Graph live_part(const Graph& graph) {
  const std::size_t count = graph.nodes.size();
  std::vector<int32_t> place(count, -1);
  for (const int32_t result : graph.results) place[static_cast<std::size_t>(result)] = 0;
  for (std::size_t i = count; i-- > 0;) {
    if (place[i] < 0) continue;
    const Node& node = graph.nodes[i];
    for (int a = 0; a < node.arguments; ++a) place[static_cast<std::size_t>(node.args[a])] = 0;
  }
  Graph live;
  for (std::size_t i = 0; i < count; ++i) {
    if (place[i] < 0) continue;
    Node node = graph.nodes[i];
    for (int a = 0; a < node.arguments; ++a)
      node.args[a] = place[static_cast<std::size_t>(node.args[a])];
    place[i] = static_cast<int32_t>(live.nodes.size());
    live.nodes.push_back(node);
  }
  for (const int32_t result : graph.results)
    live.results.push_back(place[static_cast<std::size_t>(result)]);
  return live;
}

std::vector<Dependence> dependences(const std::vector<Node>& nodes) {
  std::vector<Dependence> all(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    Dependence& of = all[i];
    of = {node.op == Op::query, node.op == Op::key, node.op == Op::score};
    for (int a = 0; a < node.arguments; ++a) {
      const Dependence& argument = all[static_cast<std::size_t>(node.args[a])];
      of.query |= argument.query;
      of.key |= argument.key;
      of.score |= argument.score;
    }
  }
  return all;
}

}  // namespace fulmen::score
