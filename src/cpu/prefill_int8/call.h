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

struct Int8Scratch : TileScratch {
  Int8Places places;
};

// lanes: of vectors; codes: of a word.
FULMEN_INLINE Int8Scratch int8_scratch(const Problem& problem, int lanes, int codes, int block_n,
                                       int tiles) {
  Int8Scratch s{};
  const int64_t words = (problem.head_dim + codes - 1) / codes;
  s.value_stride = round_up(problem.head_dim_v, lanes);
  s.query_tile = words * kBlockM;
  s.output_tile = s.value_stride * kBlockM;
  ScratchCutter cut;
  s.places = int8_places(problem, lanes, tiles, cut);
  s.queries = cut.take(s.query_tile * tiles);
  s.values = cut.take(s.value_stride * block_n);
  s.scores = cut.take(static_cast<int64_t>(block_n) * kBlockM);
  cut_rows(problem, block_n, tiles, cut, s);
  return s;
}

}  // namespace fulmen::cpu
