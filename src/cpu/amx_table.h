// The table of a tile instruction set: the real one, or the tests' emulation.
#pragma once

#include "cpu/isa/amx.h"
#include "cpu/matrix_task.h"

namespace fulmen::cpu {

template <class Tiles>
int64_t amx_scratch_floats(const Problem& problem, int block_n, int tiles) {
  return tile_scratch(problem, Amx<Tiles>::kLanes, Amx<Tiles>::kGroup, block_n, tiles, true).total;
}

// Short sequences take the tile task, too: on tiles the products cost so little that turning bias and output matters less than
// them.
template <class Tiles>
constexpr IsaTable amx_table(const char* name) {
  return {.name = name,
          .lanes = Amx<Tiles>::kLanes,
          .group = {1, 1, 2},
          .block_n = 128,
          .tile_task = {nullptr, nullptr, matrix_task<Amx<Tiles>, Bf16>},
          .short_task = {nullptr, nullptr, matrix_task<Amx<Tiles>, Bf16>},
          .scratch_floats = amx_scratch_floats<Tiles>};
}

}  // namespace fulmen::cpu
