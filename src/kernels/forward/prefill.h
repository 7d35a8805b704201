// Forward for many queries: K and V stream through LDS, scores, probabilities and output stay in registers.
//
// A workgroup owns kBlockM query rows of one head, a wave kRowTiles x 16 of them:
//   for each tile of kBlockN keys:
//     S = Q K^T                       scores, one query row (or two) a lane
//     P = 2^(S - max)                 online softmax; the row's lanes exchange their maxima, sums only at the end
//     O = rescale * O + P V           P goes from accumulators straight into the next product
// While a tile of keys is computed the next one is in flight. Where a workgroup has few of them the kernel is static persistent
// (kPersistent): the next work tile's first keys and queries are prefetched from the last step of this one on (kWholeRows).
#include "tile/drop.h"
#include "tile/order.h"
#include "tile/softmax.h"
#include "tile/stage.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kRowTiles = kBlockM / (16 * kWaves);
constexpr int kKeyTiles = kBlockN / 16;
constexpr int kMmaSteps = kHeadDim / kTileMmaK;
constexpr int kDimTiles = kHeadDimV / 16;
// Outputs alone fill half the registers: operands must not be loaded long before their use.
constexpr bool kTightRegisters = kRowTiles * kDimTiles * kElements >= 128;
static_assert(kBlockM == kRowTiles * 16 * kWaves, "forward: block_m is a multiple of 16 rows a wave");
static_assert(kBlockN % 16 == 0 && kHeadDim % kTileMmaK == 0 && kHeadDimV % 16 == 0, "forward: tiles are whole operands");

// NVIDIA, where outputs of 16 rows fill half of the registers. 32 rows a wave, of smaller heads, are slower with what follows from
// this.
constexpr bool kWideHeads = kCopiesToLds && kRowTiles == 1 && kHeadDimV > 128;
FULMEN_DEVICE unsigned operand_lane() { return kWideHeads ? recompute(lane_id()) : lane_id(); }

// True if a tile's exponentials are spread over its second product, one key tile ahead.
constexpr bool kSpreadsExponentials = kSpreadsCopies && kHeadDim > 64 && !kDropout;

// Operands of Q in registers, of the first dims: all, or, where Q stays in NVIDIA's LDS, as many as outputs and scores of 16 rows
// leave room for: each is a read of LDS less in every step.
constexpr int kSpareRegisters = 200 - (kDimTiles + kKeyTiles) * kElements;
constexpr bool kKeepsSomeQueries = kCopiesToLds && kBuffers == 2 && kRowTiles == 1 && kPlainScale && kWholeRows && !kDropout;
constexpr int kKeptMmaSteps = !kQueriesInLds || kSpareRegisters / 4 >= kMmaSteps ? kMmaSteps : kSpareRegisters / 4;
constexpr int kQueryMmaSteps = kQueriesInLds && !kKeepsSomeQueries ? 0 : kKeptMmaSteps;

// The wave's rows: their softmax state and outputs.
struct WaveRows {
  RowState state[kRowTiles];
  float out[kRowTiles][kDimTiles][kElements];
  QueryOperand queries[kRowTiles][kQueryMmaSteps > 0 ? kQueryMmaSteps : 1];
};

struct PrefillTask {
  const ForwardArguments& call;
  const ForwardArguments& arguments;  // of the sequence
  const RowMap& map;
  Int64 wave_row;  // the first of the wave's rows
  int first_row;   // the same, of the workgroup's

  // How many of a tile's first keys the wave computes: up to the last one that its rows attend, or none.
  FULMEN_DEVICE int attended_keys(const algorithm::Band& band, Int64 row_end, Int64 first_key) const {
    const Int64 end = wave_row + 16 * kRowTiles;
    const algorithm::KeyRange keys = band.any(wave_row, end < row_end ? end : row_end);
    return first_key + kBlockN > keys.begin ? at_most(keys.end - first_key, kBlockN) : 0;
  }
  FULMEN_DEVICE void load_queries(const QuerySource& source, WaveRows& rows) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < kQueryMmaSteps; ++d) rows.queries[t][d] = Stage::query_operand(source, first_row + 16 * t, d);
    }
  }
  FULMEN_DEVICE QueryOperand queries(const WaveRows& rows, int t, int d, unsigned lane) const {
    if (d < kQueryMmaSteps) return rows.queries[t][d < kQueryMmaSteps ? d : 0];
    return lds_queries(first_row + 16 * t, d, lane);
  }

  template <class Copies>
  FULMEN_DEVICE void multiply(const WaveRows& rows, int buffer, float (&score)[kRowTiles][kKeyTiles][kElements],
                              Copies& copies) const {
    const unsigned lane = operand_lane();
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) {
      QueryOperand query[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) query[t] = queries(rows, t, d, lane);
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
        const KeyOperand keys = key_operand(buffer, f, d, lane);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_scores<Element>(score[t][f], keys, query[t]);
      }
      if (kTightRegisters && d % 2 == 1) schedule_fence();
      copies.turn(d, kMmaSteps);
    }
  }

  FULMEN_DEVICE void rescale(WaveRows& rows, int t, const float (&factor)[kRowsPerLane]) const {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) rows.out[t][d][e] *= factor[row_slot(e)];
    }
  }

  // O += P V for one tile of 16 keys.
  FULMEN_DEVICE void multiply_values(WaveRows& rows, int buffer, int f, const ProbabilityOperand (&p)[kRowTiles]) const {
    const unsigned lane = operand_lane();
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      const ValueOperand values = value_operand(buffer, f, d, lane);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) multiply_output<Element>(rows.out[t][d], p[t], values);
      if (kTightRegisters && d % 2 == 1) schedule_fence();
    }
  }

  // queries_read(): the wave needs this tile's queries no more. attended: masked, values from there on are left out.
  template <bool kMasked, class Copies, class QueriesRead>
  FULMEN_DEVICE void step(WaveRows& rows, Int64 first_key, int buffer, Copies& copies, const QueriesRead& queries_read,
                          int attended = kBlockN) const {
    float score[kRowTiles][kKeyTiles][kElements] = {};
    multiply(rows, buffer, score, copies);
    queries_read();
    if constexpr (kCopiesToLds) {
      // Registers are enough to look at all rows before any becomes probabilities: one branch, and what follows is one block.
      follow<kMasked>(rows, first_key, score);
#pragma unroll
      for (int f = 0; f < (kSpreadsExponentials ? 1 : kKeyTiles); ++f) exponentiate_keys(rows, f, score);
      if constexpr (kDropout) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) drop(map, wave_row + 16 * t, first_key, score[t]);
      }
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
        if (kMasked && kWideHeads && kBand && 16 * f >= attended) break;
        if (kSpreadsExponentials && f + 1 < kKeyTiles) exponentiate_keys(rows, f + 1, score);
        ProbabilityOperand p[kRowTiles];
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) p[t] = to_operand<Element, true>(score[t][f]);
        multiply_values(rows, buffer, f, p);
      }
    } else {
      ProbabilityOperand p[kKeyTiles][kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        modify_scores<kMasked>(map, wave_row + 16 * t, first_key, score[t]);
        exponentiate(rows.state[t], softmax_scale(arguments), score[t],
                     [&](const float(&factor)[kRowsPerLane]) { rescale(rows, t, factor); });
        if constexpr (kDropout) drop(map, wave_row + 16 * t, first_key, score[t]);
#pragma unroll
        for (int f = 0; f < kKeyTiles; ++f) p[f][t] = to_operand<Element, true>(score[t][f]);
      }
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) multiply_values(rows, buffer, f, p[f]);
    }
  }

  // Modifiers and masks of all rows, then their references.
  template <bool kMasked>
  FULMEN_DEVICE void follow(WaveRows& rows, Int64 first_key, float (&score)[kRowTiles][kKeyTiles][kElements]) const {
    const float scale = softmax_scale(arguments);
    float max[kRowTiles][kRowsPerLane];
    bool moves = false;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      modify_scores<kMasked>(map, wave_row + 16 * t, first_key, score[t]);
      const bool these = find_maxima(rows.state[t], scale, score[t], max[t]);
      moves = moves || these;
    }
    if (__builtin_expect(any_lane(moves), 0)) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        float factor[kRowsPerLane];
        follow_maxima(rows.state[t], scale, max[t], factor);
        rescale(rows, t, factor);
      }
    }
  }
  FULMEN_DEVICE void exponentiate_keys(WaveRows& rows, int f, float (&score)[kRowTiles][kKeyTiles][kElements]) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) kernels::exponentiate_keys(rows.state[t], softmax_scale(arguments), score[t][f]);
  }

  FULMEN_DEVICE void finish(const WaveRows& rows) const {
    const ForwardArguments& reloaded = reload(call, wave_row);
    const ForwardArguments& a = sequence_of(reloaded, map.batch);
    if constexpr (kStoresThroughLds && !kPersistent) barrier();  // every lane has read its queries
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const RowState& state = rows.state[t];
        const Int64 i = wave_row + 16 * t + tile_row(slot);
        const RowEnd end = end_row(a, map.first_head, row_maximum(state, softmax_scale(a), slot), total(state.sum[slot]));
        if constexpr (kStoresThroughLds && kPersistent) {
          const int at = first_row / 2;
          leave_in_lds(rows.out[t], slot, at, end.output_factor);
          wave_barrier();
          store_from_lds<8>(a, at, 16 * t + 8 * slot);
        } else if constexpr (kStoresThroughLds) {
          leave_in_lds(rows.out[t], slot, first_row + 16 * t + 8 * slot, end.output_factor);
        }
        if (i >= a.seqlen_q) continue;
        Element* row = out_row(a, map.batch, map.first_head, i);
#pragma unroll
        for (int d = 0; d < (kStoresThroughLds ? 0 : kDimTiles); ++d) {
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
    if constexpr (kStoresThroughLds && !kPersistent) {
      barrier();
      store_from_lds<16 * kRowTiles>(a, first_row, 0);
    }
  }

 private:
  // Where a lane's outputs of a row are too few neighbours for wide stores, they go through the LDS of the wave's queries, or,
  // where the next queries are in flight to that, through LDS of their own, 8 rows at a time.
  static constexpr bool kStoresThroughLds = kCopiesToLds && kWholeRows;

  // A slot's rows of the wave, to 8 rows from `row` on.
  FULMEN_DEVICE static void leave_in_lds(const float (&out)[kDimTiles][kElements], int slot, int row, float factor) {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        if (row_slot(e) != slot) continue;
        const unsigned two = pack<Element>(out[d][e] * factor, out[d][e + 1] * factor);
        if constexpr (kPersistent) {
          leave_outputs(row, d, e, two);
        } else {
          lds_store(output_at(row, tile_row(0), 2 * (16 * d + output_column(e))), two);
        }
      }
    }
  }
  // The wave's rows [first, first + kRows), which lie in LDS from row `at` on.
  template <int kRows>
  FULMEN_DEVICE void store_from_lds(const ForwardArguments& a, int at, int first) const {
    constexpr int kRounds = kRows * kRowPiecesV / kWaveSize;
    static_assert(kRounds * kWaveSize == kRows * kRowPiecesV, "forward: all lanes store");
    const unsigned lane = static_cast<unsigned>(recompute(lane_id())) % kWaveSize;
    const auto row = [&](int n) { return static_cast<int>((n * kWaveSize + lane) / kRowPiecesV); };
    const auto dim = [&](int n) { return static_cast<int>((n * kWaveSize + lane) % kRowPiecesV * 8); };
    Words<4> piece[kRounds];
#pragma unroll
    for (int n = 0; n < kRounds; ++n) piece[n] = lds_load<Words<4> >(output_at(at, row(n), 2 * dim(n)));
    wave_barrier();  // all are here: no store waits for its own piece, and others may take their place
    // Whole rows are near each other: distances of 32 bits (gpu/launch/specialisation.cpp).
    const int left = at_most(a.seqlen_q - (wave_row + first), kRows), stride = static_cast<int>(a.out.row);
    Element* rows = out_row(a, map.batch, map.first_head, wave_row + first);
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      if (row(n) >= left || (!kExactDims && dim(n) >= a.head_dim_v)) continue;
      // Opaque, else NVRTC stores four words one by one.
      const int distance = recompute(row(n) * stride + dim(n));
      global_store(reinterpret_cast<Words<4>*>(rows + distance), piece[n]);
    }
  }
};

// True if the next tile is in flight while one is computed: not with a single buffer that asynchronous copies write to.
constexpr bool kFetchesEarly = kBuffers == 2 || !kCopiesToLds;

FULMEN_DEVICE void publish(Stage& stage, int buffer) {
  if constexpr (kBuffers == 1 && !kCopiesToLds) barrier();  // the last tile is read by now
  stage.publish(buffer);
  barrier();
}

// A workgroup's rows, and the tiles of the keys that they attend.
struct ForwardRows {
  QueryBlock block;
  Int64 row_end;
  algorithm::Band band;
  algorithm::KeyRange keys;
  TileOrder order;

  FULMEN_DEVICE static ForwardRows of(const ForwardArguments& a, const QueryBlock& block) {
    const Int64 row_end = block.row_begin + kBlockM < a.seqlen_q ? block.row_begin + kBlockM : a.seqlen_q;
    // Without a band NVIDIA's compilers need not compute one; AMD's loops have more vector instructions then.
    const algorithm::Band band = kBand || !kCopiesToLds ? band_of(a) : algorithm::Band{a.seqlen_k, a.diagonal, -1, -1};
    const algorithm::KeyRange keys = band.any(block.row_begin, row_end), whole = band.all(block.row_begin, row_end);
    return {block, row_end, band, keys, TileOrder::of(tile_range(keys), whole)};
  }
  FULMEN_DEVICE StageSource source(const ForwardArguments& a) const {
    // No division where rows follow rows, and a head has its own keys.
    const int batch = block.batch, kv_head = kPersistent && a.group_size == 1 ? block.head : block.head / a.group_size;
    return {
        a,          batch,   block.head, block.row_begin, row_end, head_rows(a.k, batch, kv_head), head_rows(a.v, batch, kv_head),
        keys.begin, keys.end};
  }
  FULMEN_DEVICE QuerySource queries(const ForwardArguments& a) const {
    return {at<Element>(a.q, block.batch, 0, block.head), a.q.row, block.row_begin, a.seqlen_q, a.head_dim};
  }
};

FULMEN_DEVICE int first_row_of_wave() { return wave_id() * kRowTiles * 16; }

FULMEN_DEVICE void clear(WaveRows& rows) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) rows.state[t].clear();
}

// Q and the first key tile, in flight before anything is computed.
FULMEN_DEVICE void fetch_first(Stage& stage, const QuerySource& queries, const TileOrder& order) {
  stage.fetch_queries(queries);
  if (order.masked > 0) {
    stage.template fetch<true>(order.first_key(0), 0);
  } else {
    stage.template fetch<false>(order.first_key(0), 0);
  }
}

// Fetches a tile, with a look at each key where the keep-mask hides some of them.
FULMEN_DEVICE void fetch_kept(Stage& stage, KeptWalk<TileOrder>& tile, int buffer) {
  if (tile.has_all_keys()) {
    stage.template fetch<false>(tile.first_key(), buffer);
  } else {
    stage.template fetch<true>(tile.first_key(), buffer);
  }
}
// kKnowsTiles: the tiles that some of the workgroup's rows attend.
FULMEN_DEVICE void over_kept_tiles(const PrefillTask& task, const StageSource& source, Stage& stage, const QuerySource& queries,
                                   const TileOrder& order, WaveRows& rows) {
  KeptWalk tile(source.masked_rows(), order);
  if (!tile.there()) return;
  stage.fetch_queries(queries);
  fetch_kept(stage, tile, 0);
  if constexpr (kQueryMmaSteps > 0) {
    stage.publish_queries(queries);
    task.load_queries(queries, rows);
  }
  NoCopies none;
  const auto queries_read = [] {};
  int buffer = 0;
#pragma unroll 1
  while (tile.there()) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    const Int64 first_key = tile.first_key();
    const bool whole = tile.is_whole();
    tile.advance();
    if (kFetchesEarly && tile.there()) fetch_kept(stage, tile, next);
    if (whole) {
      task.step<false>(rows, first_key, buffer, none, queries_read);
    } else {
      task.step<true>(rows, first_key, buffer, none, queries_read);
    }
    if constexpr (!kFetchesEarly) {
      barrier();
      if (tile.there()) fetch_kept(stage, tile, next);
    }
    buffer = next;
  }
}

// The rows of one workgroup.
FULMEN_DEVICE void forward_rows(const ForwardArguments& call, const QueryBlock& block) {
  const ForwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= a.seqlen_q) return;
  const ForwardRows mine = ForwardRows::of(a, block);
  const RowMap map{a, block.batch, block.head, a.seqlen_q};
  const StageSource source = mine.source(a);
  Stage stage(source);
  const int first_row = first_row_of_wave();
  const PrefillTask task{call, a, map, block.row_begin + first_row, first_row};

  WaveRows rows = {};
  clear(rows);
  const TileOrder& order = mine.order;
  const QuerySource queries = mine.queries(a);
  if constexpr (kKnowsTiles) {
    over_kept_tiles(task, source, stage, queries, order, rows);
    task.finish(rows);
    return;
  }
  if (order.count > 0) fetch_first(stage, queries, order);
  if (!kCopiesToLds || (kQueryMmaSteps > 0 && order.count > 0)) {
    stage.publish_queries(queries);
    task.load_queries(queries, rows);
  }
  NoCopies none;
  const auto queries_read = [] {};
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
    const int attended = kWideHeads ? task.attended_keys(mine.band, mine.row_end, order.first_key(n)) : kBlockN;
    if (attended > 0) task.step<true>(rows, order.first_key(n), buffer, none, queries_read, attended);
    if constexpr (!kFetchesEarly) {
      barrier();
      fetch();
    }
    buffer = next;
  }
  for (; n < order.count; ++n) {
    publish(stage, buffer);
    const int next = kBuffers == 1 ? 0 : 1 - buffer;
    if constexpr (kSpreadsCopies) {
      const bool there = n + 1 < order.count;
      auto copies = stage.next_tile(order.first_key(there ? n + 1 : n), next, there);
      task.step<false>(rows, order.first_key(n), buffer, copies, queries_read);
      stage.committed();
    } else {
      if (kFetchesEarly && n + 1 < order.count) stage.template fetch<false>(order.first_key(n + 1), next);
      task.step<false>(rows, order.first_key(n), buffer, none, queries_read);
      if (!kFetchesEarly) {
        barrier();
        if (n + 1 < order.count) stage.template fetch<false>(order.first_key(n + 1), next);
      }
    }
    buffer = next;
  }
  task.finish(rows);
}

// The rows that a workgroup takes next, if there are any. A wave fetches its own queries.
struct LaterRows {
  const ForwardArguments& call;
  TileScheduler turn;

  FULMEN_DEVICE bool there() const { return turn.there(call); }
  FULMEN_DEVICE ForwardRows rows() const { return ForwardRows::of(call, turn.block()); }
  FULMEN_DEVICE void fetch_tile(int buffer) const {
    if (!there()) return;
    const ForwardRows later = rows();
    if (later.order.count == 0) return;
    const StageSource source = later.source(call);
    Stage(source).template fetch<true>(later.order.first_key(0), buffer);
  }
  FULMEN_DEVICE void fetch_queries() const {
    if (!there()) return;
    const ForwardRows later = rows();
    if (later.order.count == 0) return;
    wave_barrier();  // all its lanes have read theirs
    Stage::fetch_wave_queries<16 * kRowTiles>(later.queries(call), first_row_of_wave());
  }
};

// Tile n + 1 is fetched while tile n is computed, after the last one what the next rows begin with. Ends with the buffer that this
// is in flight to. The long loop has code for neither masks nor other rows.
FULMEN_DEVICE void go_over_tiles(const PrefillTask& task, const ForwardRows& mine, Stage& stage, WaveRows& rows, int& buffer,
                                 const LaterRows& later) {
  const TileOrder& order = mine.order;
  NoCopies none;
  for (int n = 0; n < order.count;) {
    for (; n < order.masked || n + 1 == order.count; ++n) {
      publish(stage, buffer);
      const int next = 1 - buffer;
      if (n + 1 < order.masked) {
        stage.template fetch<true>(order.first_key(n + 1), next);
      } else if (n + 1 < order.count) {
        stage.template fetch<false>(order.first_key(n + 1), next);
      } else {
        later.fetch_tile(next);
      }
      const auto queries_read = [&] {
        if (n + 1 == order.count) later.fetch_queries();
      };
      const int attended = kWideHeads ? task.attended_keys(mine.band, mine.row_end, order.first_key(n)) : kBlockN;
      if (attended > 0) {
        task.step<true>(rows, order.first_key(n), buffer, none, queries_read, attended);
      } else {
        queries_read();
      }
      buffer = next;
    }
    for (; n < order.count - 1; ++n) {
      publish(stage, buffer);
      const int next = 1 - buffer;
      const bool there = n + 1 < order.count;  // always, but without the question NVRTC reads operands less far ahead
      auto copies = stage.next_tile(order.first_key(there ? n + 1 : n), next, there);
      task.step<false>(rows, order.first_key(n), buffer, copies, [] {});
      stage.committed();
      buffer = next;
    }
  }
}

// Tiles of queries, one after the other: no workgroup starts or ends between them. While the last tile of keys is computed the next
// rows' first one is in flight, and, once Q has been read, their queries.
FULMEN_DEVICE void forward_many_rows(const ForwardArguments& call) {
  static_assert(!kPersistent || !(kVariable || kKeepMask || kDropout), "prefill: persistent workgroups serve one length");
  LaterRows later{call, TileScheduler::first(call)};
  int buffer = 0;
  bool in_flight = false;
  while (later.there()) {
    const ForwardRows mine = later.rows();
    const TileOrder& order = mine.order;
    if (!in_flight) {
      later.fetch_tile(buffer);
      later.fetch_queries();
    }
    in_flight = order.count > 0;  // its last tile fetches the next rows' first
    later.turn.go_on(call);
    const RowMap map{call, mine.block.batch, mine.block.head, call.seqlen_q};
    const StageSource source = mine.source(call);
    Stage stage(source);
    const int first_row = first_row_of_wave();
    const PrefillTask task{call, call, map, mine.block.row_begin + first_row, first_row};
    WaveRows rows = {};
    clear(rows);
    if (order.count > 0) {
      publish(stage, buffer);
      task.load_queries(mine.queries(call), rows);
    }
    go_over_tiles(task, mine, stage, rows, buffer, later);
    task.finish(rows);
  }
}

FULMEN_DEVICE void forward(const ForwardArguments& call) {
  if constexpr (kPersistent && kWholeRows) return forward_many_rows(call);
  if constexpr (kPersistent) {
    for (TileScheduler turn = TileScheduler::first(call); turn.there(call); turn.go_on(call)) {
      forward_rows(call, turn.block());
      barrier();  // LDS has been read
    }
    return;
  }
  forward_rows(call, QueryBlock::of(call));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::forward)
