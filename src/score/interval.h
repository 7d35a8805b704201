// What a mask function gives over a block of queries and keys, without evaluating each pair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "score/elements.h"
#include "score/node.h"

namespace fulmen::score {

enum class Verdict : uint8_t { none, some, all };  // of the pairs are attended

// Queries and keys of a sequence and head, both ends included.
struct Block {
  int32_t batch = 0, head = 0;
  int32_t query_first = 0, query_last = 0;
  int32_t key_first = 0, key_last = 0;
};

// Bounds of a value. An int may besides be a linear form a q + c k + d, which makes differences
// exact: q - k is within a window, whatever q and k are.
struct Bounds {
  // Of ints and bools; of floats they are not used.
  int64_t least = 0, most = 0;
  // Of floats.
  double least_real = 0, most_real = 0;
  bool maybe_nan = false;
  bool linear = false;
  int64_t by_query = 0, by_key = 0, offset = 0;
};

// Not for many threads at once: it keeps what it found of tensors.
class Intervals {
 public:
  // graph: of one result, a bool. All are kept by reference. scratch: one for each node.
  Intervals(const Graph& graph, const Elements* tensors, Bounds* scratch)
      : graph_(graph), tensors_(tensors), bounds_(scratch) {}
  // `some` is always a right answer; the other two are proofs.
  Verdict of(const Block& block);

 private:
  Bounds bounds(const Node& node, std::size_t id, const Block& block);
  Bounds of_load(const Node& node, std::size_t id);
  const Bounds& at(int32_t id) const { return bounds_[id]; }

  // A range of a tensor's elements that has been looked at. Rows of blocks share their queries, and
  // blocks of some rows in turn their keys.
  struct Found {
    int64_t load = -1;  // the node
    std::array<int64_t, 8> range{};
    Bounds bounds;
  };
  static constexpr std::size_t kFound = 256;

  const Graph& graph_;
  const Elements* tensors_;
  Bounds* bounds_;
  std::array<Found, kFound> found_{};
};

}  // namespace fulmen::score
