#include "score/source.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>

namespace fulmen::score {
namespace {

std::string constant(const Node& node) {
  switch (node.type) {
    case Type::boolean:
      return node.constant.integer != 0 ? "true" : "false";
    case Type::integer:
      // The least int has no literal of its own.
      return fmt::format("op::wrapped({}U)", static_cast<uint32_t>(node.constant.integer));
    default:
      return fmt::format("op::real({}U)",
                         std::bit_cast<uint32_t>(static_cast<float>(node.constant.real)));
  }
}

// Whether a tensor has an element of these indices.
std::string inside(const PrintedTensor& tensor, std::span<const int32_t> indices) {
  std::string there;
  for (int d = 0; d < tensor.dims; ++d) {
    const auto dim = static_cast<std::size_t>(d);
    there += fmt::format("{}op::inside(n{}, {})", d == 0 ? "" : " && ", indices[dim],
                         tensor.extent[dim]);
  }
  return there.empty() ? "true" : there;
}

std::string load(const Node& node, const PrintedTensor& tensor) {
  if (tensor.empty) return node.type == Type::real ? "0.0F" : "0";
  std::string offset;
  for (int d = 0; d < tensor.dims; ++d) {
    const std::string index = fmt::format("n{}", node.args[d]);
    if (tensor.stride[d] == "0") continue;
    // An unsigned distance of 32 bits is an operand of a load itself on AMD.
    const char* const number = !tensor.near ? "Int64" : tensor.ahead ? "unsigned" : "int";
    offset += fmt::format("{}static_cast<{}>({})", offset.empty() ? "" : " + ", number, index);
    if (tensor.stride[d] != "1")
      offset += fmt::format(" * static_cast<{}>({})", number, tensor.stride[d]);
  }
  return fmt::format("op::load<{}>({}, {}, {})", tensor.element, tensor.data,
                     inside(tensor, node.args), offset.empty() ? "0U" : offset);
}

std::string operation(const Node& node) {
  // Of a bool, !x.
  const bool inverts = node.op == Op::int_invert && node.type == Type::boolean;
  std::string text = fmt::format("op::{}(", to_string(inverts ? Op::logical_not : node.op));
  for (int a = 0; a < node.arguments; ++a)
    text += fmt::format("{}n{}", a == 0 ? "" : ", ", node.args[a]);
  return text + ")";
}

std::string value(const Node& node, std::span<const PrintedTensor> tensors) {
  switch (node.op) {
    case Op::constant:
      return constant(node);
    case Op::score:
      return "at.score";
    case Op::batch:
      return "at.batch";
    case Op::head:
      return "at.head";
    case Op::query:
      return "at.query";
    case Op::key:
      return "at.key";
    case Op::load:
      return load(node, tensors[node.tensor]);
    default:
      return operation(node);
  }
}

}  // namespace

std::string statements(const Graph& graph, std::span<const PrintedTensor> tensors) {
  std::string text = "namespace op = score_operations;";
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    text += fmt::format(" const {} n{} = {};", to_string(node.type), i, value(node, tensors));
  }
  return text;
}

std::string place(const PrintedTensor& tensor, std::span<const int32_t> indices) {
  if (tensor.empty) return "-1";
  std::string at;
  for (int d = 0; d < tensor.dims; ++d) {
    const auto dim = static_cast<std::size_t>(d);
    const std::string index = fmt::format("static_cast<unsigned>(n{})", indices[dim]);
    at = d == 0
             ? index
             : fmt::format("({}) * static_cast<unsigned>({}) + {}", at, tensor.extent[dim], index);
  }
  return fmt::format("{} ? static_cast<int>({}) : -1", inside(tensor, indices),
                     at.empty() ? "0U" : at);
}

std::string print(const Graph& graph, std::span<const PrintedTensor> tensors) {
  std::string text = statements(graph, tensors) + " return ";
  if (graph.results.size() == 1) return text + fmt::format("n{};", graph.results.front());
  for (std::size_t r = 0; r < graph.results.size(); ++r)
    text += fmt::format("{}n{}", r == 0 ? "{" : ", ", graph.results[r]);
  return text + "};";
}

}  // namespace fulmen::score
