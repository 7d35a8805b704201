// What the kernels of backward_tma.h and backward_tma_wide.h share: tiles that the TMA brings, and
// row statistics beside them.
#pragma once

#include "backward/parts/block_order.h"
#include "backward/parts/wgmma_panels.h"
#include "tile/rings.h"

namespace fulmen::kernels {

static_assert(kAddsDq && !kGivesDbias && !kPaged && kKeepMask == kMaskBits && kWholeRows,
              "backward_tma: what the TMA can read");
static_assert(kWarpgroups == 2 && kWorkgroup == 384,
              "backward_tma: two warpgroups multiply, a third one brings tiles");
constexpr int kConsumerWaves = 4 * kWarpgroups;
// Scores without random numbers: log-sum-exp and delta lie in two rows, each read by two columns at
// once.
constexpr bool kSplitStatistics = !kDropout && !kSoftcap && !kScoreMod;

// Arrives once for the wave, after all of its lanes: what they did before is done.
FULMEN_DEVICE void arrive(int barrier) {
  wave_barrier();
  if (lane_id() == 0) mbarrier_arrive(barrier);
}

// Dynamic tile scheduler, whose work tiles are blocks of keys: takes the next one from the atomic
// tile counter.
FULMEN_DEVICE Block take_block(const BackwardArguments& a, const Block::Finder& finder) {
  return Block::nth(
      a, finder, counter_fetch_add(reinterpret_cast<int*>(a.query_sums + a.query_sum_floats) - 1));
}
// Visits a block's work.
template <class Visit>
FULMEN_DEVICE void visit_block(const BackwardArguments& call, const Block& block,
                               const Visit& visit) {
  const BackwardArguments& a = block.sequence_in(call);
  visit(Work::of(call, a, block));
}

// Where a tile lies in a tensor: `row` is the sequence's own.
struct TensorPlace {
  const TensorMap& map;
  int column;
  TensorRows sequence;
  Int64 row, head;
};
// kCount panels of kRows rows, by one lane.
template <int kCount, int kRows>
FULMEN_DEVICE void load_panels(int to, const TensorPlace& from, int barrier, L2Policy policy) {
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    tma_load(to + p * kRows * kPanelRowBytes, &from.map, from.column + p * kPanelColumns,
             from.sequence.row + from.row, static_cast<int>(from.head), from.sequence.batch,
             barrier, policy);
  }
}
// Which of kRows keys some query attends. Keys that none attends, and their values, may be NaN, and
// are taken times 0.
template <int kRows>
class AttendedKeys {
 public:
  // All lanes of a wave come here together.
  FULMEN_DEVICE static AttendedKeys of(const Work& work, Int64 first) {
    const BackwardArguments& a = work.arguments;
    AttendedKeys keys;
    keys.first_ = first;
    if constexpr (kTileLists) {
      keys.some_ = work.order.attended<kWords>((static_cast<int>(first) - work.row_begin) / 32);
    } else if constexpr (kMaskBits) {
      keys.some_ = of_bits(work, first);
    } else {
      keys.range_ = band_of(a).any(0, a.seqlen_q);
    }
    return keys;
  }
  // end: behind the last key that there is. What lies behind it is 0, or, where sequences are
  // packed, the next one's.
  FULMEN_DEVICE bool hides_some(Int64 end) const {
    if (kVariable && first_ + kRows > end) return true;
    if constexpr (!kMaskBits) return kBand && (range_.begin > first_ || range_.end < end);
    unsigned every = ~0U;
#pragma unroll
    for (int w = 0; w < kWords; ++w) every &= some_.word[w];
    return every != ~0U;
  }
  // Calls clear(at) for each key that no query attends: `at` is a lane's 16 bytes of a panel's row.
  template <class Clear>
  FULMEN_DEVICE void for_each_hidden(const Clear& clear) const {
    for (int row = lane_id() / 8; row < kRows; row += kWaveSize / 8) {
      if (!has(row)) clear(row * kPanelRowBytes + lane_id() % 8 * 16);
    }
  }

 private:
  static constexpr int kWords = kRows / 32;
  FULMEN_DEVICE static Words<kWords> of_bits(const Work& work, Int64 first) {
    const BackwardArguments& a = work.arguments;
    Words<kWords> some{};
    const int first_head = work.first_head();
    for (int head = first_head; head < first_head + a.group_size; ++head) {
      const MaskedRows rows = MaskedRows::of(a, work.batch, head, 0, a.seqlen_q);
      for (int n = lane_id(); n < rows.blocks; n += kWaveSize) {
        const auto block = global_load(
            reinterpret_cast<const Words<kWords>*>(rows.any + n * rows.words + first / 32));
#pragma unroll
        for (int w = 0; w < kWords; ++w) some.word[w] |= block.word[w];
      }
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int mask = 1; mask < kWaveSize; mask *= 2)
        some.word[w] |= shuffle_xor(some.word[w], mask);
    }
    return some;
  }
  FULMEN_DEVICE bool has(int row) const {
    if constexpr (!kMaskBits) return first_ + row >= range_.begin && first_ + row < range_.end;
    unsigned word = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) word = row / 32 == w ? some_.word[w] : word;
    return (word >> static_cast<unsigned>(row % 32) & 1U) != 0;
  }

  Int64 first_;
  algorithm::KeyRange range_;
  Words<kWords> some_;
};
template <int kCount, int kRows>
FULMEN_DEVICE void clear_in_panels(int at) {
#pragma unroll
  for (int p = 0; p < kCount; ++p) lds_store(at + p * kRows * kPanelRowBytes, Words<4>{});
}

// How many of a tile's queries the sequence has. What lies behind them is 0, or, where sequences
// are packed, the next one's, which may be NaN and is taken times 0: the loader clears it.
FULMEN_DEVICE int queries_there(const Work& work, QueryRow first_query) {
  return at_most(work.block.queries(work.call) - first_query, kBlockN);
}
FULMEN_DEVICE bool has_others_queries(const Work& work, QueryRow first_query) {
  return kVariable && queries_there(work, first_query) < kBlockN;
}
// Calls clear(at) for each row behind the first `there`: as for_each_hidden().
template <class Clear>
FULMEN_DEVICE void for_each_row_behind(int there, const Clear& clear) {
  for (int row = there + lane_id() / 8; row < kBlockN; row += kWaveSize / 8)
    clear(row * kPanelRowBytes + lane_id() % 8 * 16);
}

// Row statistics of a tile of queries, from memory to LDS, by a wave.
class StatisticsInFlight {
 public:
  FULMEN_DEVICE StatisticsInFlight(const Work& work, Int64 head, QueryRow first_query) {
    const BackwardArguments& a = work.arguments;
    const QueryRow end = work.block.queries(work.call);
#pragma unroll
    for (int n = 0; n < kBlockN / kWaveSize; ++n) {
      const QueryRow i = first_query + n * kWaveSize + lane_id();
      pairs_[n] =
          i < end ? global_load(RowStatistics::first_of(a, work.batch, head) + i) : Words<2>{};
    }
  }
  FULMEN_DEVICE void store(int at) const {
#pragma unroll
    for (int n = 0; n < kBlockN / kWaveSize; ++n) {
      const int row = n * kWaveSize + lane_id();
      if constexpr (kSplitStatistics) {
        lds_store(at + 4 * row, pairs_[n].word[0]);
        lds_store(at + 4 * (kBlockN + row), pairs_[n].word[1]);
      } else {
        lds_store(at + 8 * row, pairs_[n]);
      }
    }
  }

 private:
  Words<2> pairs_[kBlockN / kWaveSize];
};

}  // namespace fulmen::kernels
