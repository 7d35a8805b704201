// Dropout's factors for a tile of scores.
#pragma once

#include <cstdint>

#include "algorithm/philox.h"
#include "cpu/tile/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// out [keys][kBlockM]: 0 where the element is dropped, else `scale`. first_row is even, first_key a
// multiple of 4. The loops are plain C++ that compilers turn into vectors: 16 calls of Philox
// beside each other, each for two rows and four keys.
template <class Isa>
__attribute__((noinline)) void dropout_tile(const algorithm::DropoutHead& random, int dropout,
                                            float scale, int64_t first_row, int rows,
                                            int64_t first_key, int keys, float* out) {
  constexpr int kPairs = 16;
  for (int row = 0; row < rows; row += 2 * kPairs) {
    for (int key = 0; key < keys; key += 4) {
      alignas(64) uint32_t words[4][kPairs];
      for (int i = 0; i < kPairs; ++i) {
        const algorithm::Philox block =
            random.block((first_row + row) / 2 + i, (first_key + key) / 4);
        words[0][i] = block.word[0];
        words[1][i] = block.word[1];
        words[2][i] = block.word[2];
        words[3][i] = block.word[3];
      }
      const int count = keys - key < 4 ? keys - key : 4;
      for (int k = 0; k < count; ++k) {
        uint16_t numbers[2 * kPairs];  // of rows in order: a word's low half is the even row
        __builtin_memcpy(numbers, words[k], sizeof numbers);
        float* to = out + (key + k) * kBlockM + row;
        for (int i = 0; i < 2 * kPairs; ++i)
          to[i] = static_cast<int>(numbers[i]) >= dropout ? scale : 0.0F;
      }
    }
  }
}

// The same from the call's seed and offset, for a tile of one head.
template <class Isa>
FULMEN_INLINE void head_dropout_tile(const Problem& problem, const AttentionTensors& tensors,
                                     int64_t batch, int64_t head, int64_t first_row, int rows,
                                     int64_t first_key, int keys, float* out) {
  const auto random = algorithm::DropoutHead::of(tensors.dropout_seed, tensors.dropout_offset,
                                                 batch * problem.num_heads + head);
  dropout_tile<Isa>(random, problem.dropout, problem.dropout_scale(), first_row, rows, first_key,
                    keys, out);
}

}  // namespace fulmen::cpu
