// Forward for many queries: K and V stream through LDS, scores, probabilities and output stay in registers.
//
// A workgroup owns kBlockM query rows of one head, a wave kRowTiles x 16 of them:
//   for each tile of kBlockN keys:
//     S = Q K^T                       scores, one query row (or two) a lane
//     P = 2^(S - max)                 online softmax; the row's lanes exchange their maxima, sums only at the end
//     O = rescale * O + P V           P goes from accumulators straight into the next product
// While a tile is computed the next one is on its way. Only tiles at the band's edges, and the last one, take the code with masks.
#include "tile/stage.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kRowTiles = kBlockM / (16 * kWaves);
constexpr int kKeyTiles = kBlockN / 16;
constexpr int kDepths = kHeadDim / kDepth;
constexpr int kDimTiles = kHeadDimV / 16;
static_assert(kBlockM == kRowTiles * 16 * kWaves, "forward: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % 16 == 0 && kHeadDim % kDepth == 0 && kHeadDimV % 16 == 0, "forward: tiles are whole operands");

// The wave's rows: their softmax state and outputs.
struct WaveRows {
  float max[kRowTiles][kRowsPerLane];  // base-2 units; with kPlainScale in units of q.k
  float sum[kRowTiles][kRowsPerLane];  // of the lane's own keys
  float out[kRowTiles][kDimTiles][kElements];
  RowOperand queries[kQueriesInLds ? 1 : kRowTiles][kQueriesInLds ? 1 : kDepths];
};

struct ForwardTask {
  const ForwardArguments& arguments;
  const ScoreModifiers& modifiers;
  Int64 wave_row;  // the first of the wave's rows
  Int64 row_end;   // of the sequence
  int wave_at;     // of its queries in LDS

  FULMEN_DEVICE RowOperand queries(const WaveRows& rows, int t, int d) const {
    if constexpr (kQueriesInLds) return lds_row_operand(wave_at + 16 * t * kLayout.key_pitch + 2 * kDepth * d, kLayout.key_pitch);
    return rows.queries[kQueriesInLds ? 0 : t][kQueriesInLds ? 0 : d];
  }

  FULMEN_DEVICE void multiply(const WaveRows& rows, int buffer, float (&score)[kRowTiles][kKeyTiles][kElements]) const {
#pragma unroll
    for (int d = 0; d < kDepths; ++d) {
      RowOperand query[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) query[t] = queries(rows, t, d);
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
        const RowOperand keys = key_operand(buffer, f, d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_scores<Element>(score[t][f], keys, query[t]);
      }
    }
  }

  // Scale, softcap, bias, ALiBi and masks of one row tile.
  template <bool kMasked>
  FULMEN_DEVICE void modify(int t, Int64 first_key, float (&score)[kKeyTiles][kElements]) const {
    if constexpr (kPlainScale && !kMasked) return;
    const algorithm::Band band = band_of(arguments);
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const Int64 row = wave_row + 16 * t + tile_row(slot);
      const Int64 i = row < row_end ? row : row_end - 1;
      const ScoreRow score_row = modifiers.row(i);
      const int low = static_cast<int>(algorithm::Band::clamp(band.first(i) - first_key, 0, kBlockN));
      const int high = static_cast<int>(algorithm::Band::clamp(band.last_plus_one(i) - first_key, 0, kBlockN));
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (row_slot(e) != slot) continue;
          const int column = 16 * f + tile_column(e);
          float s = score[f][e];
          if (!kMasked || (column >= low && column < high)) {
            if constexpr (!kPlainScale) s = modifiers.finish(score_row, s, first_key + column);
          } else {
            s = -kInfinity;
          }
          score[f][e] = s;
        }
      }
    }
  }

  // The online softmax: scores become probabilities.
  FULMEN_DEVICE void exponentiate(WaveRows& rows, int t, float (&score)[kKeyTiles][kElements]) const {
    const float scale = kPlainScale ? arguments.scale : 1.0F;
    float offset[kRowsPerLane], rescale[kRowsPerLane];
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      float tile_max = -kInfinity;
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (row_slot(e) == slot) tile_max = larger(tile_max, score[f][e]);
        }
      }
      const float max = larger(rows.max[t][slot], row_max(tile_max));
      offset[slot] = max == -kInfinity ? 0.0F : max * scale;
      rescale[slot] = exp2(rows.max[t][slot] * scale - offset[slot]);
      rows.max[t][slot] = max;
      float sum = 0;
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (row_slot(e) != slot) continue;
          score[f][e] = exp2(score[f][e] * scale - offset[slot]);
          sum += score[f][e];
        }
      }
      rows.sum[t][slot] = rows.sum[t][slot] * rescale[slot] + sum;
    }
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) rows.out[t][d][e] *= rescale[row_slot(e)];
    }
  }

  template <bool kMasked>
  FULMEN_DEVICE void step(WaveRows& rows, Int64 first_key, int buffer) const {
    float score[kRowTiles][kKeyTiles][kElements] = {};
    multiply(rows, buffer, score);
    ProbabilityOperand p[kRowTiles][kKeyTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      modify<kMasked>(t, first_key, score[t]);
      exponentiate(rows, t, score[t]);
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) p[t][f] = to_operand<Element>(score[t][f]);
    }
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        const ValueOperand values = value_operand(buffer, f, d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.out[t][d], p[t][f], values);
      }
    }
  }

  FULMEN_DEVICE void finish(const WaveRows& rows, Int64 batch, Int64 head) const {
    const float scale = kPlainScale ? arguments.scale : 1.0F;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 i = wave_row + 16 * t + tile_row(slot);
        const RowEnd end = end_row(arguments, head, rows.max[t][slot] * scale, row_sum(rows.sum[t][slot]));
        if (i >= row_end) continue;
        auto* row = const_cast<Element*>(at<Element>(arguments.out, batch, i, head));
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int e = 0; e < kElements; e += kOutputRun) {
            if (row_slot(e) != slot) continue;
            float run[kOutputRun];
#pragma unroll
            for (int n = 0; n < kOutputRun; ++n) run[n] = rows.out[t][d][e + n] * end.output_factor;
            store_run(row, 16 * d + output_column(e), arguments.head_dim_v, run);
          }
        }
        // One of the lanes that share the row.
        if (arguments.lse != nullptr && tile_column(0) == 0) {
          global_store(arguments.lse + batch * arguments.lse_batch + head * arguments.lse_head + i * arguments.lse_row, end.lse);
        }
      }
    }
  }
};

FULMEN_DEVICE void forward(const ForwardArguments& a) {
  const Int64 id = workgroup_id();
  // The last rows attend most keys under a causal mask: they start first, of every head.
  const Int64 heads = static_cast<Int64>(a.batch) * a.num_heads;
  const Int64 tile = kBand ? a.row_tiles - 1 - id / heads : id % a.row_tiles;
  const Int64 batch_head = kBand ? id % heads : id / a.row_tiles;
  const Int64 head = batch_head % a.num_heads, batch = batch_head / a.num_heads;
  const Int64 row_begin = tile * kBlockM;
  const Int64 row_end = row_begin + kBlockM < a.seqlen_q ? row_begin + kBlockM : a.seqlen_q;
  const algorithm::Band band = band_of(a);
  const algorithm::KeyRange keys = band.any(row_begin, row_end), whole = band.all(row_begin, row_end);
  const ScoreModifiers modifiers = ScoreModifiers::of(a, batch, head);
  const Int64 kv_head = head / a.group_size;
  const StageSource source{
      a, batch, head, row_begin, row_end, at<Element>(a.k, batch, 0, kv_head), at<Element>(a.v, batch, 0, kv_head), keys.end};
  Stage stage(source);
  const ForwardTask task{a, modifiers, row_begin + wave_id() * kRowTiles * 16, a.seqlen_q,
                         kLayout.queries_at + wave_id() * kRowTiles * 16 * kLayout.key_pitch};

  if (keys.begin < keys.end) stage.fetch(keys.begin, 0);
  WaveRows rows = {};
  const auto* q = at<Element>(a.q, batch, 0, head);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) rows.max[t][slot] = -kInfinity;
    if constexpr (!kQueriesInLds) {
#pragma unroll
      for (int d = 0; d < kDepths; ++d) {
        rows.queries[kQueriesInLds ? 0 : t][kQueriesInLds ? 0 : d] =
            load_row_operand(q, a.q.row, task.wave_row + 16 * t, a.seqlen_q, kDepth * d, a.head_dim);
      }
    }
  }
  if constexpr (kQueriesInLds) {
    for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
      const int row = index / kRowPieces, piece = index % kRowPieces;
      const Int64 i = row_begin + row < row_end ? row_begin + row : row_end - 1;
      lds_store(kLayout.queries_at + row * kLayout.key_pitch + 16 * piece, load_piece(q + i * a.q.row, 8 * piece, a.head_dim));
    }
  }

  int buffer = 0;
  for (Int64 first_key = keys.begin; first_key < keys.end; first_key += kBlockN) {
    if constexpr (kBuffers == 1) barrier();
    stage.publish(buffer);
    barrier();
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    const bool more = first_key + kBlockN < keys.end;
    if (kBuffers == 2 || !kCopiesToLds) {
      if (more) stage.fetch(first_key + kBlockN, next);
    }
    if (first_key >= whole.begin && first_key + kBlockN <= whole.end) {
      task.step<false>(rows, first_key, buffer);
    } else {
      task.step<true>(rows, first_key, buffer);
    }
    if (kBuffers == 1 && kCopiesToLds && more) {
      barrier();
      stage.fetch(first_key + kBlockN, next);
    }
    buffer = next;
  }
  task.finish(rows, batch, head);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::forward)
