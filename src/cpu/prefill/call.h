// What a CPU kernel's tasks are told: plain data, shared by the code compiled for every instruction set.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "cpu/tile/key_rows.h"
#include "cpu/tile/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

// One call of run(), or one of its sequences where they differ in length: the plan's constants and the caller's pointers.
struct ForwardCall {
  const Problem* problem = nullptr;
  const AttentionTensors* tensors = nullptr;
  algorithm::Band band;
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
  int64_t block_bytes = 0;     // decode: of a block of keys and values, fetched into L2 during the one before it; 0: no such block
  int block_multiple = 64;     // decode: a block's keys are a multiple of it
  PageTable pages;             // of the sequence at hand, where keys and values are paged
};

// Rows [row_begin, row_end) of one head, at most tiles_per_task tiles.
struct PrefillRows {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  const PrefillRows* next = nullptr;  // what the same worker does afterwards, where that is known
};

// One split of the keys for all query rows of a few KV heads.
struct DecodeTask {
  int64_t batch = 0;
  int64_t kv_head = 0;  // the first
  int kv_heads = 0;
  int split = 0;
  float* partials = nullptr;  // [num_splits] results of these heads, each a DecodeScratch::partial
};

struct BackwardCall;
enum class BackwardStep : int;

constexpr int kDecodeScores = 4096;  // of a decode block: few enough to stay in L1
constexpr int kMaxDecodeKeys = 512;  // of a decode block
constexpr int kDecodeRow =
    kMaxDecodeKeys + 16;             // floats from a slot's scores to the next one's: not a power of two, for the caches
constexpr int kMaxDecodeRows = 64;   // most query rows that share a KV head in the decode kernel
constexpr int kFewDecodeRows = 8;    // of a KV head; with more the products are those of tiles
constexpr int kTileDecodeKeys = 64;  // most keys of a block then

constexpr int kNumFloatTypes = 3;  // indexed by DType: fp32, fp16, bf16

// An instruction set's kernels. A null entry: this set does not serve that dtype.
struct IsaTable {
  using PrefillTaskFunction = void (*)(const ForwardCall&, const PrefillRows&, float* scratch);
  const char* name = "";
  int lanes = 1;
  int group[kNumFloatTypes] = {1, 1, 1};  // elements of a word of the products' operands
  int block_n = 0;                        // key rows of a prefill tile; 0: the usual number
  PrefillTaskFunction prefill_task[kNumFloatTypes] = {};
  PrefillTaskFunction short_task[kNumFloatTypes] = {};
  // Floats of a worker's scratch for prefill_task and for short_task; null: tile_scratch and short_scratch below.
  int64_t (*scratch_floats)(const Problem&, int block_n, int tiles) = nullptr;
  int64_t (*short_floats)(const Problem&) = nullptr;
  void (*decode_task[kNumFloatTypes])(const ForwardCall&, const DecodeTask&, float* scratch) = {};
  void (*decode_combine[kNumFloatTypes])(const ForwardCall&, const DecodeTask&) = {};
  int decode_slots = kBlockM;                              // most slots (below) of the KV heads that decode streams together
  int64_t (*decode_floats)(const ForwardCall&) = nullptr;  // as above; null: decode_scratch below
  // One task of a step of the backward pass, for a worker.
  using BackwardFunction = void (*)(const BackwardCall&, BackwardStep, int64_t task, int worker, float* scratch);
  BackwardFunction backward[kNumFloatTypes] = {};
  // Floats of a worker's scratch for it; null: backward_scratch in cpu/backward/call.h.
  int64_t (*backward_floats)(const Problem&, int block_n, int64_t held_keys) = nullptr;
  bool amx_tiles = false;  // its products are on matrix tiles, and have memory's sums as results
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
  int64_t dropout;   // [block_n][kBlockM]: factors of the probabilities
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
  s.dropout = cut.take(problem.dropout > 0 ? static_cast<int64_t>(block_n) * kBlockM : 0);
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

// Words of head_dim in multiples of word_tile.
FULMEN_INLINE ShortScratch short_scratch(const Problem& problem, int lanes, int group, int word_tile = 1) {
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

// Query rows that share a KV head, and the lanes they take: whole quads, or whole matrix tiles where there are more.
FULMEN_INLINE int decode_rows(const Problem& problem) { return static_cast<int>(problem.group_size() * problem.seqlen_q); }
FULMEN_INLINE int decode_slots(const Problem& problem) {
  const int rows = decode_rows(problem);
  return static_cast<int>(round_up(rows, rows > 16 ? 16 : 4));
}

// Scratch of a decode task, in floats from its start. Row r of the task's KV head h has slot h * decode_slots + r.
struct DecodeScratch {
  int64_t queries;  // [slots][query_stride] words
  int64_t scores;   // [slots; of one KV head with matrix tiles][kDecodeRow], block_keys of which are used
  int64_t total;
  int64_t slots;
  int64_t query_stride;
  int64_t value_stride;
  int block_keys;  // keys of a block: decode_block_keys
  // A split's result: output [slots][value_stride], then [3][state_stride]: the slots' maxima, sums and a factor of their outputs.
  int64_t state;
  int64_t state_stride;
  int64_t partial;
};

// As many keys as scores in L1 leave room for: memory is the faster, the longer the stretches of K and of V that are read
// alternately. But few where a block is fetched during the one before it: so little lies between the streams' lines and their use
// (docs/lab/cpu_decode.md).
FULMEN_INLINE int decode_block_keys(const ForwardCall& call, int64_t slots) {
  const Problem& p = *call.problem;
  int64_t keys = kDecodeScores / (slots > 0 ? slots : 1);
  if (call.block_bytes > 0) {
    const int64_t row_bytes = (p.head_dim + p.head_dim_v) * call.heads_per_task * (p.dtype == DType::fp32 ? 4 : 2);
    if (row_bytes > 0 && keys > call.block_bytes / row_bytes) keys = call.block_bytes / row_bytes;
  }
  keys = keys / call.block_multiple * call.block_multiple;
  return static_cast<int>(keys < call.block_multiple ? call.block_multiple : keys > kMaxDecodeKeys ? kMaxDecodeKeys : keys);
}

FULMEN_INLINE DecodeScratch decode_scratch(const ForwardCall& call, int lanes, int group) {
  const Problem& problem = *call.problem;
  DecodeScratch s{};
  s.slots = static_cast<int64_t>(decode_slots(problem)) * call.heads_per_task;
  s.query_stride = round_up((problem.head_dim + group - 1) / group, lanes);
  s.value_stride = round_up(problem.head_dim_v, static_cast<int64_t>(lanes) * group);
  ScratchCutter cut;
  s.queries = cut.take(s.slots * s.query_stride);
  s.block_keys = decode_block_keys(call, s.slots);
  s.scores = cut.take(s.slots * kDecodeRow);
  s.total = cut.total;
  s.state = round_up(s.slots * s.value_stride, 16);
  s.state_stride = round_up(s.slots, 16);
  s.partial = s.state + 3 * s.state_stride;
  return s;
}

// Scratch of a decode task of more than kFewDecodeRows rows a KV head, whose slots are no more than kBlockM, in floats from its
// start: that above, then what the tiles take. A sequence of fewer queries than the longest one's takes no more.
struct DecodeTileScratch {
  int64_t queries;  // [query_stride words][kBlockM]: Q^T
  int64_t scores;   // [kTileDecodeKeys][kBlockM]: S^T of a head
  int64_t packed;   // a block's keys or values of a head
  int64_t total;
};

FULMEN_INLINE DecodeTileScratch decode_tile_scratch(const ForwardCall& call, int lanes, int group) {
  const DecodeScratch rows = decode_scratch(call, lanes, group);
  DecodeTileScratch s{};
  ScratchCutter cut{rows.total};
  s.queries = cut.take(rows.query_stride * kBlockM);
  s.scores = cut.take(static_cast<int64_t>(kTileDecodeKeys) * kBlockM);
  s.packed = cut.take((rows.query_stride > rows.value_stride ? rows.query_stride : rows.value_stride) * kTileDecodeKeys);
  s.total = cut.total;
  return s;
}

}  // namespace fulmen::cpu
