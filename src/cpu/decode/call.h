// What a decode task is told, and its scratch.
#pragma once

#include <cstdint>

#include "cpu/tile/call.h"

namespace fulmen::cpu {

// One split of the keys for all query rows of a few KV heads.
struct DecodeTask {
  int64_t batch = 0;
  int64_t kv_head = 0;  // the first
  int kv_heads = 0;
  int split = 0;
  float* partials = nullptr;  // [num_splits] results of these heads, each a DecodeScratch::partial
};

constexpr int kDecodeScores = 4096;  // of a decode block: few enough to stay in L1
constexpr int kMaxDecodeKeys = 512;  // of a decode block
// Floats from a slot's scores to the next one's: not a power of two, for the caches.
constexpr int kDecodeRow = kMaxDecodeKeys + 16;
constexpr int kMaxDecodeRows = 64;   // most query rows that share a KV head in the decode kernel
constexpr int kFewDecodeRows = 8;    // of a KV head; with more the products are those of tiles
constexpr int kTileDecodeKeys = 64;  // most keys of a block then
// Of a block's keys or values of one head in fp32, where they are stored otherwise: 32 KB.
constexpr int kUnpackedFloats = 8192;

// Query rows that share a KV head, and below the slots they take: one, whole quads, or whole
// matrix tiles where there are more.
FULMEN_INLINE int decode_rows(const Problem& problem) {
  return static_cast<int>(problem.group_size() * problem.seqlen_q);
}
// Whether what is stored becomes numbers in registers (cpu/decode/stored.h): rows of whole groups
// of them, and no more query rows than share these registers.
FULMEN_INLINE bool reads_stored(const Problem& problem) {
  constexpr int kQuad = 4;
  return problem.quantized_kv() && decode_rows(problem) <= kQuad &&
         problem.head_dim % kBlockNumbers == 0 && problem.head_dim_v % kBlockNumbers == 0;
}
FULMEN_INLINE int decode_slots(const Problem& problem) {
  const int rows = decode_rows(problem);
  if (rows == 1 && reads_stored(problem)) return 1;
  return static_cast<int>(round_up(rows, rows > 16 ? 16 : 4));
}

// Scratch of a decode task, in floats from its start. Row r of the task's KV head h has slot
// h * decode_slots + r.
struct DecodeScratch {
  int64_t queries;   // [slots][query_stride] words
  int64_t scores;    // [slots; of one KV head with matrix tiles][kDecodeRow], block_keys of which
                     // are used
  int64_t unpacked;  // [block_keys][query_stride or value_stride]: keys or values of one head in
                     // fp32
  int64_t total;
  int64_t slots;
  int64_t query_stride;
  int64_t value_stride;
  int block_keys;  // keys of a block: decode_block_keys
  // A split's result: output [slots][value_stride], then [3][state_stride]: the slots' maxima, sums
  // and a factor of their outputs.
  int64_t state;
  int64_t state_stride;
  int64_t partial;
};

// As many keys as scores in L1 leave room for, since memory is the faster the longer K and V are
// read in turn; but few where a block is fetched during the one before it: so little lies between
// the streams' lines and their use (docs/lab/cpu_decode.md).
FULMEN_INLINE int decode_block_keys(const ForwardCall& call, int64_t slots) {
  const Problem& p = *call.problem;
  int64_t keys = kDecodeScores / (slots > 0 ? slots : 1);
  if (call.block_bytes > 0) {
    const int64_t row_bytes =
        (p.head_dim + p.head_dim_v) * call.heads_per_task * (p.dtype == DType::fp32 ? 4 : 2);
    if (row_bytes > 0 && keys > call.block_bytes / row_bytes) keys = call.block_bytes / row_bytes;
  }
  if (p.quantized_kv()) {
    const int64_t dim = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (keys > kUnpackedFloats / dim) keys = kUnpackedFloats / dim;
  }
  keys = keys / call.block_multiple * call.block_multiple;
  return static_cast<int>(keys < call.block_multiple ? call.block_multiple
                          : keys > kMaxDecodeKeys    ? kMaxDecodeKeys
                                                     : keys);
}

FULMEN_INLINE DecodeScratch decode_scratch(const ForwardCall& call, int lanes, int group) {
  const Problem& problem = *call.problem;
  DecodeScratch s{};
  // The softmax takes four at a time.
  s.slots = round_up(static_cast<int64_t>(decode_slots(problem)) * call.heads_per_task, 4);
  s.query_stride = round_up((problem.head_dim + group - 1) / group, lanes);
  s.value_stride = round_up(problem.head_dim_v, static_cast<int64_t>(lanes) * group);
  ScratchCutter cut;
  s.queries = cut.take(s.slots * s.query_stride);
  s.block_keys = decode_block_keys(call, s.slots);
  s.scores = cut.take(s.slots * kDecodeRow);
  s.unpacked = cut.take(
      problem.quantized_kv()
          ? s.block_keys * (s.query_stride > s.value_stride ? s.query_stride : s.value_stride)
          : 0);
  s.total = cut.total;
  s.state = round_up(s.slots * s.value_stride, 16);
  s.state_stride = round_up(s.slots, 16);
  s.partial = s.state + 3 * s.state_stride;
  return s;
}

// Scratch of a decode task of more than kFewDecodeRows rows a KV head, whose slots are no more than
// kBlockM, in floats from its start: that above, then what the tiles take. A sequence of fewer
// queries than the longest one's takes no more.
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
  s.packed =
      cut.take((rows.query_stride > rows.value_stride ? rows.query_stride : rows.value_stride) *
               kTileDecodeKeys);
  s.total = cut.total;
  return s;
}

}  // namespace fulmen::cpu
