// An instruction set's kernels, as pointers to functions.
#pragma once

#include <cstdint>

#include "cpu/tile/tile.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

struct ForwardCall;
struct PrefillRows;
struct DecodeTask;
struct BackwardCall;
struct KeyCodesTask;
enum class BackwardStep : int;

constexpr int kNumFloatTypes = 3;  // indexed by DType: fp32, fp16, bf16

// Prefill with q k^T in int8.
struct Int8Tasks {
  int codes = 0, unit_words = 1;  // of a word; a key has whole units of words
  void (*prefill_task[kNumFloatTypes])(const ForwardCall&, const PrefillRows&, float* scratch) = {};
  void (*code_keys[kNumFloatTypes])(const ForwardCall&, const KeyCodesTask&, float* scratch) = {};
  // Floats of a worker's scratch.
  int64_t (*scratch_floats)(const Problem&, int block_n, int tiles) = nullptr;
};

// An instruction set's kernels. A null entry: this set does not serve that dtype.
struct IsaTable {
  using PrefillTaskFunction = void (*)(const ForwardCall&, const PrefillRows&, float* scratch);
  const char* name = "";
  int lanes = 1;
  int group[kNumFloatTypes] = {1, 1, 1};  // elements of a word of the products' operands
  int block_n = 0;                        // key rows of a prefill tile; 0: the usual number
  PrefillTaskFunction prefill_task[kNumFloatTypes] = {};
  PrefillTaskFunction short_task[kNumFloatTypes] = {};
  // Floats of a worker's scratch for prefill_task and for short_task; null: tile_scratch and
  // short_scratch.
  int64_t (*scratch_floats)(const Problem&, int block_n, int tiles) = nullptr;
  int64_t (*short_floats)(const Problem&) = nullptr;
  void (*decode_task[kNumFloatTypes])(const ForwardCall&, const DecodeTask&, float* scratch) = {};
  void (*decode_combine[kNumFloatTypes])(const ForwardCall&, const DecodeTask&) = {};
  // Most slots (decode/call.h) of the KV heads that decode streams together.
  int decode_slots = kBlockM;
  int64_t (*decode_floats)(const ForwardCall&) = nullptr;  // as above; null: decode_scratch
  // One task of a step of the backward pass, for a worker.
  using BackwardFunction = void (*)(const BackwardCall&, BackwardStep, int64_t task, int worker,
                                    float* scratch);
  BackwardFunction backward[kNumFloatTypes] = {};
  // Floats of a worker's scratch for it; null: backward_scratch.
  int64_t (*backward_floats)(const Problem&, int block_n, int64_t held_keys) = nullptr;
  Int8Tasks int8 = {};
  // Compiled score functions: the struct of their arithmetic (null: none), and compiler flags.
  const char *numbers = nullptr, *flags = "";
  bool amx_tiles = false;  // its products are on matrix tiles, and have memory's sums as results
};

}  // namespace fulmen::cpu
