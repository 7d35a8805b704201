// AMD: in registers.
#pragma once

#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

template <int kTiles, int kPitch>
class HeldWords {
 public:
  static constexpr int kWords = kElements / 2;
  // kCopiesToLds is false.
  FULMEN_DEVICE static void copy(int /*at*/, const BiasElement* /*first*/, Int64 /*row*/) {}
  FULMEN_DEVICE void keep(int /*at*/, int /*row*/, int tile, const unsigned (&words)[kWords]) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) word_[tile][w] = words[w];
  }
  // Converted again at each use: recompute() keeps the converted floats out of registers from batch
  // to batch.
  FULMEN_DEVICE void read(unsigned /*lane*/, int /*at*/, int /*row*/, int tile,
                          unsigned (&words)[kWords]) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      words[w] = static_cast<unsigned>(recompute(static_cast<int>(word_[tile][w])));
  }

 private:
  unsigned word_[kTiles][kWords];
};

}  // namespace fulmen::kernels
