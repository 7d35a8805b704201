// Scratch of a prefill task with products in int8.
#pragma once

#include "cpu/tile/call.h"

namespace fulmen::cpu {

// What codes need of it beside prefill's parts.
struct Int8Places {
  int64_t rows;     // [kCodedKeys][dims]: rows as fp32, then as words
  int64_t mean;     // [dims]
  int64_t queries;  // QueryCodes: three of [tiles][kBlockM] and two of [kBlockM]
  int64_t dims;     // head_dim, rounded up to whole vectors
  int tiles;

  FULMEN_INLINE QueryCodes query_codes(float* scratch) const {
    const int64_t of_tiles = static_cast<int64_t>(tiles) * kBlockM;
    float* at = scratch + queries;
    return {at, at + of_tiles, at + 2 * of_tiles, at + 3 * of_tiles, at + 3 * of_tiles + kBlockM};
  }
};

FULMEN_INLINE Int8Places int8_places(const Problem& problem, int lanes, int tiles,
                                     ScratchCutter& cut) {
  Int8Places s{};
  s.dims = round_up(problem.head_dim, lanes);
  s.tiles = tiles;
  s.rows = cut.take(s.dims * kCodedKeys);
  s.mean = cut.take(s.dims);
  s.queries = cut.take((static_cast<int64_t>(tiles) * 3 + 2) * kBlockM);
  return s;
}

// Behind the parts of a prefill task.
template <class Parts>
struct WithInt8Places : Parts {
  Int8Places places;

  FULMEN_INLINE WithInt8Places(const Parts& parts, const Problem& problem, int lanes, int tiles)
      : Parts(parts) {
    ScratchCutter cut{parts.total};
    places = int8_places(problem, lanes, tiles, cut);
    this->total = cut.total;
  }
};

// lanes: of vectors of numbers.
template <class Product>
FULMEN_INLINE WithInt8Places<TileScratch> int8_scratch(const Problem& problem, int lanes,
                                                       int block_n, int tiles) {
  return {tile_scratch(problem, lanes, code_words<Product>(problem.head_dim), block_n, tiles, 0),
          problem, lanes, tiles};
}

}  // namespace fulmen::cpu
