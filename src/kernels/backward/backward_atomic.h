// Gradients of q, k and v in one pass over the scores, by NVIDIA's matrix instructions: 5 products,
// where backward.h does 7, and dq is added up by atomics. A workgroup owns kBlockM keys of one KV
// head and goes over queries in tiles of kBlockN:
//
//   S^T = k q^T, D^T = v dout^T  P^T, dS^T of a tile  dv += P^T dout, dk += dS^T q  in registers
//                                                     dq += dS k                    in memory, fp32
//
// Where sums of 32 keys' dk and dv fit in a wave's registers a wave owns its keys: P^T and dS^T go
// from its scores to its products. Where those of one of the two fit a pair of waves does
// (backward/parts/wave_pairs.h), else two pairs (backward/parts/wave_quads.h). dq needs what other
// waves have of dS^T, a tile later, so that one barrier of them all is enough.
#include "backward/parts/owned_keys.h"
#include "backward/parts/query_sums.h"
#include "backward/parts/stored_bias.h"
#include "backward/parts/wave_pairs.h"
#include "backward/parts/wave_quads.h"

namespace fulmen::kernels {

static_assert(kAddsDq && kNeedsDout,
              "backward_atomic: dq alone, and dk and dv without it, need no atomics");

static_assert(kColumnTiles % 2 == 0, "backward_atomic: dq takes 32 queries at a time");
// A wave computes dq of 32 queries and of these dims, by 16, at a time.
constexpr int kPassTiles =
    kDimGroups == 4 && kHeadDim % 64 == 0 && kColumnTiles / 2 * (kHeadDim / 64) % kWaves == 0 ? 4
                                                                                              : 2;
constexpr int kPasses = kColumnTiles / 2 * (kHeadDim / kScoreTile / kPassTiles);

// The scores' gradients of a tile that dq has yet to get.
struct Pending {
  QuerySums sums{};
  Int64 first_query = -1;
  int gradients_at = 0;
};

struct AtomicTask : BackwardTask {
  int row;  // the first of the wave's keys in the workgroup's

  FULMEN_DEVICE static AtomicTask of(const BackwardArguments& a, Int64 batch,
                                     const algorithm::Band& band, Int64 row_begin, Int64 row_end,
                                     int wave) {
    const int row = wave * kRowTiles * kScoreTile;
    return {{a, batch, band, row_begin + row, row_end, 0, 0}, row};
  }
  FULMEN_DEVICE void store_sums(Int64 kv_head, const WaveRows& rows) const {
    const BackwardArguments& a = arguments;
    if constexpr (kGivesDk)
      store_rows(*this, a.dk, kv_head, 0, a.head_dim, a.softmax_scale, rows.first_sum);
    if constexpr (kGivesDv)
      store_rows(*this, a.dv, kv_head, 0, a.head_dim_v, 1.0F, rows.second_sum);
  }

  // product[t] += rows . columns of one tile of 16 columns, 32 dims.
  template <int kMmaSteps, int kHeld, int kHeldMmaSteps>
  FULMEN_DEVICE static void multiply_mma_step(const RowOperand (&rows)[kHeld][kHeldMmaSteps],
                                              int columns_at, int d, unsigned lane,
                                              float (&product)[kRowTiles][kElements]) {
    const RowOperand column = SwizzledRows<kMmaSteps * kMmaK>::rows(lane, columns_at, d);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) multiply_scores<Element>(product[t], column, rows[t][d]);
  }

  // Both products of the scores, of the tile's f-th 16 queries: more sums at a time than either has
  // alone.
  FULMEN_DEVICE static void multiply_both(const WaveRows& rows, int at, int f, unsigned lane,
                                          float (&score)[kRowTiles][kElements],
                                          float (&gradient)[kRowTiles][kElements]) {
    const int first_at = at + kScoreTile * f * kBackward.first_pitch,
              second_at = at + kBackward.second_at + kScoreTile * f * kBackward.second_pitch;
    constexpr int kMmaSteps = kFirstMmaSteps > kSecondMmaSteps ? kFirstMmaSteps : kSecondMmaSteps;
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) {
      if (d < kFirstMmaSteps)
        multiply_mma_step<kFirstMmaSteps>(rows.first, first_at, d, lane, score);
      if (d < kSecondMmaSteps)
        multiply_mma_step<kSecondMmaSteps>(rows.second, second_at, d, lane, gradient);
    }
  }

  // dv and dk of 16 queries.
  FULMEN_DEVICE static void multiply_values(WaveRows& rows, int at, int f, unsigned lane,
                                            const ProbabilityOperand (&p)[kRowTiles],
                                            const ProbabilityOperand (&ds)[kRowTiles]) {
    if constexpr (kGivesDv) {
#pragma unroll
      for (int d = 0; d < kSecondTiles; ++d) {
        const ValueOperand values =
            SwizzledRows<kHeadDimV>::values(lane, at + kBackward.second_at, f, d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
          multiply_output<Element>(rows.second_sum[t][d], p[t], values);
      }
    }
    if constexpr (kGivesDk) {
#pragma unroll
      for (int d = 0; d < kFirstTiles; ++d) {
        const ValueOperand values = SwizzledRows<kHeadDim>::values(lane, at, f, d);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t)
          multiply_output<Element>(rows.first_sum[t][d], ds[t], values);
      }
    }
  }

  // The wave's scores of a tile, dS^T to LDS, dv and dk.
  template <bool kMasked>
  FULMEN_DEVICE void step(WaveRows& rows, Int64 head, Int64 first_query, int buffer,
                          int gradients_at) const {
    const int at = buffer * kBackward.buffer_bytes;
    const unsigned lane = lane_again();
    const DropoutMask dropout(arguments, batch, head);
    TileScores tile[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      tile[t] = tile_scores<kMasked>(head, wave_row + kScoreTile * t, first_query);
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      float score[kRowTiles][kElements] = {}, gradient[kRowTiles][kElements] = {};
      multiply_both(rows, at, f, lane, score, gradient);
      ProbabilityOperand p[kRowTiles], ds[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const RowStatistics none[kRowsPerLane] = {};
        float bias[kElements];
        const auto stays =
            staying(dropout, wave_row + kScoreTile * t, first_query + kScoreTile * f);
        gradients<kMasked>(tile[t], kScoreTile * f, at + kBackward.numbers_at + 8 * kScoreTile * f,
                           stays, none, score[t], gradient[t], bias);
        store_bias_gradient<kMasked>(*this, head, wave_row + kScoreTile * t,
                                     first_query + kScoreTile * f, gradient[t]);
        p[t] = to_operand<Element>(score[t]);
        ds[t] = to_operand<Element>(gradient[t]);
        ScoreRows::leave(lane, gradients_at + (row + kScoreTile * t) * ScoreRows::kPitch, f, ds[t]);
      }
      multiply_values(rows, at, f, lane, p, ds);
    }
  }
};

// Tiles of 16 dims side by side, from kFirst on.
template <int kFirst, int kTile = 0>
FULMEN_DEVICE void add_tiles(float* to, const float (&sum)[kPassTiles][kElements]) {
  QuerySums::add<(kFirst + kTile) * kSumTile>(to, sum[kTile]);
  if constexpr (kTile + 1 < kPassTiles) add_tiles<kFirst, kTile + 1>(to, sum);
}

// dq of a tile of queries from this workgroup's keys.
FULMEN_DEVICE void add_queries(const Pending& pending, int wave) {
  const unsigned lane = lane_again();
#pragma unroll
  for (int n = 0; n < (kPasses + kWaves - 1) / kWaves; ++n) {
    const int pass = n * kWaves + wave;
    if (kPasses % kWaves != 0 && pass >= kPasses) break;
    const int queries = pass % (kColumnTiles / 2) * 2,
              dims = pass / (kColumnTiles / 2) * kPassTiles;
    float sum[2][kPassTiles][kElements] = {};
    // Whole lines further lanes' addresses are the same.
    constexpr bool kWholeLines = 32 * kPassTiles % 128 == 0;
    const int gradients_at = pending.gradients_at + queries / ScoreRows::kTiles * kScorePartBytes,
              keys_at = kAtomic.keys_at + (kWholeLines ? 32 * dims : 0);
#pragma unroll
    for (int k = 0; k < kBlockM / kScoreTile; ++k) {
      ProbabilityOperand ds[2];
#pragma unroll
      for (int t = 0; t < 2; ++t)
        ds[t] = ScoreRows::transposed(lane, gradients_at + kScoreTile * k * ScoreRows::kPitch,
                                      queries % ScoreRows::kTiles + t);
#pragma unroll
      for (int d = 0; d < kPassTiles; ++d) {
        const ValueOperand keys =
            SwizzledRows<kHeadDim>::values(lane, keys_at, k, (kWholeLines ? 0 : dims) + d);
#pragma unroll
        for (int t = 0; t < 2; ++t) multiply_output<Element>(sum[t][d], ds[t], keys);
      }
    }
    const Int64 tile = pending.first_query / kScoreTile + queries;
    float* const to = QuerySums::of_lane(pending.sums.tile(tile, dims), lane);
    if (tile < pending.sums.tiles) add_tiles<0>(to, sum[0]);
    if (tile + 1 < pending.sums.tiles) add_tiles<kHeadDim / kScoreTile>(to, sum[1]);
  }
}

// kRows rows of a tensor to LDS, zeros where there are none.
template <int kDims, int kRows, bool kAll, class Alive>
FULMEN_DEVICE void copy_rows(const Element* rows, Int64 stride, int dims, int left, int at,
                             const Alive& alive) {
  constexpr int kRow = kDims / 8, kLater = kWorkgroup / kRow, kPitch = SwizzledRows<kDims>::kPitch;
  static_assert(kLater % 8 == 0, "backward_atomic: later rows' pieces are swizzled alike");
  // Every round the same piece of a later row.
  const auto thread = static_cast<unsigned>(recompute(thread_id()));
  const int row = static_cast<int>(thread / kRow), dim = static_cast<int>(thread % kRow) * 8;
  const Element* from = rows + (row * static_cast<int>(stride) + dim);
  const bool there = kExactDims || dim < dims;
#pragma unroll
  for (int n = 0; n < kRows / kLater; ++n) {
    const int later = n * kLater;
    copy_async_16(at + SwizzledRows<kDims>::place(row, 2 * dim) + later * kPitch,
                  from + later * stride,
                  there && (kAll || row + later < left) && alive(row + later));
  }
}
template <int kDims, int kRows>
FULMEN_DEVICE void copy_rows(const Element* rows, Int64 stride, int dims, int left, int at) {
  const auto any = [](int) { return true; };
  if (left >= kRows) {
    copy_rows<kDims, kRows, true>(rows, stride, dims, left, at, any);
  } else {
    copy_rows<kDims, kRows, false>(rows, stride, dims, left, at, any);
  }
}
template <int kRows>
constexpr bool kEvenCopies =
    kWholeRows && kWorkgroup % (kHeadDim / 8) == 0 && kWorkgroup % (kHeadDimV / 8) == 0 &&
    kRows % (kWorkgroup / (kHeadDim / 8)) == 0 && kRows % (kWorkgroup / (kHeadDimV / 8)) == 0 &&
    kWorkgroup / (kHeadDim / 8) % 8 == 0 && kWorkgroup / (kHeadDimV / 8) % 8 == 0;

// The workgroup's keys and values.
class Keys {
 public:
  FULMEN_DEVICE Keys(const BackwardArguments& a, Int64 batch, Int64 kv_head,
                     const algorithm::Band& band, Int64 row_begin, Int64 row_end,
                     const algorithm::KeyRange& attended)
      : a_(a),
        batch_(batch),
        kv_head_(kv_head),
        band_(band),
        row_begin_(row_begin),
        row_end_(row_end),
        attended_(attended) {}

  // They are in LDS, or in flight there.
  FULMEN_DEVICE void fetch() const {
    const Side side = Side::keys(a_, batch_, kv_head_);
    if constexpr (kCopied) {
      const auto left = static_cast<int>(row_end_ - row_begin_);
      const Element* const first = side.first + row_begin_ * side.first_stride;
      // What a band attends has no holes.
      if (kBand && !kKeepMask && alive(row_begin_) && alive(row_end_ - 1)) {
        copy_rows<kHeadDim, kBlockM>(first, side.first_stride, a_.head_dim, left, kAtomic.keys_at);
      } else {
        copy_rows<kHeadDim, kBlockM, false>(
            first, side.first_stride, a_.head_dim, left, kAtomic.keys_at,
            [&](int row) { return row < left && alive(row_begin_ + row); });
      }
      copy_rows<kHeadDimV, kBlockM>(side.second + row_begin_ * side.second_stride,
                                    side.second_stride, a_.head_dim_v, left, kValuesAt);
      copy_commit();
    } else {
      rows_to_lds<kHeadDim>(side.first, side.first_stride, a_.head_dim, row_begin_, row_end_,
                            kAtomic.keys_at, [&](Int64 j) { return alive(j); });
      rows_to_lds<kHeadDimV>(side.second, side.second_stride, a_.head_dim_v, row_begin_, row_end_,
                             kValuesAt, [](Int64) { return true; });
    }
  }
  // After the first tile of queries has been sent for: to registers, where they do not stay in LDS.
  FULMEN_DEVICE static void arrive(WaveRows& rows, const AtomicTask& task) {
    if constexpr (kCopied) copy_wait<1>();
    barrier();
    to_registers<kFirstMmaSteps>(kAtomic.keys_at + task.row * kBackward.first_pitch, rows.first);
    to_registers<kSecondMmaSteps>(kValuesAt + task.row * kBackward.second_pitch, rows.second);
  }
  FULMEN_DEVICE static void arrive(PairRows& /*rows*/, const PairScores& /*task*/) {}

 private:
  static constexpr bool kCopied = kEvenCopies<kBlockM>;
  // Values go to registers through the LDS of dS^T.
  static constexpr int kValuesAt = kRowsInLds ? kBackward.second_rows_at : kAtomic.gradients_at;
  static_assert(kRowsInLds || kBlockM * kBackward.second_pitch <= 2 * kAtomic.gradient_bytes,
                "backward_atomic: room for values");

  FULMEN_DEVICE bool alive(Int64 j) const {
    return key_is_attended(a_, batch_, kv_head_, band_, attended_, j);
  }
  template <int kMmaSteps, int kHeld, int kHeldMmaSteps>
  FULMEN_DEVICE static void to_registers(int at, RowOperand (&rows)[kHeld][kHeldMmaSteps]) {
    using Rows = LdsRows<kMmaSteps * kMmaK>;
#pragma unroll
    for (int t = 0; t < kHeld; ++t) {
#pragma unroll
      for (int d = 0; d < kMmaSteps; ++d)
        rows[t][d] = Rows::operand(at + kScoreTile * t * Rows::kPitch, d);
    }
  }

  const BackwardArguments& a_;
  Int64 batch_, kv_head_;
  const algorithm::Band& band_;
  Int64 row_begin_, row_end_;
  const algorithm::KeyRange& attended_;
};

// A workgroup's loop over the queries of a KV head's query heads.
template <class Task, class KeyRows>
class Walk {
 public:
  FULMEN_DEVICE Walk(const BackwardArguments& a, Int64 batch, Int64 kv_head, const Task& task,
                     const TileOrder& order, Int64 query_end, int wave)
      : a_(a),
        batch_(batch),
        last_head_((kv_head + 1) * a.group_size),
        task_(task),
        order_(order),
        query_end_(query_end),
        wave_(wave) {}

  FULMEN_DEVICE void begin() { fetch(last_head_ - a_.group_size, 0, 0); }
  FULMEN_DEVICE void over_all(KeyRows& rows) {
    const Int64 first_head = last_head_ - a_.group_size;
    for (Int64 head = first_head; head < last_head_; ++head) {
      int n = 0;
      for (; n < order_.masked; ++n) tile<true>(rows, head, n);
      for (; n < order_.count; ++n) tile<false>(rows, head, n);
    }
    barrier();
    add_queries(pending_, wave_);
  }

 private:
  // Starts the loads of tile n of a head, or, after its last, of the next head's first.
  FULMEN_DEVICE void fetch(Int64 head, int n, int buffer) {
    if (n == order_.count) {
      ++head;
      n = 0;
    }
    if (head >= last_head_) return;
    const Side side = Side::queries(a_, batch_, head);
    const Int64 first = order_.first_key(n);
    if constexpr (kEvenCopies<kBlockN>) {
      const int at = buffer * kBackward.buffer_bytes, left = at_most(query_end_ - first, kBlockN);
      copy_rows<kHeadDim, kBlockN>(side.first + first * side.first_stride, side.first_stride,
                                   a_.head_dim, left, at);
      copy_rows<kHeadDimV, kBlockN>(side.second + first * side.second_stride, side.second_stride,
                                    a_.head_dim_v, left, at + kBackward.second_at);
      if (const int row = thread_id(); row < kBlockN)
        copy_async_8(at + kBackward.numbers_at + 8 * row,
                     RowStatistics::first_of(a_, batch_, head) + first + row, row < left);
      copy_commit();
    } else {
      columns_.fetch(a_, side, batch_, head, first, query_end_, buffer, [](Int64) { return true; });
    }
  }
  FULMEN_DEVICE void publish(int buffer) {
    if constexpr (kEvenCopies<kBlockN>) {
      copy_wait<0>();
    } else {
      columns_.publish(buffer);
    }
  }
  FULMEN_DEVICE void fetch_early(Int64 head, int n) {
    if constexpr (kBuffers == 2) fetch(head, n, 1 - turn_);
  }
  FULMEN_DEVICE void add_pending() const {
    if (pending_.first_query >= 0) add_queries(pending_, wave_);
  }
  template <bool kMasked>
  FULMEN_DEVICE void tile(KeyRows& rows, Int64 head, int n) {
    const int buffer = kBuffers == 2 ? turn_ : 0;
    publish(buffer);
    barrier();
    const Int64 first_query = order_.first_key(n);
    const int gradients_at = kAtomic.gradients_at + turn_ * kAtomic.gradient_bytes;
    const Pending now{QuerySums::of(a_, batch_, head), first_query, gradients_at};
    if constexpr (!kPairs) {
      fetch_early(head, n + 1);
      add_pending();
      task_.template step<kMasked>(rows, head, first_query, buffer, gradients_at);
    } else if (task_.second) {
      fetch_early(head, n + 1);
      add_pending();
      task_.template step<kMasked, true>(rows, head, first_query, buffer, gradients_at);
    } else {
      // What the second of a pair wait for comes first; copies and atomics are then at different
      // times, too.
      task_.template step<kMasked, false>(rows, head, first_query, buffer, gradients_at);
      fetch_early(head, n + 1);
      add_pending();
    }
    pending_ = now;
    if constexpr (kBuffers == 1) {
      barrier();
      fetch(head, n + 1, 0);
    }
    turn_ = 1 - turn_;
  }

  const BackwardArguments& a_;
  Int64 batch_, last_head_;
  const Task& task_;
  const TileOrder& order_;
  Int64 query_end_;
  int wave_;
  Columns columns_;
  Pending pending_;
  int turn_ = 0;  // of two tiles
};

FULMEN_DEVICE void gradients_of_keys(const BackwardArguments& a, Int64 batch, Int64 kv_head,
                                     Int64 row_begin) {
  const Int64 row_end = row_begin + kBlockM < a.seqlen_k ? row_begin + kBlockM : a.seqlen_k;
  const algorithm::Band band = column_band(a);
  const algorithm::KeyRange attended = met_columns(a, band, batch, kv_head, row_begin, row_end);
  const TileOrder order = order_of_queries(a, band, row_begin, row_end, attended);
  using Task = Either<kPairs, Either<kDimGroups == 2, PairTask, QuadTask>, AtomicTask>;
  using KeyRows = Either<kPairs, PairRows, WaveRows>;
  const int wave = wave_id();
  const Task task = Task::of(a, batch, band, row_begin, row_end, wave);
  KeyRows rows = {};
  if (attended.end > attended.begin) {
    const Keys keys(a, batch, kv_head, band, row_begin, row_end, attended);
    Walk<Task, KeyRows> walk(a, batch, kv_head, task, order, attended.end, wave);
    keys.fetch();
    walk.begin();
    keys.arrive(rows, task);
    walk.over_all(rows);
  }
  task.store_sums(kv_head, rows);
}

FULMEN_DEVICE void backward_atomic(const BackwardArguments& call) {
  const KeyBlock block = KeyBlock::of(call, workgroup_id());
  const BackwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= a.seqlen_k) return;
  gradients_of_keys(a, block.batch, block.kv_head, block.row_begin);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_atomic)
