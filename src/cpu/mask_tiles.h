// The summary of a call's bool mask, made before the call's tasks begin.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/tile/mask_summary.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "runtime/threading.h"

namespace fulmen::cpu {

class MaskTiles {
 public:
  MaskTiles() = default;  // of a call without a mask
  explicit MaskTiles(const Problem& problem);

  // Of workspace, whole cache lines.
  int64_t bytes() const noexcept { return round_up(tiles_, 64); }

  // Reads the whole mask once. memory: bytes() of it.
  MaskSummary summarise(const AttentionTensors& tensors, const ThreadSettings& threads,
                        void* memory) const;

 private:
  TensorSpec mask_;
  int64_t batch_ = 0;  // as the mask stores them: 1 where it is broadcast
  int64_t heads_ = 0;
  int64_t rows_ = 0;
  int64_t keys_ = 0;
  int64_t row_tiles_ = 0;
  int64_t key_tiles_ = 0;
  int64_t tiles_ = 0;
};

}  // namespace fulmen::cpu
