#include "score/distance.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace fulmen::score {
namespace {

// An int that is query * q + key * k + what varies with neither, modulo 2^32.
struct Form {
  bool known = false;
  uint32_t query = 0, key = 0;

  // Whether q and k can change together without changing it.
  bool of_distance() const { return known && query + key == 0; }
};

Form sum_of(const Form& a, const Form& b, uint32_t factor) {
  return {a.known && b.known, a.query + factor * b.query, a.key + factor * b.key};
}

class DistanceSearch {
 public:
  explicit DistanceSearch(const std::vector<Node>& nodes)
      : nodes_(nodes), dependences_(dependences(nodes)), found_(nodes.size(), false) {}

  std::vector<bool> run() {
    for (const Node& node : nodes_) linear_.push_back(linear_of(node, linear_.size()));
    for (std::size_t i = 0; i < nodes_.size(); ++i) found_[i] = of_distance(i);
    return std::move(found_);
  }

 private:
  bool varies(std::size_t i) const {
    return dependences_[i].query || dependences_[i].key || dependences_[i].score;
  }
  static std::size_t argument(const Node& node, int a) {
    return static_cast<std::size_t>(node.args[static_cast<std::size_t>(a)]);
  }
  const Form& linear(const Node& node, int a) const { return linear_[argument(node, a)]; }

  Form linear_of(const Node& node, std::size_t i) const {
    if (node.type != Type::integer) return {};
    if (!varies(i)) return {true, 0, 0};
    switch (node.op) {
      case Op::query:
        return {true, 1, 0};
      case Op::key:
        return {true, 0, 1};
      case Op::int_add:
        return sum_of(linear(node, 0), linear(node, 1), 1);
      case Op::int_subtract:
        return sum_of(linear(node, 0), linear(node, 1), 0U - 1U);
      case Op::int_negate:
        return sum_of({true, 0, 0}, linear(node, 0), 0U - 1U);
      case Op::int_multiply:
        for (int a = 0; a < 2; ++a) {
          const Node& by = nodes_[argument(node, a)];
          if (by.op != Op::constant) continue;
          return sum_of({true, 0, 0}, linear(node, 1 - a),
                        static_cast<uint32_t>(by.constant.integer));
        }
        return {};
      default:
        return {};
    }
  }

  bool of_distance(std::size_t i) const {
    const Node& node = nodes_[i];
    if (!varies(i) || dependences_[i].score || node.arguments == 0) return false;
    if (linear_[i].of_distance()) return true;
    if (node.op == Op::int_equal || node.op == Op::int_not_equal) {
      // Equal is what a difference of 0 says, modulo 2^32, too.
      if (sum_of(linear(node, 0), linear(node, 1), 0U - 1U).of_distance()) return true;
    }
    // What is less does not follow from a difference that may wrap: q's and k's own does not.
    const auto is = [&](int a, Op op) { return nodes_[argument(node, a)].op == op; };
    if (node.op == Op::int_less || node.op == Op::int_less_equal) {
      if ((is(0, Op::query) && is(1, Op::key)) || (is(0, Op::key) && is(1, Op::query))) return true;
    }
    for (int a = 0; a < node.arguments; ++a) {
      if (varies(argument(node, a)) && !found_[argument(node, a)]) return false;
    }
    return true;
  }

  const std::vector<Node>& nodes_;
  std::vector<Dependence> dependences_;
  std::vector<Form> linear_;
  std::vector<bool> found_;
};

}  // namespace

std::vector<bool> vary_with_distance(const std::vector<Node>& nodes) {
  return DistanceSearch(nodes).run();
}

}  // namespace fulmen::score
