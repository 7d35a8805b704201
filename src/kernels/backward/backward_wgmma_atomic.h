// Gradients of q, k and v as in backward_atomic.h, by Hopper's warpgroup products: 5 of them, dq
// added up by atomics. A workgroup of two warpgroups owns kBlockM keys of one KV head and goes over
// queries in tiles of kBlockN:
//
//   S^T = k q^T, D^T = v dout^T  P^T, dS^T of a tile  dv += P^T dout, dk += dS^T q  in registers
//                                                     dq += dS k                    in memory, fp32
//
// Up to head_dim 128 a warpgroup owns 64 keys: P^T and dS^T go from its scores to its products,
// only dq needs the other's dS^T, by way of LDS. Above, two warpgroups share 64 keys: each computes
// the scores of half of the queries, and half of the dims of all gradients.
#include "backward/backward_wgmma_atomic_layout.h"
#include "backward/parts/query_sums.h"
#include "backward/parts/wgmma_panels.h"

namespace fulmen::kernels {

constexpr WarpgroupAtomicLayout kLdsLayout =
    WarpgroupAtomicLayout::of(kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers);
static_assert(kLdsLayout.total == kLdsBytes,
              "backward_wgmma_atomic: the host reserves the LDS that the tiles need");
static_assert(kAddsDq,
              "backward_wgmma_atomic: dq alone, and dk and dv without it, need no atomics");

constexpr bool kOwnKeys = kDimGroups == 1;
// Workgroups of a head begin at different queries, lest their atomics meet: where that measured
// faster.
constexpr bool kStaggered = !kBand && kOwnKeys && kHeadDim > 64;
// The warpgroups of narrow heads take the two halves of a tile's work in different orders.
constexpr bool kSkewed = kOwnKeys && kHeadDim == 64;
// Tiles of queries in flight while one is computed.
constexpr int kAhead = kBuffers - 1 - (kSkewed ? 1 : 0);
static_assert(kWarpgroups == 2 && kHeadDim % (64 * kDimGroups) == 0 &&
                  kHeadDimV % (64 * kDimGroups) == 0,
              "backward_wgmma_atomic: a warpgroup has 64 keys and whole panels");
constexpr int kShareTiles = kColumnTiles / kDimGroups;          // of a tile's queries, by 16
constexpr int kSumTiles = kHeadDim / kScoreTile / kWarpgroups;  // a warpgroup's of dq, by 16 dims

// A wave's tiles of 16 dims of dk and dv, and their sums over queries for its keys.
constexpr int kKeyTiles = kHeadDim / kScoreTile / kDimGroups,
              kValueTiles = kHeadDimV / kScoreTile / kDimGroups;
struct KeySums {
  float dk[1][kKeyTiles][kElements];
  float dv[1][kValueTiles][kElements];
};

// The first of a wave's keys in the workgroup's.
FULMEN_DEVICE int row_of(int wave) { return kScoreTile * (kOwnKeys ? wave : wave % 4); }

// P^T and dS^T of 16 queries each as operands, between a wave's scores and its products.
struct HeldScores {
  ProbabilityOperand p[kShareTiles], ds[kShareTiles];
  int buffer = -1;  // where the queries lie; -1: none are held
};
// The scores' gradients of a tile, in LDS, that dq has yet to get.
struct PendingQueries {
  float* sums = nullptr;  // where the wave adds; null: its queries are none
  int gradients_at = -1;  // -1: nothing is pending
};

// The workgroup's loop over the queries of a KV head's query heads.
class WarpgroupWalk {
 public:
  FULMEN_DEVICE WarpgroupWalk(const BackwardTask& task, const TileOrder& order, Int64 kv_head,
                              Int64 query_end, int wave)
      : task_(task),
        order_(order),
        last_head_((kv_head + 1) * task.arguments.group_size),
        query_end_(query_end),
        warpgroup_(wave / 4),
        wave_(wave % 4),
        attended_(kOwnKeys ? attended_by(task.wave_row - kScoreTile * (wave % 4))
                           : algorithm::KeyRange{}),
        next_head_(last_head_ - task.arguments.group_size) {
    if constexpr (kStaggered) {
      const Int64 row = task.wave_row - row_of(wave),
                  rows = tiles_of(task.arguments.seqlen_k, kBlockM) * kBlockM;
      shift_ = static_cast<int>(row * (order.count - order.masked) / rows);
    }
  }

  // The first tile comes after the keys.
  FULMEN_DEVICE void over_all(KeySums& sums) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) fetch_next();
    if constexpr (kOwnKeys) publish();
    for (Int64 head = last_head_ - task_.arguments.group_size; head < last_head_; ++head) {
      int n = 0;
      for (; n < order_.masked; ++n) tile<true>(sums, head, n);
      for (; n < order_.count; ++n) tile<false>(sums, head, n);
    }
    if constexpr (kOwnKeys) {
      barrier();
      finish(sums);
    }
  }

 private:
  // The first query of the n-th tile. Tiles that need masks come first in every workgroup.
  FULMEN_DEVICE Int64 first_query(int n) const {
    if constexpr (kStaggered) {
      if (n >= order_.masked) n += shift_;
      if (n >= order_.count) n -= order_.count - order_.masked;
    }
    return order_.first_key(n);
  }
  FULMEN_DEVICE algorithm::KeyRange attended_by(Int64 first) const {
    const Int64 end = first + 64 < task_.row_end ? first + 64 : task_.row_end;
    return first < end ? task_.band.any(first, end) : algorithm::KeyRange{};
  }
  // After the next barrier there is the next tile, and what was written to LDS.
  FULMEN_DEVICE static void publish() {
    copy_wait<kAhead - 1>();
    lds_fence_for_matrices();
  }
  // Starts the copy of one more tile of queries, if there is one: a group of copies in any case.
  FULMEN_DEVICE void fetch_next() {
    if (next_head_ < last_head_) fetch_one();
    copy_commit();
  }
  FULMEN_DEVICE void fetch_one() {
    const BackwardArguments& a = task_.arguments;
    const Side side = Side::queries(a, task_.batch, next_head_);
    const Int64 first = first_query(next_);
    const int at = kLdsLayout.queries_at + next_buffer_ * kLdsLayout.buffer_bytes,
              left = at_most(query_end_ - first, kBlockN);
    copy_panels<kHeadDim, kBlockN>(side.first + first * side.first_stride, side.first_stride,
                                   a.head_dim, left, at);
    copy_panels<kHeadDimV, kBlockN>(side.second + first * side.second_stride, side.second_stride,
                                    a.head_dim_v, left, at + kLdsLayout.dout_at);
    if (const int row = thread_id(); row < kBlockN) {
      copy_async_8(kLdsLayout.numbers_at + next_buffer_ * kLdsLayout.number_bytes + 8 * row,
                   RowStatistics::first_of(a, task_.batch, next_head_) + first + row, row < left);
    }
    next_buffer_ = following(next_buffer_);
    if (++next_ == order_.count) {
      next_ = 0;
      ++next_head_;
    }
  }
  FULMEN_DEVICE static int following(int buffer) { return buffer + 1 == kBuffers ? 0 : buffer + 1; }

  template <bool kMasked>
  FULMEN_DEVICE void tile(KeySums& sums, Int64 head, int n) {
    if constexpr (!kOwnKeys) publish();
    barrier();
    const Int64 first_query = this->first_query(n);
    const PendingQueries now{
        sums_of(head, first_query),
        kLdsLayout.gradients_at + (kOwnKeys ? turn_ * kLdsLayout.gradient_bytes : 0)};
    if constexpr (kSkewed) {
      // One warpgroup begins with the scores, the other with the products of the tile before: so
      // that the matrix units have work while exponentials are computed.
      int part = 1 - warpgroup_;
#pragma unroll 1
      while (true) {
        if (part % 2 == 0) {
          finish(sums);
        } else {
          step<kMasked>(head, first_query, now.gradients_at);
        }
        if (part >= 2) break;
        part = 3 - part;
      }
      pending_ = now;
    } else if constexpr (kOwnKeys) {
      step<kMasked>(head, first_query, now.gradients_at);
      finish(sums);
      pending_ = now;
    } else {
      step<kMasked>(head, first_query, now.gradients_at);
      barrier();
      pending_ = now;
      finish(sums);
    }
    turn_ = 1 - turn_;
    buffer_ = following(buffer_);
  }

  // P^T and dS^T of the warpgroup's share of a tile: both held, or in LDS, dS^T in LDS in any case.
  template <bool kMasked>
  FULMEN_DEVICE void step(Int64 head, Int64 first_query, int gradients_at) {
    if constexpr (kMasked && kOwnKeys) {
      if (first_query >= attended_.end || first_query + kBlockN <= attended_.begin) {
        // None of these keys; the other warpgroup has some.
#pragma unroll
        for (int f = 0; f < kShareTiles; ++f)
          store_transposed(gradients_at, f, ProbabilityOperand{});
        fetch_next();
        publish();
        return;
      }
    }
    const int queries_at = kLdsLayout.queries_at + buffer_ * kLdsLayout.buffer_bytes;
    float score[kShareTiles][kElements], gradient[kShareTiles][kElements];
    multiply_rows<kHeadDimTiles>(score, kLdsLayout.keys_at, queries_at);
    multiply_rows<kHeadDimVTiles>(gradient, kLdsLayout.values_at, queries_at + kLdsLayout.dout_at);
    fetch_next();
    const int first = kScoreTile * kShareTiles * share();
    const RowStatistics none[kRowsPerLane] = {};
    wait_for_scores<kMasked, 0>(
        task_, head, first_query, first,
        kLdsLayout.numbers_at + buffer_ * kLdsLayout.number_bytes + 8 * first, none, score,
        gradient);
#pragma unroll
    for (int f = 0; f < kShareTiles; ++f) {
      held_.p[f] = to_operand<Element>(score[f]);
      held_.ds[f] = to_operand<Element>(gradient[f]);
      store_transposed(gradients_at, f, held_.ds[f]);
      if constexpr (!kOwnKeys) store_transposed(kLdsLayout.probabilities_at, f, held_.p[f]);
    }
    held_.buffer = buffer_;
    if constexpr (kOwnKeys) {
      publish();
    } else {
      lds_fence_for_matrices();
    }
  }

  // The products of what is held, or in LDS, and dq of what is pending.
  FULMEN_DEVICE void finish(KeySums& sums) {
    const bool held = held_.buffer >= 0, pending = pending_.gradients_at >= 0;
    float dq[kSumTiles][kElements];
    if constexpr (kOwnKeys) {
      // No product may be in flight where control flow joins: compilers would wait for all of them
      // there.
      if (held && pending) {
        add_keys(sums);
        multiply_queries(dq);
        wait_for_all(sums, dq);
        add_queries(dq);
      } else if (held) {
        add_keys(sums);
        wait_for_all(sums, dq);
      } else if (pending) {
        multiply_queries(dq);
        wait_for_all(sums, dq);
        add_queries(dq);
      }
      held_.buffer = -1;
    } else {
      multiply_queries(dq);
      add_shared_keys(sums);
      wgmma_wait<1>();
      wgmma_hold(dq);
      add_queries(dq);
      wait_for_all(sums, dq);
    }
  }
  FULMEN_DEVICE static void wait_for_all(KeySums& sums, float (&dq)[kSumTiles][kElements]) {
    wgmma_wait<0>();
    wgmma_hold(dq);
    if constexpr (kGivesDv) wgmma_hold(sums.dv[0]);
    if constexpr (kGivesDk) wgmma_hold(sums.dk[0]);
  }

  // 16 queries of the wave's keys to panels of [key][query].
  FULMEN_DEVICE void store_transposed(int at, int n, const ProbabilityOperand& x) const {
    const auto lane = static_cast<int>(lane_again()),
               row = (kOwnKeys ? 64 * warpgroup_ : 0) + kScoreTile * wave_ + lane % 16;
    stmatrix_x4(
        at + panel_place(row, kScoreTile * (share() * kShareTiles + n) + lane / 16 * 8, kBlockM),
        x.words);
  }

  // The warpgroup's part of what both share.
  FULMEN_DEVICE int share() const { return kOwnKeys ? 0 : warpgroup_; }

  // S^T or D^T.
  template <int kMmaSteps>
  FULMEN_DEVICE void multiply_rows(float (&product)[kShareTiles][kElements], int rows_at,
                                   int columns_at) const {
    multiply_panels<kMmaSteps>(
        product, matrix_at(rows_at, kBlockM).rows_further(kOwnKeys ? 64 * warpgroup_ : 0),
        matrix_at(columns_at, kBlockN).rows_further(kScoreTile * kShareTiles * share()));
  }
  // dv and dk of the warpgroup's keys.
  FULMEN_DEVICE void add_keys(KeySums& sums) const {
    const int queries_at = kLdsLayout.queries_at + held_.buffer * kLdsLayout.buffer_bytes;
    const LdsMatrix queries = matrix_at(queries_at, kBlockN),
                    dout = matrix_at(queries_at + kLdsLayout.dout_at, kBlockN);
    wgmma_fence();
#pragma unroll
    for (int f = 0; f < kShareTiles; ++f) {
      if constexpr (kGivesDv)
        wgmma<Element, true>(sums.dv[0], held_.p[f].words, dout.rows_further(kWgmmaDepth * f),
                             true);
    }
#pragma unroll
    for (int f = 0; f < kShareTiles; ++f) {
      if constexpr (kGivesDk)
        wgmma<Element, true>(sums.dk[0], held_.ds[f].words, queries.rows_further(kWgmmaDepth * f),
                             true);
    }
    wgmma_commit();
  }
  // Its part of the dims of shared keys.
  FULMEN_DEVICE void add_shared_keys(KeySums& sums) const {
    const int queries_at = kLdsLayout.queries_at + held_.buffer * kLdsLayout.buffer_bytes;
    begin_shared_keys(sums.dk[0], sums.dv[0], kLdsLayout.gradients_at, kLdsLayout.probabilities_at,
                      queries_at, queries_at + kLdsLayout.dout_at, warpgroup_);
  }
  FULMEN_DEVICE void multiply_queries(float (&dq)[kSumTiles][kElements]) const {
    begin_queries(dq, pending_.gradients_at, kLdsLayout.keys_at, warpgroup_);
  }
  FULMEN_DEVICE void add_queries(const float (&dq)[kSumTiles][kElements]) const {
    if (pending_.sums != nullptr) add_tiles<0>(QuerySums::of_lane(pending_.sums, lane_again()), dq);
  }
  // The wave's 16 queries of a tile, and the warpgroup's half of the dims.
  FULMEN_DEVICE float* sums_of(Int64 head, Int64 first_query) const {
    const QuerySums sums = QuerySums::of(task_.arguments, task_.batch, head);
    const Int64 tile = first_query / kScoreTile + wave_;
    return tile < sums.tiles ? sums.tile(tile, kSumTiles * warpgroup_) : nullptr;
  }
  template <int kTile>
  FULMEN_DEVICE static void add_tiles(float* to, const float (&dq)[kSumTiles][kElements]) {
    QuerySums::add<kTile * kSumTile>(to, dq[kTile]);
    if constexpr (kTile + 1 < kSumTiles) add_tiles<kTile + 1>(to, dq);
  }

  const BackwardTask& task_;
  const TileOrder& order_;
  Int64 last_head_, query_end_;
  int warpgroup_, wave_;          // its waves 0 to 3
  algorithm::KeyRange attended_;  // queries that attend some of the warpgroup's keys
  Int64 next_head_;               // of the tile to fetch
  int shift_ = 0;
  int next_ = 0, next_buffer_ = 0;
  int buffer_ = 0;  // of the tile now
  int turn_ = 0;    // of two tiles
  HeldScores held_;
  PendingQueries pending_;
};

// Keys that no query attends, and their values, may be NaN, and are taken times 0: they become 0.
FULMEN_DEVICE void fetch_keys(const BackwardTask& task, Int64 kv_head, Int64 row_begin,
                              const algorithm::KeyRange& attended) {
  const BackwardArguments& a = task.arguments;
  const Side side = Side::keys(a, task.batch, kv_head);
  const auto left = static_cast<int>(task.row_end - row_begin);
  const auto alive = [&](int row) {
    return row < left &&
           key_is_attended(a, task.batch, kv_head, task.band, attended, row_begin + row);
  };
  copy_panels<kHeadDim, kBlockM, true>(side.first + row_begin * side.first_stride,
                                       side.first_stride, a.head_dim, left, kLdsLayout.keys_at,
                                       alive);
  copy_panels<kHeadDimV, kBlockM, true>(side.second + row_begin * side.second_stride,
                                        side.second_stride, a.head_dim_v, left,
                                        kLdsLayout.values_at, alive);
}

FULMEN_DEVICE void gradients_of_keys(const BackwardArguments& a, Int64 batch, Int64 kv_head,
                                     Int64 row_begin) {
  const Int64 row_end = row_begin + kBlockM < a.seqlen_k ? row_begin + kBlockM : a.seqlen_k;
  const algorithm::Band band = column_band(a);
  const algorithm::KeyRange attended = met_columns(a, band, batch, kv_head, row_begin, row_end);
  const TileOrder order = order_of_queries(a, band, row_begin, row_end, attended);
  const int wave = wave_id();
  const BackwardTask task{a, batch, band, row_begin + row_of(wave), row_end, 0, 0};
  KeySums sums = {};
  if (attended.end > attended.begin) {
    WarpgroupWalk walk(task, order, kv_head, attended.end, wave);
    fetch_keys(task, kv_head, row_begin, attended);
    walk.over_all(sums);
  }
  const int dims = kOwnKeys ? 0 : wave / 4;
  if constexpr (kGivesDk)
    store_rows(task, a.dk, kv_head, dims * kKeyTiles, a.head_dim, a.softmax_scale, sums.dk);
  if constexpr (kGivesDv)
    store_rows(task, a.dv, kv_head, dims * kValueTiles, a.head_dim_v, 1.0F, sums.dv);
}

FULMEN_DEVICE void backward_wgmma_atomic(const BackwardArguments& call) {
  const KeyBlock block = KeyBlock::of(call, workgroup_id());
  const BackwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= a.seqlen_k) return;
  gradients_of_keys(a, block.batch, block.kv_head, block.row_begin);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_wgmma_atomic)
