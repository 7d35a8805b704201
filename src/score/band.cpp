#include "score/band.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "score/functions.h"

namespace fulmen::score {
namespace {

// a q + c k + d, which wraps for no pair.
struct Linear {
  bool is = false;
  int64_t by_query = 0, by_key = 0, offset = 0;
};

struct Lengths {
  int64_t queries, keys;
};

// Every distance that a comparison may leave unlimited is beyond all pairs.
constexpr int64_t kFar = int64_t{1} << 40;

Linear linear(int64_t by_query, int64_t by_key, int64_t offset, const Lengths& lengths) {
  constexpr int64_t kMostFactor = int64_t{1} << 28;
  if (std::max(std::abs(by_query), std::abs(by_key)) > kMostFactor) return {};
  const int64_t q = by_query * (lengths.queries - 1), k = by_key * (lengths.keys - 1);
  const int64_t least = std::min<int64_t>(q, 0) + std::min<int64_t>(k, 0) + offset,
                most = std::max<int64_t>(q, 0) + std::max<int64_t>(k, 0) + offset;
  // Nor does its absolute value wrap.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (least < -kMost || most > kMost) return {};
  return {true, by_query, by_key, offset};
}

Linear sum(const Linear& x, const Linear& y, int64_t sign, const Lengths& lengths) {
  if (!x.is || !y.is) return {};
  return linear(x.by_query + sign * y.by_query, x.by_key + sign * y.by_key,
                x.offset + sign * y.offset, lengths);
}

bool is_number(const Linear& x) { return x.is && x.by_query == 0 && x.by_key == 0; }

Linear product(const Linear& x, const Linear& y, const Lengths& lengths) {
  if (is_number(y) && x.is)
    return linear(x.by_query * y.offset, x.by_key * y.offset, x.offset * y.offset, lengths);
  return is_number(x) && y.is ? product(y, x, lengths) : Linear{};
}

std::vector<Linear> linear_forms(const Graph& graph, const Lengths& lengths) {
  std::vector<Linear> forms;
  for (const Node& node : graph.nodes) {
    const auto argument = [&](int a) { return forms[static_cast<std::size_t>(node.args[a])]; };
    Linear form;
    switch (node.op) {
      case Op::constant:
        if (node.type == Type::integer) form = linear(0, 0, node.constant.integer, lengths);
        break;
      case Op::query:
        form = linear(1, 0, 0, lengths);
        break;
      case Op::key:
        form = linear(0, 1, 0, lengths);
        break;
      case Op::int_negate:
        form = sum(linear(0, 0, 0, lengths), argument(0), -1, lengths);
        break;
      case Op::int_add:
        form = sum(argument(0), argument(1), 1, lengths);
        break;
      case Op::int_subtract:
        form = sum(argument(0), argument(1), -1, lengths);
        break;
      case Op::int_multiply:
        form = product(argument(0), argument(1), lengths);
        break;
      default:
        break;
    }
    forms.push_back(form);
  }
  return forms;
}

// Where x - y <= most, neither of which wraps.
bool at_most(const Linear& x, const Linear& y, int64_t most, Distances& to) {
  if (!x.is || !y.is) return false;
  const int64_t by_query = x.by_query - y.by_query, by_key = x.by_key - y.by_key,
                bound = most - (x.offset - y.offset);
  if (by_key == 1 && by_query == -1) {
    to = {-kFar, bound};
  } else if (by_key == -1 && by_query == 1) {
    to = {-bound, kFar};
  } else {
    return false;
  }
  return true;
}

class Conjunction {
 public:
  Conjunction(const Graph& graph, const Lengths& lengths)
      : graph_(graph), forms_(linear_forms(graph, lengths)), seen_(2 * graph.nodes.size()) {}

  std::vector<Conjunct> take() && {
    visit(graph_.results.front(), false);
    return std::move(conjuncts_);
  }

 private:
  const Node& node(int32_t id) const { return graph_.nodes[static_cast<std::size_t>(id)]; }
  const Linear& form(int32_t id) const { return forms_[static_cast<std::size_t>(id)]; }

  // No deeper than functions are (kMaxDepth).
  void visit(int32_t id, bool negated) {
    const std::size_t at = 2 * static_cast<std::size_t>(id) + (negated ? 1 : 0);
    if (seen_[at]) return;
    seen_[at] = true;
    const Node& n = node(id);
    if (n.op == Op::logical_not) return visit(n.args[0], !negated);
    if (n.type == Type::boolean && n.op == (negated ? Op::bit_or : Op::bit_and)) {
      visit(n.args[0], negated);
      return visit(n.args[1], negated);
    }
    Conjunct one{id, negated, false, {}};
    one.is_band = band(n, negated, one.distances);
    conjuncts_.push_back(one);
  }

  bool band(const Node& n, bool negated, Distances& to) const {
    const auto argument = [&](int a) -> const Linear& { return form(n.args[a]); };
    switch (n.op) {
      case Op::constant:
        to = {-kFar, kFar};
        return (n.constant.integer != 0) != negated;
      case Op::int_less:  // not x < y: y <= x
        if (!negated && within(n.args[0], argument(1), 1, to)) return true;
        return negated ? at_most(argument(1), argument(0), 0, to)
                       : at_most(argument(0), argument(1), -1, to);
      case Op::int_less_equal:  // not x <= y: y < x
        if (!negated && within(n.args[0], argument(1), 0, to)) return true;
        return negated ? at_most(argument(1), argument(0), -1, to)
                       : at_most(argument(0), argument(1), 0, to);
      case Op::int_equal:
      case Op::int_not_equal: {
        Distances below, above;
        if (negated == (n.op == Op::int_equal) || !at_most(argument(0), argument(1), 0, below) ||
            !at_most(argument(1), argument(0), 0, above))
          return false;
        to = both(below, above);
        return true;
      }
      default:
        return false;
    }
  }

  // |x| <= bound - below.
  bool within(int32_t id, const Linear& bound, int64_t below, Distances& to) const {
    if (node(id).op != Op::int_abs || !is_number(bound)) return false;
    const Linear& x = form(node(id).args[0]);
    const Linear zero{true, 0, 0, 0};
    const int64_t most = bound.offset - below;
    Distances high, low;
    if (!at_most(x, zero, most, high) || !at_most(zero, x, most, low)) return false;
    to = both(high, low);
    return true;
  }

  const Graph& graph_;
  const std::vector<Linear> forms_;
  std::vector<bool> seen_;
  std::vector<Conjunct> conjuncts_;
};

int32_t append(Graph& graph, Op op, int32_t x, int32_t y) {
  Node node;
  node.op = op;
  node.type = Type::boolean;
  node.arguments = y < 0 ? 1 : 2;
  node.args = {x, y, -1, -1};
  graph.nodes.push_back(node);
  return static_cast<int32_t>(graph.nodes.size()) - 1;
}

}  // namespace

Distances all_distances(int64_t seqlen_q, int64_t seqlen_k) noexcept {
  return {1 - seqlen_q, seqlen_k - 1};
}

Distances both(const Distances& x, const Distances& y) noexcept {
  return {std::max(x.least, y.least), std::min(x.most, y.most)};
}

std::vector<Conjunct> conjuncts_of(const Graph& mask, int64_t seqlen_q, int64_t seqlen_k) {
  return Conjunction(mask, {seqlen_q, seqlen_k}).take();
}

bool holds_in(const Conjunct& conjunct, const Distances& taken) noexcept {
  return conjunct.is_band && both(conjunct.distances, taken) == taken;
}

Graph without_bands(const Graph& mask, const std::vector<Conjunct>& conjuncts,
                    const Distances& taken) {
  Graph left{mask.nodes, {}};
  int32_t result = -1;
  for (const Conjunct& one : conjuncts) {
    if (holds_in(one, taken)) continue;
    const int32_t node = one.negated ? append(left, Op::logical_not, one.node, -1) : one.node;
    result = result < 0 ? node : append(left, Op::bit_and, result, node);
  }
  if (result < 0) return {};
  left.results = {result};
  return live_part(left);
}

ScoreFunctions with_mask(const ScoreFunctions& functions, Graph mask) {
  auto impl = std::make_shared<ScoreFunctions::Impl>(*functions.impl());
  impl->mask = std::move(mask);
  impl->mask_code = compile(impl->mask);
  if (!impl->has_mask()) impl->mask_text.clear();
  return what_is_left(std::move(impl));
}

}  // namespace fulmen::score
