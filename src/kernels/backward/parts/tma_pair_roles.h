// Roles of the warps of backward_tma_wide.h that do not multiply, in each workgroup of a pair (a
// cluster of two).
//   loader             requests keys, values and tiles of queries from the TMA; the first
//                      workgroup's takes blocks of keys from the tile counter for both
//   sender warp        sends P^T and dS^T of the workgroup's keys to its peer
//   2 ordering warps   one tells the waves that multiply when they may add a tile of dQ to the sums
//                      in memory; the other counts the block when the sums have arrived there
//
// Two counters of each tile of dQ, one of each workgroup's half of the dims, say how many blocks
// have been added: in the order in which they are taken, as in tma_roles.h.
//
// Dims: a workgroup's own half is what it has of dQ, dK and dV. It needs the other half, too, for
// the scores of its keys.
#pragma once

#include "backward/backward_tma_wide_layout.h"
#include "backward/parts/tma_tiles.h"

namespace fulmen::kernels {

constexpr TmaPairLayout kLdsLayout = TmaPairLayout::of(kHeadDim, kHeadDimV);
static_assert(kLdsLayout.total == kLdsBytes,
              "backward_tma_wide: the host reserves the LDS that the tiles need");
constexpr int kPair = 2;
static_assert(kDimGroups == kPair && kBlockM == TmaPairLayout::kRows &&
                  kBlockN == TmaPairLayout::kRows,
              "backward_tma_wide: a pair of workgroups, of 64 keys each, shares a block");
constexpr int kHalfDims = kHeadDim / kPair, kHalfDimsV = kHeadDimV / kPair;
static_assert(kHalfDims % kPanelColumns == 0 && kHalfDimsV % kPanelColumns == 0,
              "backward_tma_wide: whole panels");
constexpr int kHalfPanels = kHalfDims / kPanelColumns, kHalfPanelsV = kHalfDimsV / kPanelColumns;
static_assert(kHalfPanels <= 2 && kHalfPanelsV <= 2,
              "backward_tma_wide: a warpgroup has a panel, or half of one");
constexpr int kOrderingWarps = 2;
static_assert(Block::kBytes <= kLdsLayout.block_bytes, "backward_tma_wide: a block's place");

// mbarriers, at which the workgroup's own waves arrive; at kGradientsEmpty the peer's, too, which
// read what was sent to them. All waves of both arrive at the first workgroup's kBlockEmpty.
constexpr int kKeysFull = kLdsLayout.barriers_at, kKeysEmpty = kKeysFull + 8,
              kValuesEmpty = kKeysEmpty + 8, kPatch = kValuesEmpty + 8;
constexpr int kQueriesFull = kPatch + 8, kQueriesEmpty = kQueriesFull + 8 * TmaPairLayout::kQueries;
constexpr int kDoutFull = kQueriesEmpty + 8 * TmaPairLayout::kQueries,
              kDoutEmpty = kDoutFull + 8 * TmaPairLayout::kDout;
constexpr int kOtherQueriesEmpty = kDoutEmpty + 8 * TmaPairLayout::kDout,
              kOtherDoutEmpty = kOtherQueriesEmpty + 8;
constexpr int kGradientsWritten = kOtherDoutEmpty + 8, kPeerWritten = kGradientsWritten + 8;
constexpr int kGradientsEmpty = kPeerWritten + 8;
constexpr int kSumsFull = kGradientsEmpty + 8, kSumsEmpty = kSumsFull + 8;
constexpr int kBlockFull = kSumsEmpty + 8, kBlockEmpty = kBlockFull + 16;
using QueryRing = Ring<TmaPairLayout::kQueries>;
using DoutRing = Ring<TmaPairLayout::kDout>;
using BlockRing = Ring<2>;

FULMEN_DEVICE void initialise_barriers() {
  mbarrier_init(kKeysFull, 1);
  mbarrier_init(kKeysEmpty, kConsumerWaves);
  mbarrier_init(kValuesEmpty, kConsumerWaves);
  mbarrier_init(kPatch, 1);
#pragma unroll
  for (int n = 0; n < TmaPairLayout::kQueries; ++n) {
    mbarrier_init(kQueriesFull + 8 * n, 2);
    mbarrier_init(kQueriesEmpty + 8 * n, kConsumerWaves);
  }
#pragma unroll
  for (int n = 0; n < TmaPairLayout::kDout; ++n) {
    mbarrier_init(kDoutFull + 8 * n, 1);
    mbarrier_init(kDoutEmpty + 8 * n, kConsumerWaves);
  }
  mbarrier_init(kOtherQueriesEmpty, kConsumerWaves);
  mbarrier_init(kOtherDoutEmpty, kConsumerWaves);
  mbarrier_init(kGradientsWritten, kConsumerWaves);
  mbarrier_init(kPeerWritten, 1);
  mbarrier_init(kGradientsEmpty, kPair * kConsumerWaves);
  mbarrier_init(kSumsFull, kConsumerWaves);
  mbarrier_init(kSumsEmpty, kOrderingWarps);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    mbarrier_init(kBlockFull + 8 * n, 1);
    // All arrive but the loader that takes.
    mbarrier_init(kBlockEmpty + 8 * n, kPair * (kConsumerWaves + kOrderingWarps + 2) - 1);
  }
  mbarrier_init_fence();
}
FULMEN_DEVICE void arrive_at(int rank, int barrier) {
  wave_barrier();
  if (lane_id() == 0) mbarrier_arrive_at(rank, barrier);
}

// The blocks that the pair's first workgroup takes from the tile counter: another wave's view.
class ScheduledBlocks {
 public:
  FULMEN_DEVICE explicit ScheduledBlocks(const BackwardArguments& a) : arguments_(a) {}
  template <class Visit>
  FULMEN_DEVICE void for_each(const Visit& visit) {
#pragma unroll 1
    while (true) {
      const Block block = next();
      if (!block.exists(arguments_)) return;
      visit_block(arguments_, block, visit);
    }
  }
  FULMEN_DEVICE Block next() {
    mbarrier_wait(kBlockFull + 8 * ring_.buffer, ring_.parity);
    const Block block = Block::load(kLdsLayout.blocks_at + kLdsLayout.block_bytes * ring_.buffer);
    arrive_at(0, kBlockEmpty + 8 * ring_.buffer);
    ring_.advance();
    return block;
  }
  // The second workgroup's loader says what comes from the first one.
  FULMEN_DEVICE void expect() const {
    if (lane_id() == 0) mbarrier_arrive_expect(kBlockFull + 8 * ring_.buffer, Block::kBytes);
    wave_barrier();
  }

 private:
  const BackwardArguments& arguments_;
  BlockRing ring_;
};

// One wave.
class Loader {
 public:
  FULMEN_DEVICE Loader(const TmaBackwardArguments& a, int rank)
      : arguments_(a), rank_(rank), scheduled_(a), finder_(a) {}
  FULMEN_DEVICE void run() {
#pragma unroll 1
    while (true) {
      const Block next = rank_ == 0 ? take() : receive();
      if (!next.exists(arguments_)) break;
      visit_block(arguments_, next, [&](const Work& work) { block(work); });
    }
  }

 private:
  FULMEN_DEVICE Block take() {
    const Block block = take_block(arguments_, finder_);
    const int full = kBlockFull + 8 * blocks_.buffer,
              at = kLdsLayout.blocks_at + kLdsLayout.block_bytes * blocks_.buffer;
    mbarrier_wait(kBlockEmpty + 8 * blocks_.buffer, blocks_.parity ^ 1);
    if (lane_id() == 0) {
      block.store(at);
      lds_fence_for_matrices();
      cluster_copy(1, at, at, Block::kBytes, full);
      mbarrier_arrive(full);
    }
    blocks_.advance();
    return block;
  }
  FULMEN_DEVICE Block receive() {
    scheduled_.expect();
    return scheduled_.next();
  }
  // The first tiles of queries are prefetched while the block before is computed; the keys follow
  // when it has ended.
  FULMEN_DEVICE void block(const Work& work) {
    if (work.order.count == 0) return;
    const unsigned early = is_first_ ? 0 : 1;
    is_first_ = false;
    unsigned asked = 0;
    work.for_each_tile([&](int head, const QueryOrder::Entry& entry) {
      if (asked == early) keys(work);
      queries(work, head, entry.tile());
      ++asked;
    });
    if (asked <= early) keys(work);
  }
  FULMEN_DEVICE int own_dim(int half) const { return rank_ * half; }
  FULMEN_DEVICE int other_dim(int half) const { return (1 - rank_) * half; }

  // Keys that no query attends, and their values, may be NaN, and are taken times 0: they become 0.
  FULMEN_DEVICE void keys(const Work& work) {
    const TmaBackwardArguments& a = arguments_;
    const Int64 first = work.row_begin + rank_ * kBlockM,
                peer_first = work.row_begin + (1 - rank_) * kBlockM;
    const auto own = AttendedKeys<kBlockM>::of(work, first),
               peers = AttendedKeys<kBlockM>::of(work, peer_first);
    const bool patched = own.hides_some(work.row_end) || peers.hides_some(work.row_end);
    const int arrives = patched ? kPatch : kKeysFull;
    const TensorRows rows = work.block.key_rows(a, work.batch);
    const L2Policy once = L2Policy::evict_first();
    const auto load_values = [&](int to, int dim) {
      load_panels<kHalfPanelsV, kBlockM>(to, {a.v_map, dim, rows, first, work.kv_head}, arrives,
                                         once);
    };
    const auto load_keys = [&](int to, int dim, Int64 row) {
      load_panels<kHalfPanels, kBlockM>(to, {a.k_map, dim, rows, row, work.kv_head}, arrives, once);
    };
    mbarrier_wait(kValuesEmpty, keys_parity_ ^ 1);
    expect(arrives, 3 * kLdsLayout.half_bytes + 2 * kLdsLayout.half_bytes_v);
    if (lane_id() == 0) {
      load_values(kLdsLayout.values_at, own_dim(kHalfDimsV));
      load_values(kLdsLayout.values_at + kLdsLayout.half_bytes_v, other_dim(kHalfDimsV));
    }
    mbarrier_wait(kKeysEmpty, keys_parity_ ^ 1);
    if (lane_id() == 0) {
      load_keys(kLdsLayout.keys_at, own_dim(kHalfDims), first);
      load_keys(kLdsLayout.keys_at + kLdsLayout.half_bytes, other_dim(kHalfDims), first);
      load_keys(kLdsLayout.peer_keys_at, own_dim(kHalfDims), peer_first);
    }
    keys_parity_ ^= 1;
    if (!patched) return;
    mbarrier_wait(kPatch, patch_parity_);
    patch_parity_ ^= 1;
    wave_barrier();
    own.for_each_hidden([&](int at) {
      clear_in_panels<2 * kHalfPanels, kBlockM>(kLdsLayout.keys_at + at);
      clear_in_panels<2 * kHalfPanelsV, kBlockM>(kLdsLayout.values_at + at);
    });
    peers.for_each_hidden(
        [&](int at) { clear_in_panels<kHalfPanels, kBlockM>(kLdsLayout.peer_keys_at + at); });
    lds_fence_for_matrices();
    arrive(kKeysFull);
  }
  // In the order in which they are needed.
  FULMEN_DEVICE void queries(const Work& work, int head, int tile) {
    const TmaBackwardArguments& a = arguments_;
    const QueryRow first = QueryRow{tile} * kBlockN;
    const StatisticsInFlight statistics(work, head, first);  // while the buffer is in use
    const auto place = [&](const TensorMap& map, int column) {
      return TensorPlace{map, column, work.block.query_rows(a, work.batch), first, head};
    };
    const bool clears = has_others_queries(work, first);
    const int own = queries_there(work, first);
    const int full = kQueriesFull + 8 * queries_.buffer, dout_full = kDoutFull + 8 * dout_.buffer;
    const int queries_at = kLdsLayout.queries_at + queries_.buffer * kLdsLayout.half_bytes,
              dout_at = kLdsLayout.dout_at + dout_.buffer * kLdsLayout.half_bytes_v;
    const int q_arrives = clears ? kPatch : full, dout_arrives = clears ? kPatch : dout_full;
    mbarrier_wait(kQueriesEmpty + 8 * queries_.buffer, queries_.parity ^ 1);
    expect(q_arrives, 2 * kLdsLayout.half_bytes);
    load<kHalfPanels>(queries_at, q_arrives, place(a.q_map, own_dim(kHalfDims)));
    statistics.store(kLdsLayout.statistics_at + queries_.buffer * kLdsLayout.statistic_bytes);
    arrive(full);
    mbarrier_wait(kOtherQueriesEmpty, other_parity_ ^ 1);
    load<kHalfPanels>(kLdsLayout.other_queries_at, q_arrives, place(a.q_map, other_dim(kHalfDims)));
    if (clears) clear_others<kHalfPanels>(queries_at, kLdsLayout.other_queries_at, own, full);
    mbarrier_wait(kOtherDoutEmpty, other_parity_ ^ 1);
    mbarrier_wait(kDoutEmpty + 8 * dout_.buffer, dout_.parity ^ 1);
    expect(dout_arrives, 2 * kLdsLayout.half_bytes_v);
    load<kHalfPanelsV>(kLdsLayout.other_dout_at, dout_arrives,
                       place(a.dout_map, other_dim(kHalfDimsV)));
    load<kHalfPanelsV>(dout_at, dout_arrives, place(a.dout_map, own_dim(kHalfDimsV)));
    if (clears) clear_others<kHalfPanelsV>(dout_at, kLdsLayout.other_dout_at, own, dout_full);
    other_parity_ ^= 1;
    queries_.advance();
    dout_.advance();
  }
  // Both halves of a tile, of which `own` rows are the sequence's, become full without the others.
  template <int kCount>
  FULMEN_DEVICE void clear_others(int half_at, int other_half_at, int own, int full) {
    mbarrier_wait(kPatch, patch_parity_);
    patch_parity_ ^= 1;
    wave_barrier();
    for_each_row_behind(own, [&](int at) {
      clear_in_panels<kCount, kBlockN>(half_at + at);
      clear_in_panels<kCount, kBlockN>(other_half_at + at);
    });
    lds_fence_for_matrices();
    arrive(full);
  }
  FULMEN_DEVICE static void expect(int full, int bytes) {
    if (lane_id() == 0) mbarrier_arrive_expect(full, bytes);
  }
  // Half of a tile's dims.
  template <int kCount>
  FULMEN_DEVICE static void load(int to, int full, const TensorPlace& from) {
    if (lane_id() == 0) load_panels<kCount, kBlockN>(to, from, full, L2Policy::evict_last());
  }

  const TmaBackwardArguments& arguments_;
  int rank_;
  ScheduledBlocks scheduled_;  // the second workgroup's
  Block::Finder finder_;       // the first one's
  BlockRing blocks_;           // the same
  QueryRing queries_;
  DoutRing dout_;
  bool is_first_ = true;
  int other_parity_ = 0, keys_parity_ = 0, patch_parity_ = 0;
};

// One wave, of which one lane works.
class SenderWarp {
 public:
  FULMEN_DEVICE explicit SenderWarp(int rank) : rank_(rank) {}
  FULMEN_DEVICE void run(const Work& work) {
    const int at = kLdsLayout.gradients_at + rank_ * kLdsLayout.gradient_bytes;
    work.for_each_tile([&](int /*head*/, const QueryOrder::Entry& /*entry*/) {
      if (lane_id() == 0) mbarrier_arrive_expect(kPeerWritten, kLdsLayout.gradient_bytes);
      mbarrier_wait(kGradientsWritten, parity_);
      if (lane_id() == 0) cluster_copy(1 - rank_, at, at, kLdsLayout.gradient_bytes, kPeerWritten);
      mbarrier_wait(kPeerWritten, parity_);
      parity_ ^= 1;
    });
  }

 private:
  int rank_, parity_ = 0;
};

// One wave, of which one lane works.
class OrderingWarp {
 public:
  FULMEN_DEVICE OrderingWarp(const BackwardArguments& a, int rank, bool counts)
      : in_order_(a.adds_in_order != 0), rank_(rank), counts_(counts) {}
  FULMEN_DEVICE void run(const Work& work) {
    const AddOrder order(work);
    work.for_each_tile([&](int head, const QueryOrder::Entry& entry) {
      int* const counter = order.counters<kPair>(head, entry.tile()) + rank_;
      const int before = order.before(entry);
      if (counts_) {
        // This wave has seen kSumsFull of the tile before: no phase ends unseen. It arrives when
        // that tile is counted: additions of this tile would hold up the count, which waits for all
        // of the multiprocessor's.
        arrive(kSumsEmpty);
        mbarrier_wait(kSumsFull, parity_);
        if (lane_id() == 0 && (in_order_ || before == 0)) counter_pass(counter);
      } else {
        if (lane_id() == 0 && before > 0) counter_wait(counter, in_order_ ? before : 1);
        mbarrier_wait(kSumsFull, parity_ ^ 1);  // of the tile before
        if (lane_id() == 0) lds_store(kLdsLayout.sums_at, before);
        arrive(kSumsEmpty);
      }
      parity_ ^= 1;
    });
  }

 private:
  bool in_order_;
  int rank_;
  bool counts_;
  int parity_ = 0;
};

}  // namespace fulmen::kernels
