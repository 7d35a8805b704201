// Forward without matrix instructions: any dtype (computed in fp32), any head_dim, any chip. A
// workgroup of 16 x 16 lanes owns kBlockM query rows of one head; lane (y, x) computes rows y + 16
// r and keys, or dims, x + 16 c, from tiles in LDS:
//
//   for each key tile:   S = Q K^T   by chunks of kChunk dims
//                        P = softmax step of S, to LDS
//                        O += P V    by chunks of kChunk dims of V
#include "core/dropout.h"
#include "core/scores.h"
#include "tile/square.h"

namespace fulmen::kernels {

constexpr int kRows = kBlockM / kSide;
constexpr int kKeys = kBlockN / kSide;
constexpr int kChunks = (kHeadDim + kChunk - 1) / kChunk;
constexpr int kChunksV = (kHeadDimV + kChunk - 1) / kChunk;
static_assert(kWorkgroup == kSide * kSide, "portable: lanes form a square of 16 x 16");
static_assert(kBlockM % kSide == 0 && kBlockN % kSide == 0, "portable: tiles are multiples of 16");

// LDS, in floats.
constexpr int kQueriesAt = 0;  // [kChunk][kPitch], transposed
// [kChunk][kPitch], transposed; then V [kBlockN][kChunk + 1]
constexpr int kKeysAt = kQueriesAt + kChunk * kPitch;
constexpr int kProbabilitiesAt = kKeysAt + (kChunk + 1) * kPitch;  // [kBlockM][kBlockN + 1]
constexpr int kLdsFloats = kProbabilitiesAt + kBlockM * (kBlockN + 1);
static_assert(kLdsBytes == 4 * kLdsFloats,
              "portable: the host reserves the LDS that the tiles need");

FULMEN_DEVICE float over_row(float x, bool is_max) {
#pragma unroll
  for (int mask = 1; mask < kSide; mask *= 2) {
    const float other = shuffle_xor(x, mask);
    x = is_max ? larger(x, other) : x + other;
  }
  return x;
}

// What a lane keeps of its rows y + 16 r: the softmax's state, and dims x + 16 c of every chunk of
// O.
struct LaneRows {
  float max[kRows], sum[kRows], out[kRows][kChunksV][kChunkDims];
};
using LaneScores = float[kRows][kKeys];

// Rows [row_begin, row_end) of a head.
struct PortableTask {
  const ForwardArguments& a;
  Int64 batch, head, row_begin, row_end;
  algorithm::KeyRange keys;
  int x, y;

  // S = Q K^T of the tile's keys.
  FULMEN_DEVICE void multiply_keys(const Element* q, const KvElement* k, Int64 first_key,
                                   LaneScores& score) const {
    const auto key_at = [&](Int64 j) { return key_row(a, k, j); };
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      barrier();
      stage<kBlockM>(q, a.q.row, RowRange{row_begin, row_end}, chunk * kChunk, a.head_dim,
                     kQueriesAt, 1, kPitch);
      stage_rows<kBlockN>(key_at, RowRange{first_key, keys.end}, chunk * kChunk, a.head_dim,
                          kKeysAt, 1, kPitch);
      barrier();
      for (int d = 0; d < kChunk; ++d) {
        float query[kRows], key[kKeys];
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          query[r] = lds_float(kQueriesAt + d * kPitch + y + kSide * r);
#pragma unroll
        for (int c = 0; c < kKeys; ++c) key[c] = lds_float(kKeysAt + d * kPitch + x + kSide * c);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < kKeys; ++c) score[r][c] += query[r] * key[c];
        }
      }
    }
  }

  // Masks row r of S and leaves its probabilities in LDS.
  FULMEN_DEVICE void exponentiate(int r, Int64 first_key, DropoutMask& dropout, LaneScores& score,
                                  LaneRows& rows) const {
    const Int64 i = row_begin + y + kSide * r;
    const ScoreRow modifiers = ScoreRow::of(a, batch, head, i < row_end ? i : row_end - 1);
    float tile_max = -kInfinity;
#pragma unroll
    for (int c = 0; c < kKeys; ++c) {
      const Int64 j = first_key + x + kSide * c;
      const bool attended = i < row_end && in_band(a, i, j);
      float bias = 0;
      if constexpr (kBias)
        bias = attended ? kUnitsOfScore * to_float(global_load(modifiers.bias + j)) : 0.0F;
      bool kept = attended;
      if constexpr (kKeepMask) kept = attended && global_load(modifiers.keep_mask + j) != 0;
      score[r][c] =
          kept ? modifiers.finish(a, score[r][c], bias, modifiers.distance(j)) : -kInfinity;
      tile_max = larger(tile_max, score[r][c]);
    }
    const float new_max = larger(rows.max[r], over_row(tile_max, true));
    const float offset = new_max == -kInfinity ? 0.0F : new_max;
    const float rescale = exp2(kLog2OfUnit * (rows.max[r] - offset));
    float tile_sum = 0;
#pragma unroll
    for (int c = 0; c < kKeys; ++c) {
      const float p = exp2(kLog2OfUnit * (score[r][c] - offset));
      tile_sum += p;
      const float weight = dropout.keeps(i, first_key + x + kSide * c) ? p : 0.0F;
      set_lds_float(kProbabilitiesAt + (y + kSide * r) * (kBlockN + 1) + x + kSide * c, weight);
    }
    rows.max[r] = new_max;
    rows.sum[r] = rows.sum[r] * rescale + over_row(tile_sum, false);
#pragma unroll
    for (int chunk = 0; chunk < kChunksV; ++chunk) {
#pragma unroll
      for (int c = 0; c < kChunkDims; ++c) rows.out[r][chunk][c] *= rescale;
    }
  }

  // O += P V, for a chunk of dims.
  FULMEN_DEVICE void multiply_values(const KvElement* v, Int64 first_key, int chunk,
                                     LaneRows& rows) const {
    barrier();
    for (int index = thread_id(); index < kBlockN * kChunk; index += kWorkgroup) {
      const int row = index / kChunk, d = index % kChunk;
      const Int64 j = first_key + row;
      float value = 0;
      if (j < keys.end && chunk * kChunk + d < a.head_dim_v &&
          any_row_keeps(a, batch, head, row_begin, row_end, j)) {
        value = to_float(global_load(value_row(a, v, j) + chunk * kChunk + d));
      }
      set_lds_float(kKeysAt + row * (kChunk + 1) + d, value);
    }
    barrier();
    for (int j = 0; j < kBlockN; ++j) {
      float p[kRows], value[kChunkDims];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        p[r] = lds_float(kProbabilitiesAt + (y + kSide * r) * (kBlockN + 1) + j);
#pragma unroll
      for (int c = 0; c < kChunkDims; ++c)
        value[c] = lds_float(kKeysAt + j * (kChunk + 1) + x + kSide * c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kChunkDims; ++c) rows.out[r][chunk][c] += p[r] * value[c];
      }
    }
  }

  FULMEN_DEVICE void store(const LaneRows& rows) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Int64 i = row_begin + y + kSide * r;
      if (i >= row_end) continue;
      const RowEnd end = end_row(a, head, rows.max[r], rows.sum[r]);
      auto* row = const_cast<Element*>(at<Element>(a.out, batch, i, head));
#pragma unroll
      for (int chunk = 0; chunk < kChunksV; ++chunk) {
#pragma unroll
        for (int c = 0; c < kChunkDims; ++c) {
          const int d = chunk * kChunk + x + kSide * c;
          if (d < a.head_dim_v)
            global_store(row + d, from_float<Element>(rows.out[r][chunk][c] * end.output_factor));
        }
      }
      if (a.lse != nullptr && x == 0)
        global_store(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row, end.lse);
    }
  }
};

FULMEN_DEVICE void portable(const ForwardArguments& call) {
  const int x = lane_column(), y = lane_row();
  const Int64 id = workgroup_id();
  // The last rows attend most keys under a causal mask: they start first.
  const Int64 tile = call.row_tiles - 1 - id % call.row_tiles;
  const Int64 head = id / call.row_tiles % call.num_heads,
              batch = id / call.row_tiles / call.num_heads;
  const ForwardArguments& a = sequence_of(call, batch);
  const Int64 kv_head = head / a.group_size;
  const Int64 row_begin = tile * kBlockM;
  if (kVariable && row_begin >= a.seqlen_q) return;
  const Int64 row_end = row_begin + kBlockM < a.seqlen_q ? row_begin + kBlockM : a.seqlen_q;
  const algorithm::KeyRange keys = band_of(a).any(row_begin, row_end);
  const auto* q = at<Element>(a.q, batch, 0, head);
  const auto* k = head_rows(a.k, batch, kv_head);
  const auto* v = head_rows(a.v, batch, kv_head);
  const PortableTask task{a, batch, head, row_begin, row_end, keys, x, y};

  DropoutMask dropout(a, batch, head);
  LaneRows rows = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows.max[r] = -kInfinity;
  for (Int64 first_key = keys.begin; first_key < keys.end; first_key += kBlockN) {
    LaneScores score = {};
    task.multiply_keys(q, k, first_key, score);
#pragma unroll
    for (int r = 0; r < kRows; ++r) task.exponentiate(r, first_key, dropout, score, rows);
#pragma unroll
    for (int chunk = 0; chunk < kChunksV; ++chunk) task.multiply_values(v, first_key, chunk, rows);
  }
  task.store(rows);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::portable)
