// The order in which a kernel's blocks are reached, and its loops.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/compile/amd_rules/flow.h"

namespace fulmen::gpu {

class AmdLoops {
 public:
  explicit AmdLoops(const AmdFlow& flow);

  // The blocks that can be reached, in reverse postorder, and the position of one there.
  const std::vector<std::size_t>& order() const { return order_; }
  std::size_t position(std::size_t block) const { return position_[block]; }
  const std::vector<std::size_t>& ways_to(std::size_t block) const { return from_[block]; }
  bool leads_back(std::size_t from, std::size_t to) const {
    return position_[from] >= position_[to];
  }
  // The other blocks of the loop that begins with `head`; empty where no way leads back to it.
  std::vector<std::size_t> blocks_of_loop(std::size_t head) const;

 private:
  std::vector<std::size_t> order_, position_;
  std::vector<std::vector<std::size_t>> from_;
};

}  // namespace fulmen::gpu
