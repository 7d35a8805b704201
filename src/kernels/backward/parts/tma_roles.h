// Roles of the warps of backward_tma.h that do not multiply.
//
// The loader, one wave, takes blocks of keys from the tile counter and requests keys, values and a
// ring of kBuffers tiles of queries from the TMA. Two or three adders have the TMA add dQ to
// memory, each every second or third tile, from its own buffer. Where products are pipelined they
// have the fence between dS^T and its product, too: products in flight would wait for it.
//
// A counter of each part of a tile of dQ says how many blocks have been added to it. Blocks are
// added in the order in which they are taken (Block::nth), so that the sum has the same bits in
// every run; the first block is stored. The earliest block that is still computed waits for none,
// so there is no deadlock. Without adds_in_order blocks wait for the first one alone; where many
// would, sums begin with 0, and none waits (stored_sum_floats).
//
// LDS: one or two x K and V, kBuffers x (Q, dO, row statistics), 2 or 3 x dS^T, a ring of dQ, the
// ids of blocks, mbarriers.
#pragma once

#include "backward/backward_tma_layout.h"
#include "backward/parts/tma_tiles.h"

namespace fulmen::kernels {

constexpr TmaBackwardLayout kLdsLayout =
    TmaBackwardLayout::of(kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers);
static_assert(kLdsLayout.total == kLdsBytes,
              "backward_tma: the host reserves the LDS that the tiles need");
static_assert(kBlockM == 128 && kDimGroups == 1, "backward_tma: 64 keys of each of two warpgroups");
// Dims in LDS: whole panels, zeros past the last one.
constexpr int kPanels = (kHeadDim + kPanelColumns - 1) / kPanelColumns,
              kPanelsV = (kHeadDimV + kPanelColumns - 1) / kPanelColumns;
static_assert(kHeadDim >= kPanelColumns && kHeadDimV >= kPanelColumns,
              "backward_tma: a warpgroup has half a panel of dQ, or more");

// Narrow heads leave registers for the products of one tile beside the scores of the next.
constexpr bool kPipelined = kLdsLayout.pipelined;
static_assert(!kPipelined || kBuffers > 2,
              "backward_tma: one tile of queries is held, one is computed, one comes");
// A warpgroup's tiles of dQ.
constexpr int kSumTiles = kPanels * kPanelColumns / kScoreTile / kWarpgroups;
constexpr int kSumBytes = kSumTile * static_cast<int>(sizeof(float));
// Parts of a tile of dQ, by queries, that blocks add one after the other: the next block adds one
// when the other is in flight.
constexpr int kSumParts = kLdsLayout.sum_parts, kPartRows = kBlockN / kScoreTile / kSumParts;
constexpr int kAdders = kLdsLayout.sum_buffers;
constexpr int kGradientBuffers = kLdsLayout.gradient_buffers;
static_assert(!kPipelined || kGradientBuffers == kAdders,
              "backward_tma: an adder fences the dS^T behind that of which it adds dQ");
// Two: the next block's keys and values come while a block is computed.
constexpr int kKeyBuffers = kLdsLayout.key_buffers;

// mbarriers.
constexpr int kKeysFull = kLdsLayout.barriers_at, kKeysEmpty = kKeysFull + 8 * kKeyBuffers,
              kPatch = kKeysEmpty + 8 * kKeyBuffers;
constexpr int kQueriesFull = kPatch + 8, kQueriesEmpty = kQueriesFull + 8 * kBuffers;
constexpr int kGradientsWritten = kQueriesEmpty + 8 * kBuffers,
              kGradientsFenced = kGradientsWritten + 8 * kGradientBuffers;
constexpr int kGradientsEmpty = kGradientsFenced + 8 * kGradientBuffers;
constexpr int kSumsFull = kGradientsEmpty + 8 * kGradientBuffers,
              kSumsEmpty = kSumsFull + 8 * kAdders;
constexpr int kBlockFull = kSumsEmpty + 8 * kAdders, kBlockEmpty = kBlockFull + 16;
constexpr int kGradientsFull = kPipelined ? kGradientsFenced : kGradientsWritten;
using KeyRing = Ring<kKeyBuffers>;
using QueryRing = Ring<kBuffers>;
using GradientRing = Ring<kGradientBuffers>;
using SumRing = Ring<kAdders>;
using BlockRing = Ring<2>;

FULMEN_DEVICE void initialise_barriers() {
#pragma unroll
  for (int n = 0; n < kKeyBuffers; ++n) {
    mbarrier_init(kKeysFull + 8 * n, 1);
    mbarrier_init(kKeysEmpty + 8 * n, kConsumerWaves);
  }
  mbarrier_init(kPatch, 1);
#pragma unroll
  for (int n = 0; n < kBuffers; ++n) {
    mbarrier_init(kQueriesFull + 8 * n, 2);
    mbarrier_init(kQueriesEmpty + 8 * n, kConsumerWaves);
  }
#pragma unroll
  for (int n = 0; n < kGradientBuffers; ++n) {
    mbarrier_init(kGradientsWritten + 8 * n, kConsumerWaves);
    mbarrier_init(kGradientsFenced + 8 * n, 1);
    mbarrier_init(kGradientsEmpty + 8 * n, kConsumerWaves);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    mbarrier_init(kBlockFull + 8 * n, 1);
    mbarrier_init(kBlockEmpty + 8 * n, kConsumerWaves + kAdders);
  }
#pragma unroll
  for (int n = 0; n < kAdders; ++n) {
    mbarrier_init(kSumsFull + 8 * n, kConsumerWaves);
    mbarrier_init(kSumsEmpty + 8 * n, 1);
  }
  mbarrier_init_fence();
}
static_assert(Block::kBytes <= TmaBackwardLayout::kBlockBytes, "backward_tma: a block's place");
FULMEN_DEVICE int block_at(const BlockRing& ring) {
  return kLdsLayout.blocks_at + TmaBackwardLayout::kBlockBytes * ring.buffer;
}
// The blocks that the loader takes from the tile counter: another wave's view.
class ScheduledBlocks {
 public:
  FULMEN_DEVICE explicit ScheduledBlocks(const BackwardArguments& a) : arguments_(a) {}
  template <class Visit>
  FULMEN_DEVICE void for_each(const Visit& visit) {
#pragma unroll 1
    while (true) {
      mbarrier_wait(kBlockFull + 8 * ring_.buffer, ring_.parity);
      const Block block = Block::load(block_at(ring_));
      arrive(kBlockEmpty + 8 * ring_.buffer);
      ring_.advance();
      if (!block.exists(arguments_)) return;
      visit_block(arguments_, block, visit);
    }
  }

 private:
  const BackwardArguments& arguments_;
  BlockRing ring_;
};

// One wave.
class Loader {
 public:
  FULMEN_DEVICE explicit Loader(const TmaBackwardArguments& a) : arguments_(a), finder_(a) {}
  FULMEN_DEVICE void run() {
#pragma unroll 1
    while (true) {
      const Block next = take();
      if (!next.exists(arguments_)) break;
      visit_block(arguments_, next, [&](const Work& work) { block(work); });
    }
  }

 private:
  FULMEN_DEVICE Block take() {
    const Block block = take_block(arguments_, finder_);
    clear_others_queries();
    mbarrier_wait(kBlockEmpty + 8 * blocks_.buffer, blocks_.parity ^ 1);
    if (lane_id() == 0) {
      block.store(block_at(blocks_));
      mbarrier_arrive(kBlockFull + 8 * blocks_.buffer);
    }
    blocks_.advance();
    return block;
  }
  // Where keys have one buffer they follow when the block before has ended; the first tiles of
  // queries are prefetched while that one is computed.
  FULMEN_DEVICE void block(const Work& work) {
    if (work.order.count == 0) return;
    if constexpr (kKeyBuffers > 1) {
      keys(work);
      work.for_each_tile(
          [&](int head, const QueryOrder::Entry& entry) { queries(work, head, entry.tile()); });
    } else {
      const int early = is_first_ ? 0 : kBuffers - 1;
      is_first_ = false;
      int asked = 0;
      work.for_each_tile([&](int head, const QueryOrder::Entry& entry) {
        if (asked == early) keys(work);
        queries(work, head, entry.tile());
        ++asked;
      });
      if (asked <= early) keys(work);
    }
  }
  // Keys that no query attends, and their values, may be NaN, and are taken times 0: they become 0.
  FULMEN_DEVICE void keys(const Work& work) {
    clear_others_queries();
    const int full = kKeysFull + 8 * keys_.buffer,
              keys_at = kLdsLayout.keys_at + keys_.buffer * kLdsLayout.key_bytes,
              values_at = kLdsLayout.values_at + keys_.buffer * kLdsLayout.value_bytes;
    mbarrier_wait(kKeysEmpty + 8 * keys_.buffer, keys_.parity ^ 1);
    keys_.advance();
    const Int64 first = work.row_begin;
    const auto attended = AttendedKeys<kBlockM>::of(work, first);
    const bool patched = attended.hides_some(work.row_end);
    if (lane_id() == 0) {
      const int arrives = patched ? kPatch : full;
      const L2Policy once = L2Policy::evict_first();
      const TensorRows rows = work.block.key_rows(arguments_, work.batch);
      mbarrier_arrive_expect(arrives, kLdsLayout.key_bytes + kLdsLayout.value_bytes);
      load_panels<kPanels, kBlockM>(keys_at, {arguments_.k_map, 0, rows, first, work.kv_head},
                                    arrives, once);
      load_panels<kPanelsV, kBlockM>(values_at, {arguments_.v_map, 0, rows, first, work.kv_head},
                                     arrives, once);
    }
    if (!patched) return;
    mbarrier_wait(kPatch, patch_parity_);
    patch_parity_ ^= 1;
    wave_barrier();
    attended.for_each_hidden([&](int at) {
      clear_in_panels<kPanels, kBlockM>(keys_at + at);
      clear_in_panels<kPanelsV, kBlockM>(values_at + at);
    });
    lds_fence_for_matrices();
    arrive(full);
  }
  FULMEN_DEVICE void queries(const Work& work, int head, int tile) {
    const QueryRow first = QueryRow{tile} * kBlockN;
    clear_others_queries();
    const StatisticsInFlight statistics(work, head, first);  // while the buffer is in use
    const int full = kQueriesFull + 8 * ring_.buffer;
    mbarrier_wait(kQueriesEmpty + 8 * ring_.buffer, ring_.parity ^ 1);
    const bool clears = has_others_queries(work, first);
    if (clears) {
      others_buffer_ = ring_.buffer;
      own_queries_ = queries_there(work, first);
    }
    if (lane_id() == 0) {
      const int arrives = clears ? kPatch : full;
      const L2Policy again = L2Policy::evict_last();
      const TensorRows rows = work.block.query_rows(arguments_, work.batch);
      mbarrier_arrive_expect(arrives, kLdsLayout.query_bytes + kLdsLayout.dout_bytes);
      load_panels<kPanels, kBlockN>(kLdsLayout.queries_at + ring_.buffer * kLdsLayout.query_bytes,
                                    {arguments_.q_map, 0, rows, first, head}, arrives, again);
      load_panels<kPanelsV, kBlockN>(kLdsLayout.dout_at + ring_.buffer * kLdsLayout.dout_bytes,
                                     {arguments_.dout_map, 0, rows, first, head}, arrives, again);
    }
    statistics.store(kLdsLayout.statistics_at + ring_.buffer * kLdsLayout.statistic_bytes);
    arrive(full);
    ring_.advance();
  }

  // The tile that was asked for last, if it has rows of another sequence, becomes full without
  // them. That can wait until the loader would wait for others.
  FULMEN_DEVICE void clear_others_queries() {
    if constexpr (kVariable) {
      if (others_buffer_ < 0) return;
      mbarrier_wait(kPatch, patch_parity_);
      patch_parity_ ^= 1;
      wave_barrier();
      const int queries = kLdsLayout.queries_at + others_buffer_ * kLdsLayout.query_bytes,
                dout = kLdsLayout.dout_at + others_buffer_ * kLdsLayout.dout_bytes;
      for_each_row_behind(own_queries_, [&](int at) {
        clear_in_panels<kPanels, kBlockN>(queries + at);
        clear_in_panels<kPanelsV, kBlockN>(dout + at);
      });
      lds_fence_for_matrices();
      arrive(kQueriesFull + 8 * others_buffer_);
      others_buffer_ = -1;
    }
  }

  const TmaBackwardArguments& arguments_;
  Block::Finder finder_;
  BlockRing blocks_;
  KeyRing keys_;
  QueryRing ring_;
  int others_buffer_ = -1, own_queries_ = 0;  // of a tile that has rows of another sequence
  int patch_parity_ = 0;
  bool is_first_ = true;  // the block
};

// One wave, of which one lane works: dQ of every second or third tile to the sums in memory. In
// order that takes longer than a tile's products: the counter, the sum and the next count each go
// to the L2 and back. Of two tiles it first fences the later one's dS^T, which the next product
// needs: of all adders it is the one that has had nothing to add for the longest.
class Adder {
 public:
  FULMEN_DEVICE explicit Adder(int buffer) : buffer_(buffer) {}
  FULMEN_DEVICE void run(const Work& work) {
    const AddOrder order(work);
    int left = work.order.count * work.arguments.group_size;
    if (kPipelined && left > 0 && tile_.buffer == next_buffer()) fence(tile_);
    work.for_each_tile([&](int head, const QueryOrder::Entry& entry) {
      --left;
      SumRing next = tile_;
      next.advance();
      if (tile_.buffer == buffer_) {
        if (kPipelined && left > 0) fence(next);
        add(work, order, head, entry);
      }
      tile_ = next;
    });
    if (lane_id() == 0) tma_wait<0>();
  }

 private:
  static constexpr int kNoWait = -1;  // for other blocks' additions
  FULMEN_DEVICE void add(const Work& work, const AddOrder& order, int head,
                         const QueryOrder::Entry& entry) {
    mbarrier_wait(kSumsFull + 8 * buffer_, tile_.parity);
    if (lane_id() == 0) {
      lds_fence_for_matrices();
      add_to_memory(work, order, head, entry);
    }
    wave_barrier();
  }
  FULMEN_DEVICE void add_to_memory(const Work& work, const AddOrder& order, int head,
                                   const QueryOrder::Entry& entry) const {
    const int tile = entry.tile();
    const bool to_zeros = work.call.stored_sum_floats == 0;
    int before = to_zeros ? kNoWait : order.before(entry);
    const bool is_awaited = !to_zeros && (work.call.adds_in_order != 0 || before == 0);
    if (!to_zeros && !is_awaited) before = 1;
    const QuerySums sums = QuerySums::of(work.arguments, work.batch, head);
    const Int64 first = Int64{tile} * (kBlockN / kScoreTile);
    const int rows = at_most(sums.tiles - first, kBlockN / kScoreTile);  // by 16
    int* const counters = order.counters<kSumParts>(head, tile);
    bring(before, counters, sums.tile(first, 0), 0, rows);
    const bool two = kSumParts > 1 && rows > kPartRows;
    if (two) {
      bring(before, counters + 1, sums.tile(first + kPartRows, 0), kPartRows, rows);
      if (is_awaited) {
        tma_wait<1>();
        counter_pass(counters);
      }
    }
    tma_wait_read();
    mbarrier_arrive(kSumsEmpty + 8 * buffer_);
    if (!is_awaited) return;
    tma_wait<0>();
    counter_pass(counters + (two ? 1 : 0));
  }
  // Rows by 16 from `row` on, of so many. The first block of a tile stores.
  FULMEN_DEVICE void bring(int before, const int* counter, float* to, int row, int rows) const {
    constexpr int kRowBytes = kHeadDim / kScoreTile * kSumBytes;
    const int from = kLdsLayout.sums_at + buffer_ * kLdsLayout.sum_bytes + row * kRowBytes;
    const int bytes = (rows - row < kPartRows ? rows - row : kPartRows) * kRowBytes;
    if (before == 0) {
      tma_store(to, from, bytes);
    } else {
      if (before != kNoWait) counter_wait(counter, before);
      tma_add(to, from, bytes);
    }
  }

  FULMEN_DEVICE int next_buffer() const { return buffer_ + 1 < kAdders ? buffer_ + 1 : 0; }
  // Its dS^T is there for products.
  FULMEN_DEVICE static void fence(const SumRing& tile) {
    mbarrier_wait(kGradientsWritten + 8 * tile.buffer, tile.parity);
    lds_fence_for_matrices();
    arrive(kGradientsFenced + 8 * tile.buffer);
  }

  int buffer_;
  SumRing tile_;  // the one that comes
};

}  // namespace fulmen::kernels
