// The functions' definition: a graph's values for one pair of query and key, node by node. The
// oracle evaluates in double.
#pragma once

#include <cstdint>
#include <vector>

#include "score/apply.h"
#include "score/elements.h"
#include "score/node.h"

namespace fulmen::score {

template <class Real>
struct PairOf {
  Real score = 0;
  int32_t batch = 0, head = 0, query = 0, key = 0;
};

// values: one for each node of the graph, written here.
template <class Real>
void evaluate(const std::vector<Node>& nodes, const Elements* tensors, const PairOf<Real>& at,
              BasicValue<Real>* values) {
  const BasicValue<Real> none;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    BasicValue<Real>& value = values[i];
    const auto argument = [&](int a) -> const BasicValue<Real>& {
      return a < node.arguments ? values[node.args[a]] : none;
    };
    switch (node.op) {
      case Op::constant:
        value = {static_cast<Real>(node.constant.real), node.constant.integer};
        break;
      case Op::score:
        value = {at.score, 0};
        break;
      case Op::batch:
        value = {0, at.batch};
        break;
      case Op::head:
        value = {0, at.head};
        break;
      case Op::query:
        value = {0, at.query};
        break;
      case Op::key:
        value = {0, at.key};
        break;
      case Op::load: {
        int32_t indices[kMaxArguments];
        for (int d = 0; d < node.arguments; ++d) indices[d] = argument(d).integer;
        value = element_at<Real>(tensors[node.tensor], indices);
        break;
      }
      default:
        value = apply(node.op, argument(0), argument(1), argument(2));
    }
  }
}

}  // namespace fulmen::score
