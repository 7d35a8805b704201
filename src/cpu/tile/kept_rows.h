// What a bool mask keeps of a few rows and keys, for tasks that look at their mask themselves: a
// tile's summary (mask_summary.h) would take as long as the look.
#pragma once

#include <cstdint>

#include "cpu/tile/mask_summary.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// Rows of several heads of a sequence.
struct MaskRows {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t heads = 1;
  int64_t row = 0;
  int64_t rows = 0;
};

template <class Isa>
__attribute__((noinline)) Kept kept_of_rows(const Problem& problem, const AttentionTensors& tensors,
                                            const MaskRows& at, int64_t first, int64_t count) {
  const TensorSpec& mask = problem.keep_mask;
  if (!mask.present) return Kept::all;
  const int64_t heads = mask.strides[1] == 0 ? 1 : at.heads,
                rows = mask.strides[2] == 0 ? 1 : at.rows;
  MaskBytes seen;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t* keep = element<const uint8_t>(tensors.keep_mask, mask, at.batch,
                                                   at.head + head, at.row + row, first);
      seen.add(keep, count);
      if (seen.kept() == Kept::some) return Kept::some;
    }
  }
  return seen.kept();
}

}  // namespace fulmen::cpu
