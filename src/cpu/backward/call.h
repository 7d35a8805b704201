// What a backward kernel's tasks are told: plain data, shared by the code compiled for every
// instruction set.
#pragma once

#include <cstdint>

#include "algorithm/key_range.h"
#include "cpu/tile/call.h"
#include "cpu/tile/tile.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

constexpr int64_t kMaxHeldKeys = 512;  // most keys whose K, V, dK and dV are held at a time

// What has to be done, in this order; a step's tasks are independent of each other.
enum class BackwardStep : int {
  attend,       // a task: see BackwardCut
  reduce_dq,    // a task: a query tile of one head, whose parts from the splits of the keys are
                // added up
  reduce_bias,  // a task: a row of dbias, whose parts are added up
  sinks         // a task: the sink of one head
};

// How the gradients are cut into tasks: by the problem alone, so that results depend on nothing
// else.
//
// A unit is a KV head of a sequence with all of its query heads; it owns its dK and dV. The units
// that add to the same elements of dbias are a set, which `bias_parts` tasks share: each takes its
// units one after another and has a sum of its own. Where there are few units the keys are split
// besides; then each split has its own sum of dQ.
struct BackwardCut {
  int64_t sets = 0;         // of units that share elements of dbias; without such sums each unit is
                            // one
  int64_t set_units = 1;    // units of a set
  int64_t bias_parts = 1;   // tasks that share a set
  int64_t num_splits = 1;   // of the keys
  int64_t split_keys = 0;   // keys of a split: whole blocks of held keys
  int64_t held_keys = 0;    // whole key tiles
  int64_t run_units = 1;    // units that a task takes one after another where each set is one unit
  bool sums_batch = false;  // dbias is a sum over sequences, heads, queries
  bool sums_heads = false;
  bool sums_queries = false;
  bool any_sum() const { return sums_batch || sums_heads || sums_queries; }
  int64_t tasks() const { return (sets * bias_parts * num_splits + run_units - 1) / run_units; }
};

// Sums of dbias in fp32: [parts][batch or 1][heads or 1][queries or 1][seqlen_k].
struct BiasSums {
  float* data = nullptr;
  int64_t part = 0;  // floats from part to part; of the dims a sum runs over 0
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

// One call of run(), or one of its sequences where they differ in length.
struct BackwardCall {
  const Problem* problem = nullptr;
  const AttentionTensors* tensors = nullptr;
  algorithm::Band band;
  MaskSummary mask;
  TileFunction score_function, mask_function;  // the first with its derivatives
  // Sums of the gradients of functions' tensors, fp32: a slot for each part and split; null where
  // none is wanted. offsets: of each tensor in a slot.
  float* function_sums = nullptr;
  int64_t function_slot = 0;
  const int64_t* function_offsets = nullptr;
  ScoreScale scale;
  // log2(e) as the rounded factor in `scale` has it: the LSE has to be in the same units as scores
  // of kind plain.
  double lse_scale = 1;
  int block_n = 64;  // key rows of a tile
  BackwardCut cut;
  float* sums = nullptr;        // slots of QuerySums
  int64_t slot_floats = 0;      // of a slot
  int64_t unit_slots = 0;       // above 0: a slot for each unit and split; 0: one for each worker
  BiasSums bias_sums;           // null: dbias is written at once
  bool wants_dx = true;         // something else than dv is wanted
  bool direct_keys = false;     // dK and dV of a key tile come from one query tile
  bool direct_queries = false;  // dQ of a query tile comes from one key tile
  int64_t sink_batch = -1;      // the sequence whose rows are added to dsinks, which has the sums
                                // of those before it; -1: all are
  bool stream_output = false;   // the gradients are bigger than what caches keep
  bool fetch_into_l2 = false;   // rows that are needed next, not into L1
  int64_t fetch_heads = 0;      // whole sequences: KV heads whose rows are fetched together; 0: the
                                // next unit's
};

// LseNumbers, what is kept of a query tile's LSE, [kBlockM] each: -lse in base-2 units, -inf for
// rows without keys, whose probabilities are 0, and what its rounding left, since this error has
// the same sign in the whole row, for scores of kind plain; for the others what RowBase has.
inline constexpr int kMinusLog2Lse = 0, kLog2LseRest = 1, kMinusMax = 2, kMinusLog2Sum = 3,
                     kLseNumbers = 4;

// What is kept of each query row between blocks of held keys, in floats from a slot's start.
struct QuerySums {
  int64_t dq;     // [group][rows][stride]
  int64_t delta;  // [group][rows]
  int64_t bases;  // [group][2][rows]: the last two of these numbers, in natural units
  int64_t total;
  int64_t rows;    // seqlen_q, whole tiles
  int64_t stride;  // head_dim, whole vectors
};

FULMEN_INLINE QuerySums query_sums(const Problem& problem, int lanes) {
  QuerySums s{};
  s.rows = round_up(problem.seqlen_q, kBlockM);
  s.stride = round_up(problem.head_dim, lanes);
  ScratchCutter cut;
  s.dq = cut.take(problem.dq.present ? problem.group_size() * s.rows * s.stride : 0);
  s.delta = cut.take(problem.group_size() * s.rows);
  s.bases = cut.take(in_natural_units(problem) ? 2 * problem.group_size() * s.rows : 0);
  s.total = cut.total;
  return s;
}

// Scratch of an attend task, in floats from its start. "Words" of operands as in tile.h: fp32
// numbers, or pairs of bf16.
struct BackwardScratch {
  int64_t keys;       // [held][key_words]: K's rows as they are
  int64_t key_pairs;  // [held / group][key_stride]: the same with neighbouring rows interleaved;
                      // fp32: keys itself
  int64_t values;     // [held][value_words]
  int64_t dk;         // [held][key_stride]
  int64_t dv;         // [held][value_stride]
  int64_t outs;       // [words of head_dim_v][kBlockM]: O^T
  int64_t dbias;      // [block_n][kBlockM]: by the scores, fp32; 0 where the dscores are that
  int64_t additive;   // [block_n][kBlockM]
  int64_t slope;      // [block_n][kBlockM]: of the softcap and of score_mod
  int64_t functions;  // registers of score functions
  int64_t function_scores;  // [block_n][kBlockM]: what score_mod took
  int64_t dropout;          // [block_n][kBlockM]: 0 or 1 / (1 - p)
  // Buffers of the current query tile.
  int64_t query_rows;   // [kBlockM][key_words]
  int64_t query_pairs;  // [kBlockM / group][key_stride]; fp32: query_rows itself
  int64_t queries;      // [words of head_dim][kBlockM]: Q^T
  int64_t dout_rows;    // the same three of dout
  int64_t dout_pairs;
  int64_t douts;
  int64_t dq;             // [kBlockM][key_stride]
  int64_t probabilities;  // [block_n][kBlockM]
  int64_t dscores;        // [block_n][kBlockM]
  int64_t rows;           // LseNumbers, delta: [kBlockM] each
  int64_t total;
  int64_t key_words, value_words;    // floats of a row of words
  int64_t key_stride, value_stride;  // floats of a row of fp32 numbers, or of pairs of rows
};

FULMEN_INLINE BackwardScratch backward_scratch(const Problem& p, int lanes, int group, int block_n,
                                               int64_t held) {
  BackwardScratch s{};
  s.key_words = round_up((p.head_dim + group - 1) / group, lanes);
  s.value_words = round_up((p.head_dim_v + group - 1) / group, lanes);
  s.key_stride = round_up(p.head_dim, lanes);
  s.value_stride = round_up(p.head_dim_v, lanes);
  const bool pairs = group > 1;
  const int64_t tile = static_cast<int64_t>(block_n) * kBlockM;
  ScratchCutter cut;
  s.keys = cut.take(held * s.key_words);
  s.key_pairs = pairs ? cut.take(held / group * s.key_stride) : s.keys;
  s.values = cut.take(held * s.value_words);
  s.dk = cut.take(held * s.key_stride);
  s.dv = cut.take(held * s.value_stride);
  s.outs = cut.take(kBlockM * s.value_words);
  s.additive = cut.take(tile);
  s.slope = cut.take(p.softcap > 0.0F || has_score_function(p) ? tile : 0);
  s.functions = cut.take(function_floats(p));
  s.function_scores = cut.take(has_function_gradients(p) ? tile : 0);
  s.dropout = cut.take(p.dropout > 0 ? tile : 0);
  const bool own_dbias =
      (p.dbias.present && (pairs || p.softcap > 0.0F)) || has_function_gradients(p);
  s.dbias = own_dbias ? cut.take(tile) : 0;  // 0: the dscores are it
  s.query_rows = cut.take(kBlockM * s.key_words);
  s.query_pairs = pairs ? cut.take(kBlockM / group * s.key_stride) : s.query_rows;
  s.queries = cut.take(kBlockM * s.key_words);
  s.dout_rows = cut.take(kBlockM * s.value_words);
  s.dout_pairs = pairs ? cut.take(kBlockM / group * s.value_stride) : s.dout_rows;
  s.douts = cut.take(kBlockM * s.value_words);
  s.dq = cut.take(kBlockM * s.key_stride);
  s.probabilities = cut.take(tile);
  s.dscores = cut.take(tile);
  s.rows = cut.take(static_cast<int64_t>(kLseNumbers + 1) * kBlockM);
  s.total = cut.total;
  return s;
}

// One unit's rows and keys [key_begin, key_end).
struct BackwardUnit {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t part = 0;  // of the bias's sums
  int64_t split = 0;
};

// Unit `index` of a set.
FULMEN_INLINE BackwardUnit unit_of(const BackwardCall& call, int64_t set, int64_t index) {
  const BackwardCut& cut = call.cut;
  const int64_t heads = call.problem->num_kv_heads;
  BackwardUnit unit;
  if (cut.sums_batch && cut.sums_heads) {
    unit.batch = index / heads;
    unit.kv_head = index % heads;
  } else if (cut.sums_batch) {
    unit.batch = index;
    unit.kv_head = set;
  } else if (cut.sums_heads) {
    unit.batch = set;
    unit.kv_head = index;
  } else {
    unit.batch = set / heads;
    unit.kv_head = set % heads;
  }
  return unit;
}

}  // namespace fulmen::cpu
