// Scratch of a task of short sequences, which is told what a prefill task is.
#pragma once

#include <cstdint>

#include "cpu/tile/call.h"

namespace fulmen::cpu {

// Scratch of a short-sequence task, in floats from its start.
struct ShortScratch {
  int64_t keys;      // [planes][words of head_dim][kBlockM]: K^T, kBlockM keys a plane
  int64_t queries;   // [kBlockM][query_stride]: where Q cannot be read in place
  int64_t values;    // [planes * kBlockM][value_stride]
  int64_t scores;    // [planes][kBlockM rows][kBlockM keys]
  int64_t output;    // [kBlockM][value_stride]
  int64_t lane_max;  // [planes][kBlockM][lanes]
  int64_t rows;      // max, sum and factor: 3 x [kBlockM]
  int64_t total;
  int64_t key_plane;  // floats of one plane of keys
  int64_t query_stride;
  int64_t value_stride;
};

// Words of head_dim in multiples of word_tile.
FULMEN_INLINE ShortScratch short_scratch(const Problem& problem, int lanes, int group,
                                         int word_tile = 1) {
  ShortScratch s{};
  const int64_t words = round_up((problem.head_dim + group - 1) / group, word_tile);
  const int64_t planes = (problem.seqlen_k + kBlockM - 1) / kBlockM;
  s.key_plane = words * kBlockM;
  s.query_stride = round_up(words, lanes);
  s.value_stride = round_up(problem.head_dim_v, lanes);
  ScratchCutter cut;
  s.keys = cut.take(s.key_plane * planes);
  s.queries = cut.take(s.query_stride * kBlockM);
  s.values = cut.take(s.value_stride * planes * kBlockM);
  s.scores = cut.take(planes * kBlockM * kBlockM);
  s.output = cut.take(s.value_stride * kBlockM);
  s.lane_max = cut.take(planes * kBlockM * lanes);
  s.rows = cut.take(static_cast<int64_t>(3) * kBlockM);
  s.total = cut.total;
  return s;
}

}  // namespace fulmen::cpu
