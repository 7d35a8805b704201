// What kernels/forward/boards.h needs to know of a target.
#pragma once

#include <span>

namespace fulmen::gpu {

struct BoardShape {
  int head_dim;
  int workgroups;     // of a multiprocessor
  bool runs = false;  // of boards, where there are more than run at once
};
struct BoardTiles {
  std::span<const BoardShape> shapes;
};

}  // namespace fulmen::gpu
