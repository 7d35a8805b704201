// The bias of short_backward.h, and its gradient.
#pragma once

#include "backward/parts/bias.h"
#include "backward/parts/short_board.h"
#include "tile/held_words.h"
#include "tile/modified_scores.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

// Rows of a held bias go to LDS as they are in memory.
constexpr bool kCopiesBias = kBiasInLds && kWholeTiles && kWholeBias;

// The bias of a wave's scores, where all batches of a run have the same; else each tile's is loaded
// when it is needed.
class ScoreBias {
 public:
  // All rows of the head, in flight with the first board.
  FULMEN_DEVICE static void copy(const BackwardArguments& a, int batch, int head) {
    Held::copy(kShort.bias_at, at<BiasElement>(a.bias, batch, 0, head), a.bias.row);
  }
  FULMEN_DEVICE void hold(const BackwardArguments& a, int batch, int head, int row) {
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      unsigned bits[kElements], words[Held::kWords];
      load(a, batch, head, row, f, bits);
#pragma unroll
      for (int w = 0; w < Held::kWords; ++w) words[w] = bits[2 * w] | bits[2 * w + 1] << 16U;
      held_.keep(kShort.bias_at, row, f, words);
    }
  }
  // The bias of a tile's elements, in the scores' units. The held words are converted anew for each
  // batch: floats held across batches would add register pressure.
  FULMEN_DEVICE void scaled(const BackwardArguments& a, int batch, int head, unsigned lane, int row,
                            int tile, float (&bias)[kElements]) const {
    if constexpr (kHoldsBias) {
      unsigned words[Held::kWords];
      held_.read(lane, kShort.bias_at, row, tile, words);
#pragma unroll
      for (int w = 0; w < Held::kWords; ++w) {
        bias[2 * w] = kUnitsOfScore * of_bits<BiasElement>(words[w]);
        bias[2 * w + 1] = kUnitsOfScore * of_bits<BiasElement>(words[w] >> 16U);
      }
    } else if constexpr (kBias) {
      unsigned bits[kElements];
      load(a, batch, head, row, tile, bits);
#pragma unroll
      for (int e = 0; e < kElements; ++e) bias[e] = kUnitsOfScore * of_bits<BiasElement>(bits[e]);
    }
  }

 private:
  using Held = HeldWords<kHoldsBias ? kTiles : 1, kShort.square_pitch>;
  FULMEN_DEVICE static void load(const BackwardArguments& a, int batch, int head, int row, int tile,
                                 unsigned (&bits)[kElements]) {
    const int first = kScoreTile * tile;
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 asked = row + tile_row(slot),
                  i = kWholeTiles || asked < a.seqlen_q ? asked : a.seqlen_q - 1;
      load_columns<!kWholeTiles, kWholeBias>(at<BiasElement>(a.bias, batch, i, head) + first,
                                             static_cast<int>(a.seqlen_k) - first, slot, bits);
    }
  }
  Held held_;
};

// Which parts of dbias a workgroup gives, and where they go: as BiasSum in backward/parts/bias.h
// says, with the head of a sum over heads as the part's number.
class BiasPart {
 public:
  FULMEN_DEVICE BiasPart(const BackwardArguments& a, Int64 run, Int64 batch, Int64 head) {
    constexpr bool over_batches = !kBatchDbias;
    const bool over_heads = a.dbias.head == 0;
    const Int64 part =
        (over_batches ? run : 0) * (over_heads ? a.num_heads : 1) + (over_heads ? head : 0);
    batch_ = over_batches ? 0 : batch;
    head_ = over_heads ? 0 : head;
    rows_ = a.dbias.row == 0 ? kBlockM : a.seqlen_q;
    first_row_ =
        ((part * (over_batches ? 1 : a.batch) + batch_) * (over_heads ? 1 : a.num_heads) + head_) *
        rows_;
  }
  FULMEN_DEVICE void store(const BackwardArguments& a, int row, const Scores& sum) const {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 i = row + tile_row(slot);
      if (i >= rows_) continue;
      if (a.bias_partials == nullptr) {
        store_row<false>(const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, batch_, i, head_)),
                         slot, a.seqlen_k, sum);
      } else {
        store_row<kWholeTiles>(a.bias_partials + (first_row_ + i) * a.seqlen_k, slot, a.seqlen_k,
                               sum);
      }
    }
  }

 private:
  // kAligned: rows are multiples of 16 bytes, and so is where they begin.
  template <bool kAligned, class T>
  FULMEN_DEVICE static void store_row(T* row, int slot, Int64 seqlen_k, const Scores& sum) {
    T* lane = row + tile_column(0);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int column = kScoreTile * f + (tile_column(e) - tile_column(0));
        if (row_slot(e) != slot || !(kWholeTiles || tile_column(0) + column < seqlen_k)) continue;
        if constexpr (kAligned && kColumnRun > 1) {
          if (e % 2 == 0) {
            global_store(reinterpret_cast<Words<2>*>(lane + column),
                         Words<2>{{float_bits(sum[f][e]), float_bits(sum[f][e + 1])}});
          }
        } else {
          global_store(lane + column, from_float<T>(sum[f][e]));
        }
      }
    }
  }
  Int64 batch_, head_, rows_, first_row_;
};

}  // namespace fulmen::kernels
