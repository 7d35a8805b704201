// What a forward task is told: plain data, shared by the code compiled for every instruction set.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "cpu/tile/key_codes.h"
#include "cpu/tile/key_rows.h"
#include "cpu/tile/mask_summary.h"
#include "cpu/tile/tile.h"
#include "cpu/tile/tile_function.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// One call of run(), or one of its sequences where they differ in length: the plan's constants and
// the caller's pointers.
struct ForwardCall {
  const Problem* problem = nullptr;
  const AttentionTensors* tensors = nullptr;
  algorithm::Band band;
  MaskSummary mask;  // prefill
  TileFunction score_function, mask_function;
  ScoreScale scale;
  int block_n = 64;            // key rows of a tile
  int tiles_per_task = 1;      // query tiles that share each packed key tile
  bool stream_output = false;  // short: the call moves more than what caches keep
  bool fetch_batches = false;  // short: a batch element is fetched during the one before it
  bool fetch_into_l2 = false;  // and not through L1
  int64_t split_keys = 0;      // decode: keys of one split
  int num_splits = 1;          // decode
  int heads_per_task = 1;      // decode: KV heads that are streamed together
  int64_t partial_stride = 0;  // decode: floats from one split's result to the next one's
  int64_t block_bytes = 0;     // decode: of a block of keys and values, fetched into L2 during the
                               // one before it; 0: no such block
  int block_multiple = 64;     // decode: a block's keys are a multiple of it
  PageTable pages;             // of the sequence at hand, where keys and values are paged
  KeyCodes codes;              // prefill_int8
};

// Rows [row_begin, row_end) of one head, at most tiles_per_task tiles.
struct PrefillRows {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  const PrefillRows* next = nullptr;  // what the same worker does afterwards, where that is known
};

// Cuts a worker's scratch into parts that begin on cache lines.
struct ScratchCutter {
  int64_t total = 0;
  FULMEN_INLINE int64_t take(int64_t floats) {
    const int64_t here = total;
    total += round_up(floats, 16);
    return here;
  }
};

// Scratch of a tile task, in floats from its start; every part begins on a cache line.
struct TileScratch {
  int64_t queries;    // [tiles][words of head_dim][kBlockM]
  int64_t keys;       // [block_n][key_stride]
  int64_t values;     // [block_n][value_stride]
  int64_t scores;     // [block_n][kBlockM]
  int64_t additive;   // [block_n][kBlockM]
  int64_t dropout;    // [block_n][kBlockM]: factors of the probabilities
  int64_t functions;  // registers of score functions
  int64_t output;     // [tiles][kBlockM][value_stride]
  int64_t state;      // [tiles] SoftmaxState, then a tile's maxima
  int64_t total;
  int64_t query_tile;  // floats of one tile of queries
  int64_t output_tile;
  int64_t key_stride;    // floats a key row
  int64_t value_stride;  // floats a value row: head_dim_v rounded up to whole vectors
};

// The parts of a tile task's scratch that are the same by vectors and by matrix tiles: they come
// last.
FULMEN_INLINE void cut_rows(const Problem& problem, int block_n, int tiles, ScratchCutter& cut,
                            TileScratch& s) {
  s.additive = cut.take(static_cast<int64_t>(block_n) * kBlockM);
  s.dropout = cut.take(problem.dropout > 0 ? static_cast<int64_t>(block_n) * kBlockM : 0);
  s.functions = cut.take(function_floats(problem));
  s.output = cut.take(s.output_tile * tiles);
  s.state = cut.take(static_cast<int64_t>(sizeof(SoftmaxState) / sizeof(float)) * tiles + kBlockM);
  s.total = cut.total;
}

// words: of a row of q; packed_keys: of a tile, 0 where products read keys from elsewhere.
FULMEN_INLINE TileScratch tile_scratch(const Problem& problem, int lanes, int64_t words,
                                       int block_n, int tiles, int packed_keys) {
  TileScratch s{};
  s.key_stride = round_up(words, lanes);
  s.value_stride = round_up(problem.head_dim_v, lanes);
  s.query_tile = words * kBlockM;
  s.output_tile = s.value_stride * kBlockM;
  ScratchCutter cut;
  s.queries = cut.take(s.query_tile * tiles);
  s.keys = cut.take(s.key_stride * packed_keys);
  s.values = cut.take(s.value_stride * block_n);
  s.scores = cut.take(static_cast<int64_t>(block_n) * kBlockM);
  cut_rows(problem, block_n, tiles, cut, s);
  return s;
}
FULMEN_INLINE TileScratch tile_scratch(const Problem& problem, int lanes, int group, int block_n,
                                       int tiles) {
  return tile_scratch(problem, lanes, (problem.head_dim + group - 1) / group, block_n, tiles,
                      block_n);
}

}  // namespace fulmen::cpu
