// Makes graphs: a node that exists is found again (hash-consing), constants are folded, and what
// does nothing is left out.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "score/node.h"

namespace fulmen::score {

class Builder {
 public:
  // most: nodes after sharing.
  explicit Builder(int most = kMaxNodes) : most_(most) {}

  int32_t leaf(Op op);
  int32_t real(double value);
  int32_t integer(int32_t value);
  int32_t boolean(bool value);
  int32_t load(int tensor, Type type, const std::vector<int32_t>& indices);
  // Types of arguments are right; the result's follows from them. Operations that read one argument
  // get y = z = -1.
  int32_t make(Op op, int32_t x, int32_t y = -1, int32_t z = -1);

  const Node& node(int32_t id) const { return nodes_[static_cast<std::size_t>(id)]; }
  Type type(int32_t id) const { return node(id).type; }
  int depth(int32_t id) const { return depths_[static_cast<std::size_t>(id)]; }
  const std::vector<Node>& nodes() const { return nodes_; }
  // Whether a node was refused: what came back instead is a constant.
  bool full() const { return full_; }
  int deepest() const { return deepest_; }

 private:
  int32_t add(const Node& node);
  int32_t simplified(Op op, int32_t x, int32_t y, int32_t z);
  bool is_constant(int32_t id) const { return id >= 0 && node(id).op == Op::constant; }
  bool is_real(int32_t id, double value) const;
  bool is_integer(int32_t id, int32_t value) const;

  struct Hash {
    std::size_t operator()(const Node& node) const noexcept;
  };
  struct Same {
    bool operator()(const Node& a, const Node& b) const noexcept;
  };
  int most_;
  bool full_ = false;
  int deepest_ = 0;
  std::vector<Node> nodes_;
  std::vector<int> depths_;
  std::unordered_map<Node, int32_t, Hash, Same> ids_;
};

// The type of a result; arguments' types are those of x and y.
Type result_type(Op op, Type x, Type y) noexcept;

}  // namespace fulmen::score
