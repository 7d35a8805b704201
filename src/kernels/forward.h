// Forward for many queries: K and V stream through LDS, scores, probabilities and output stay in registers.
//
// A workgroup owns kBlockM query rows of one head, a wave kRowTiles x 16 of them:
//   for each tile of kBlockN keys:
//     S = Q K^T                       scores, one query row (or two) a lane
//     P = 2^(S - max)                 online softmax; the row's lanes exchange their maxima, sums only at the end
//     O = rescale * O + P V           P goes from accumulators straight into the next product
// While a tile is computed the next one is on its way.
#include "dropout.h"
#include "tile/order.h"
#include "tile/softmax.h"
#include "tile/stage.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kRowTiles = kBlockM / (16 * kWaves);
constexpr int kKeyTiles = kBlockN / 16;
constexpr int kDepths = kHeadDim / kDepth;
constexpr int kDimTiles = kHeadDimV / 16;
// Outputs alone fill half the registers: operands must not be loaded long before their use.
constexpr bool kTightRegisters = kRowTiles * kDimTiles * kElements >= 128;
static_assert(kBlockM == kRowTiles * 16 * kWaves, "forward: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % 16 == 0 && kHeadDim % kDepth == 0 && kHeadDimV % 16 == 0, "forward: tiles are whole operands");

// Dropout of 16 rows' probabilities.
template <int kTiles>
FULMEN_DEVICE void drop(const RowMap& map, Int64 first_row, Int64 first_key, float (&probability)[kTiles][kElements]) {
  DropoutMask mask(map.arguments, map.batch, map.first_head);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) == slot) probability[f][e] *= mask.factor(first_row + tile_row(slot), first_key + 16 * f + tile_column(e));
      }
    }
  }
}

// The wave's rows: their softmax state and outputs.
struct WaveRows {
  RowState state[kRowTiles];
  float out[kRowTiles][kDimTiles][kElements];
  RowOperand queries[kQueriesInLds ? 1 : kRowTiles][kQueriesInLds ? 1 : kDepths];
};

struct ForwardTask {
  const ForwardArguments& call;
  const ForwardArguments& arguments;  // of the sequence
  const RowMap& map;
  Int64 wave_row;  // the first of the wave's rows
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
      if (kTightRegisters && d % 2 == 1) schedule_fence();
    }
  }

  template <bool kMasked>
  FULMEN_DEVICE void step(WaveRows& rows, Int64 first_key, int buffer) const {
    float score[kRowTiles][kKeyTiles][kElements] = {};
    multiply(rows, buffer, score);
    ProbabilityOperand p[kRowTiles][kKeyTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      modify_scores<kMasked>(map, wave_row + 16 * t, first_key, score[t]);
      exponentiate(rows.state[t], softmax_scale(arguments), score[t], [&](const float(&factor)[kRowsPerLane]) {
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) rows.out[t][d][e] *= factor[row_slot(e)];
        }
      });
      if constexpr (kDropout) drop(map, wave_row + 16 * t, first_key, score[t]);
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) p[t][f] = to_operand<Element, true>(score[t][f]);
    }
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        const ValueOperand values = value_operand(buffer, f, d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.out[t][d], p[t][f], values);
        if (kTightRegisters && d % 2 == 1) schedule_fence();
      }
    }
  }

  FULMEN_DEVICE void finish(const WaveRows& rows) const {
    const ForwardArguments& reloaded = reload(call, wave_row);
    const ForwardArguments& a = sequence_of(reloaded, map.batch);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const RowState& state = rows.state[t];
        const Int64 i = wave_row + 16 * t + tile_row(slot);
        const RowEnd end = end_row(a, map.first_head, state.reference[slot] * softmax_scale(a), total(state.sum[slot]));
        if (i >= map.end) continue;
        Element* row = out_row(a, map.batch, map.first_head, i);
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int e = 0; e < kElements; e += kOutputRun) {
            if (row_slot(e) != slot) continue;
            float run[kOutputRun];
#pragma unroll
            for (int n = 0; n < kOutputRun; ++n) run[n] = rows.out[t][d][e + n] * end.output_factor;
            store_run(row, 16 * d + output_column(e), a.head_dim_v, run);
          }
        }
        // One of the lanes that share the row.
        if (tile_column(0) == 0) store_lse(a, map.batch, map.first_head, i, end.lse);
      }
    }
  }
};

// Is the next tile on its way while one is computed? Not where there is one buffer that copies write to by themselves.
constexpr bool kFetchesEarly = kBuffers == 2 || !kCopiesToLds;

FULMEN_DEVICE void publish(Stage& stage, int buffer) {
  if constexpr (kBuffers == 1 && !kCopiesToLds) barrier();  // the last tile is read by now
  stage.publish(buffer);
  barrier();
}

// Q to registers, or to LDS; the first tile's barrier orders the latter.
FULMEN_DEVICE void load_queries(const ForwardArguments& a, const RowMap& map, const ForwardTask& task, Int64 row_begin,
                                WaveRows& rows) {
  const auto* q = at<Element>(a.q, map.batch, 0, map.first_head);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    rows.state[t].clear();
    if constexpr (!kQueriesInLds) {
#pragma unroll
      for (int d = 0; d < kDepths; ++d) {
        rows.queries[kQueriesInLds ? 0 : t][kQueriesInLds ? 0 : d] =
            load_row_operand(q, a.q.row, task.wave_row + 16 * t, map.end, kDepth * d, a.head_dim);
      }
    }
  }
  if constexpr (kQueriesInLds) {
    for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
      const int row = index / kRowPieces, piece = index % kRowPieces;
      lds_store(kLayout.queries_at + row * kLayout.key_pitch + 16 * piece,
                load_piece(q + map.clamp(row_begin + row) * a.q.row, 8 * piece, a.head_dim));
    }
  }
}

FULMEN_DEVICE void forward(const ForwardArguments& call) {
  const Int64 id = workgroup_id();
  // The last rows attend most keys under a causal mask: they start first, of every head.
  const Int64 heads = static_cast<Int64>(call.batch) * call.num_heads;
  const Int64 tile = kBand ? call.row_tiles - 1 - id / heads : id % call.row_tiles;
  const Int64 batch_head = kBand ? id % heads : id / call.row_tiles;
  const int head = static_cast<int>(batch_head % call.num_heads), batch = static_cast<int>(batch_head / call.num_heads);
  const ForwardArguments& a = sequence_of(call, batch);
  const Int64 row_begin = tile * kBlockM;
  if (kVariable && row_begin >= a.seqlen_q) return;
  const Int64 row_end = row_begin + kBlockM < a.seqlen_q ? row_begin + kBlockM : a.seqlen_q;
  const algorithm::Band band = band_of(a);
  const algorithm::KeyRange keys = band.any(row_begin, row_end), whole = band.all(row_begin, row_end);
  const RowMap map{a, batch, head, a.seqlen_q};
  const int kv_head = head / a.group_size;
  const StageSource source{
      a, batch, head, row_begin, row_end, head_rows(a.k, batch, kv_head), head_rows(a.v, batch, kv_head), keys.begin, keys.end};
  Stage stage(source);
  const ForwardTask task{call, a, map, row_begin + wave_id() * kRowTiles * 16,
                         kLayout.queries_at + wave_id() * kRowTiles * 16 * kLayout.key_pitch};

  WaveRows rows = {};
  const TileOrder order = TileOrder::of({first_tile_key(keys.begin), keys.end}, whole);
  if (order.count > 0) {
    if (order.masked > 0) {
      stage.template fetch<true>(order.first_key(0), 0);
    } else {
      stage.template fetch<false>(order.first_key(0), 0);
    }
  }
  load_queries(a, map, task, row_begin, rows);
  int buffer = 0, n = 0;
  for (; n < order.masked; ++n) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    const auto fetch = [&] {
      if (n + 1 < order.masked) {
        stage.template fetch<true>(order.first_key(n + 1), next);
      } else if (n + 1 < order.count) {
        stage.template fetch<false>(order.first_key(n + 1), next);
      }
    };
    if constexpr (kFetchesEarly) fetch();
    task.step<true>(rows, order.first_key(n), buffer);
    if constexpr (!kFetchesEarly) {
      barrier();
      fetch();
    }
    buffer = next;
  }
  for (; n < order.count; ++n) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    if (kFetchesEarly && n + 1 < order.count) stage.template fetch<false>(order.first_key(n + 1), next);
    task.step<false>(rows, order.first_key(n), buffer);
    if (!kFetchesEarly) {
      barrier();
      if (n + 1 < order.count) stage.template fetch<false>(order.first_key(n + 1), next);
    }
    buffer = next;
  }
  task.finish(rows);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::forward)
