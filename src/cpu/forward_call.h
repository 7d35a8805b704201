// What a CPU kernel's tasks are told: plain data, shared by the code compiled for every instruction set.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "cpu/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// One call of run(): the plan's constants and the caller's pointers.
struct ForwardCall {
  const Problem* problem = nullptr;
  const AttentionTensors* tensors = nullptr;
  algorithm::Band band;
  ScoreScale scale;
  int block_n = 64;           // key rows of a tile
  int tiles_per_task = 1;     // query tiles that share each packed key tile
  int64_t split_keys = 0;     // decode: keys of one split
  int num_splits = 1;         // decode
  float* partials = nullptr;  // decode: [batch * kv_heads][num_splits][rows][head_dim_v padded + 2]: output, max, sum of each split
};

// Rows [row_begin, row_end) of one head, at most tiles_per_task tiles.
struct TileTask {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  const TileTask* next = nullptr;  // what the same worker does afterwards, where that is known
};

// One split of the keys for all query rows that share a KV head.
struct DecodeTask {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int split = 0;
};

constexpr int kNumFloatTypes = 3;  // indexed by DType: fp32, fp16, bf16

// An instruction set's kernels. A null entry: this set does not serve that dtype.
struct IsaTable {
  using TileTaskFunction = void (*)(const ForwardCall&, const TileTask&, float* scratch);
  const char* name = "";
  int lanes = 1;
  int group[kNumFloatTypes] = {1, 1, 1};  // elements of a word of the products' operands
  int block_n = 0;                        // key rows of a prefill tile; 0: the usual number
  TileTaskFunction tile_task[kNumFloatTypes] = {};
  TileTaskFunction short_task[kNumFloatTypes] = {};
  // Floats of a worker's scratch for tile_task and short_task; null: tile_scratch and short_scratch below.
  int64_t (*scratch_floats)(const Problem&, int block_n, int tiles) = nullptr;
  void (*decode_task[kNumFloatTypes])(const ForwardCall&, const DecodeTask&, float* scratch) = {};
  void (*decode_combine[kNumFloatTypes])(const ForwardCall&, int64_t batch, int64_t kv_head) = {};
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
  int64_t queries;   // [tiles][words of head_dim][kBlockM]
  int64_t keys;      // [block_n][key_stride]
  int64_t values;    // [block_n][value_stride]
  int64_t scores;    // [block_n][kBlockM]
  int64_t additive;  // [block_n][kBlockM]
  int64_t output;    // [tiles][kBlockM][value_stride]
  int64_t state;     // [tiles] SoftmaxState, then a tile's maxima
  int64_t total;
  int64_t query_tile;  // floats of one tile of queries
  int64_t output_tile;
  int64_t key_stride;    // floats a key row
  int64_t value_stride;  // floats a value row: head_dim_v rounded up to whole vectors
};

FULMEN_INLINE TileScratch tile_scratch(const Problem& problem, int lanes, int group, int block_n, int tiles) {
  TileScratch s{};
  const int64_t words = (problem.head_dim + group - 1) / group;
  s.key_stride = round_up(words, lanes);
  s.value_stride = round_up(problem.head_dim_v, lanes);
  s.query_tile = words * kBlockM;
  s.output_tile = s.value_stride * kBlockM;
  ScratchCutter cut;
  s.queries = cut.take(s.query_tile * tiles);
  s.keys = cut.take(s.key_stride * block_n);
  s.values = cut.take(s.value_stride * block_n);
  s.scores = cut.take(static_cast<int64_t>(block_n) * kBlockM);
  s.additive = cut.take(static_cast<int64_t>(block_n) * kBlockM);
  s.output = cut.take(s.output_tile * tiles);
  s.state = cut.take(static_cast<int64_t>(sizeof(SoftmaxState) / sizeof(float)) * tiles + kBlockM);
  s.total = cut.total;
  return s;
}

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

FULMEN_INLINE ShortScratch short_scratch(const Problem& problem, int lanes, int group) {
  ShortScratch s{};
  const int64_t words = (problem.head_dim + group - 1) / group;
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

constexpr int kDecodeKeys = 64;     // keys of a decode block
constexpr int kMaxDecodeRows = 16;  // most query rows that share a KV head in the decode kernel

FULMEN_INLINE int decode_rows(const Problem& problem) { return static_cast<int>(problem.group_size() * problem.seqlen_q); }

// Scratch of a decode task, in floats from its start.
struct DecodeScratch {
  int64_t queries;  // [padded_rows][query_stride], fp32
  int64_t scores;   // [padded_rows][kBlockM]
  int64_t rescale;  // [padded_rows]
  int64_t total;
  int64_t padded_rows;  // whole quads
  int64_t query_stride;
  int64_t value_stride;
  int64_t partial;  // floats of a split's result: output [rows][value_stride], maxima [padded_rows], sums [padded_rows]
};

FULMEN_INLINE DecodeScratch decode_scratch(const Problem& problem, int lanes) {
  DecodeScratch s{};
  s.padded_rows = round_up(decode_rows(problem), 4);
  s.query_stride = round_up(problem.head_dim, lanes);
  s.value_stride = round_up(problem.head_dim_v, lanes);
  ScratchCutter cut;
  s.queries = cut.take(s.padded_rows * s.query_stride);
  s.scores = cut.take(s.padded_rows * kBlockM);
  s.rescale = cut.take(s.padded_rows);
  s.total = cut.total;
  s.partial = round_up(decode_rows(problem) * s.value_stride + 2 * s.padded_rows, 16);
  return s;
}

FULMEN_INLINE int64_t decode_partial(const ForwardCall& call, const DecodeScratch& scratch, const DecodeTask& task) {
  return ((task.batch * call.problem->num_kv_heads + task.kv_head) * call.num_splits + task.split) * scratch.partial;
}

}  // namespace fulmen::cpu
