#include "score/softcap.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>

#include "score/functions.h"

namespace fulmen::score {
namespace {

class Pattern {
 public:
  explicit Pattern(const Graph& graph) : graph_(graph) {}

  float softcap() const {
    const Node& product = node(graph_.results.front());
    if (product.op != Op::multiply) return 0;
    for (const int constant : {0, 1}) {
      const Node &cap = node(product.args[static_cast<std::size_t>(constant)]),
                 &tanh = node(product.args[static_cast<std::size_t>(1 - constant)]);
      if (cap.op != Op::constant || tanh.op != Op::tanh) continue;
      const double c = cap.constant.real;
      const bool in_range = std::fabs(c) >= kLeastSoftcap && std::fabs(c) <= kMostSoftcap;
      // The two signs of a negative c cancel.
      if (in_range && is_score_by(node(tanh.args[0]), c)) return static_cast<float>(std::fabs(c));
    }
    return 0;
  }

 private:
  const Node& node(int32_t id) const { return graph_.nodes[static_cast<std::size_t>(id)]; }
  // score / c, or a product with what differs from 1 / c by a rounding of fp32.
  bool is_score_by(const Node& quotient, double c) const {
    constexpr double kRounding = 0x1p-22;
    const bool divides = quotient.op == Op::divide;
    if (!divides && quotient.op != Op::multiply) return false;
    const Node &x = node(quotient.args[0]), &y = node(quotient.args[1]);
    const bool swapped = !divides && x.op == Op::constant;
    const Node &score = swapped ? y : x, &number = swapped ? x : y;
    if (score.op != Op::score || number.op != Op::constant) return false;
    const double ratio = divides ? number.constant.real / c : number.constant.real * c;
    return std::fabs(ratio - 1) <= kRounding;
  }

  const Graph& graph_;
};

}  // namespace

float softcap_of(const Graph& score_mod) noexcept {
  return score_mod.nodes.empty() ? 0.0F : Pattern(score_mod).softcap();
}

float softcap_of_function(const Problem& p) noexcept {
  const ScoreFunctions::Impl* functions = p.functions.impl();
  const bool first = p.softcap == 0 && !p.bias.present && !p.alibi_slopes.present;
  return functions != nullptr && first ? softcap_of(functions->score) : 0.0F;
}

ScoreFunctions without_score(const ScoreFunctions& functions) {
  auto impl = std::make_shared<ScoreFunctions::Impl>(*functions.impl());
  impl->score = {};
  impl->gradient = {};
  impl->loads.clear();
  impl->score_code = compile(impl->score);
  impl->gradient_code = compile(impl->gradient);
  impl->score_text.clear();
  return what_is_left(std::move(impl));
}

}  // namespace fulmen::score
