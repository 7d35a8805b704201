// A 16-bit bias's elements beside S^T, whose rows are keys: in memory keys are neighbours. A lane
// loads pairs of keys, 4 bytes of a row, and the wave transposes 8 x 8 of them in registers.
#pragma once

#include "backward/parts/tile.h"

namespace fulmen::kernels {

// Where rows of the bias are whole: pairs begin at multiples of 4 bytes, and a row's last 8 keys
// are there or not together.
constexpr bool kBiasInPairs = kBias && kWholeBias && sizeof(BiasElement) == 2 && kRowsAreKeys;

// The biases of 16 keys, a wave's, and of tiles of 16 queries.
class BiasPairs {
 public:
  FULMEN_DEVICE BiasPairs(const BackwardTask& task, int head, Int64 first_query)
      : first_query_(static_cast<int>(first_query)) {
    if constexpr (kBiasInPairs) {
      const BackwardArguments& a = task.arguments;
      row_ = a.bias.row;
      last_query_ = static_cast<int>(a.seqlen_q) - 1;
      const BiasElement* head_bias = at<BiasElement>(a.bias, task.batch, 0, head);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Keys that are not there repeat the last 8: their scores are masked.
        const Int64 first = task.wave_row + 8 * half, most = a.seqlen_k - 8;
        keys_[half] = head_bias + (first < most ? first : most) + 2 * (lane_id() % 4);
      }
    }
  }
  // Begins to load those of a tile of 16 queries, from the first query's `first` on.
  template <bool kMasked>
  FULMEN_DEVICE void load(int first) {
    if constexpr (!kBiasInPairs) return;
#pragma unroll
    for (int queries = 0; queries < 2; ++queries) {
      int query = first_query_ + first + 8 * queries + lane_id() / 4;
      if (kMasked && query > last_query_) query = last_query_;
#pragma unroll
      for (int keys = 0; keys < 2; ++keys) {
        pair_[first / kScoreTile % 2][queries][keys] =
            global_load(reinterpret_cast<const unsigned*>(keys_[keys] + query * row_));
      }
    }
  }
  // Transposes that tile, once it is loaded: each lane has the elements that it has of S^T.
  FULMEN_DEVICE void transpose(int first, unsigned (&words)[4]) const {
#pragma unroll
    for (int w = 0; w < 4; ++w)
      words[w] = transpose_pairs(pair_[first / kScoreTile % 2][w / 2][w % 2]);
  }
  FULMEN_DEVICE static float of(const unsigned (&words)[4], int e) {
    const unsigned word = words[2 * (e / 4) + row_slot(e)];
    return of_bits<BiasElement>((e % 2 == 0 ? word : word >> 16U) & 0xFFFFU);
  }

 private:
  Int64 row_ = 0;
  int first_query_, last_query_ = 0;
  const BiasElement* keys_[2] = {};
  unsigned pair_[2][2][2] = {};  // of two tiles in flight: [queries by 8][keys by 8]
};

}  // namespace fulmen::kernels
