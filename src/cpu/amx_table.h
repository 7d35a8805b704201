// The table of a tile instruction set: the real one, or the tests' emulation.
#pragma once

#include "cpu/isa/amx.h"
#include "cpu/matrix_task.h"

namespace fulmen::cpu {

template <class Isa>
int64_t amx_scratch_floats(const Problem& problem, int block_n, int tiles) {
  return tile_scratch(problem, Isa::kLanes, Isa::kGroup, block_n, tiles, true).total;
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
          .scratch_floats = amx_scratch_floats<Amx<Tiles>>};
}
template <class Tiles>
constexpr IsaTable amx_fp16_table(const char* name) {
  return {.name = name,
          .lanes = AmxFp16<Tiles>::kLanes,
          .group = {1, 2, 1},
          .block_n = 128,
          .tile_task = {nullptr, matrix_task<AmxFp16<Tiles>, Fp16>, nullptr},
          .short_task = {nullptr, matrix_task<AmxFp16<Tiles>, Fp16>, nullptr},
          .scratch_floats = amx_scratch_floats<AmxFp16<Tiles>>};
}

}  // namespace fulmen::cpu
