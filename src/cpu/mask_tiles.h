// The summary of what a call's bool mask, mask_mod and block mask leave of each tile, made before
// the call's tasks begin.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/tile/mask_summary.h"
#include "cpu/tile/tile_function.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "runtime/threading.h"

namespace fulmen::cpu {

class MaskTiles {
 public:
  MaskTiles() = default;  // of a call without a mask
  // threads: of the runs.
  MaskTiles(const Problem& problem, int threads);

  // Of workspace, whole cache lines.
  int64_t bytes() const noexcept {
    return round_up(tiles_, 64) + round_up(states_, 64) + interval_bytes_ * threads_;
  }

  // Reads the whole bool mask once, and the block mask; asks mask_mod for whole tiles. memory:
  // bytes() of it.
  MaskSummary summarise(const AttentionTensors& tensors, const ThreadSettings& threads,
                        const TileFunction& function, void* memory) const;

 private:
  // How a dim of the tiles is stored.
  struct Dim {
    int64_t size = 0;  // 1 where it is broadcast
    int64_t stride = 0;
  };
  // Whether the band leaves out all of a tile; for tiles by query rows.
  bool is_outside(int64_t row, int64_t rows, int64_t key, int64_t keys) const;
  void read_blocks(const AttentionTensors& tensors, BlockState* states) const;
  BlockStates block_states(const BlockState* states) const;

  const Problem* problem_ = nullptr;
  bool has_function_ = false;
  Dim batch_, heads_, rows_;
  int64_t row_tiles_ = 0;
  int64_t key_tiles_ = 0;
  int64_t tiles_ = 0;
  Dim block_batch_, block_heads_;
  int64_t states_ = 0;          // of a block mask
  int64_t interval_bytes_ = 0;  // of a thread's score::Intervals
  int threads_ = 1;
};

}  // namespace fulmen::cpu
