// What backward_fp32.h has in LDS and in registers: a workgroup's rows, their gradients, and the
// columns' tiles in flight.
#pragma once

#include "backward/parts/tile.h"
#include "tile/fp32/products.h"

namespace fulmen::kernels {

static_assert(kGivesOneSide && !kAddsDq && !kGivesDbias, "backward_fp32: one side's gradients");

constexpr BackwardFp32Layout kFloatBackward =
    BackwardFp32Layout::of({kTransposedDepth, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers,
                            kRowsInLds, kGivesFirst, kGivesDv, kNeedsDout});
static_assert(kFloatBackward.total == kLdsBytes,
              "backward_fp32: the host reserves the LDS that the tiles need");
constexpr bool kNeedsSecond = kNeedsDout || kGivesDv;
// The next tile is in flight while one is computed.
constexpr bool kFetchesColumnsEarly = kCopiesToLds ? kBuffers == 2 : kEarlyLoads;

// The wave's rows.
struct HeldPair {
  HeldRows<kHeadDim> first;
  HeldRows<kHeadDimV> second;
};
FULMEN_DEVICE HeldPair hold_pair(const BackwardArguments& a, Int64 batch, Int64 head,
                                 Int64 row_begin, Int64 row_end) {
  const Side side = kRowsAreKeys ? Side::keys(a, batch, head) : Side::queries(a, batch, head);
  const int first_row = wave_id() * kFloatRowTiles * kScoreTile;
  // Rows past the end repeat the last one: what they give is not stored.
  const auto row = [&](int n) { return row_begin + n < row_end ? row_begin + n : row_end - 1; };
  HeldPair held;
  held.first = hold_rows<kHeadDim>(kFloatBackward.first_rows_at, first_row, a.head_dim,
                                   [&](int n) { return side.first + row(n) * side.first_stride; });
  if constexpr (kNeedsDout) {
    held.second =
        hold_rows<kHeadDimV>(kFloatBackward.second_rows_at, first_row, a.head_dim_v,
                             [&](int n) { return side.second + row(n) * side.second_stride; });
  }
  return held;
}

// Their gradients.
struct FloatGradients {
  FloatSums<kGivesFirst ? kHeadDim : 32> first;
  FloatSums<kGivesDv ? kHeadDimV : 32> second;
};

using TileStatistics = RowStatistics[kFloatRowTiles][kRowsPerLane];
FULMEN_DEVICE void load_statistics(const BackwardArguments& a, Int64 batch, Int64 head,
                                   Int64 first_row, TileStatistics& numbers) {
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      numbers[t][slot] =
          RowStatistics::of(a, batch, head, first_row + kScoreTile * t + tile_row(slot));
    }
  }
}

// Sums of dq. A query without any key has no gradient, whatever its dout holds: 0 times inf is NaN.
// kSharesAtEnd: what a rounded query's probabilities lack, its sums are multiplied with.
template <int kDims>
FULMEN_DEVICE void finish_queries(const BackwardTask& task, Int64 head,
                                  const TileStatistics& numbers, FloatSums<kDims>& sums) {
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t) {
    float share[kRowsPerLane];
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      share[slot] = 1.0F;
      if constexpr (kSharesAtEnd) {
        const Int64 row = task.wave_row + kScoreTile * t + tile_row(slot), last = task.row_end - 1;
        const float* shares = RowShares::first_of(task.arguments, task.batch, head);
        share[slot] = RowShares::load(shares + (row < last ? row : last), numbers[t][slot].offset);
      }
    }
    sums.for_each(
        t, [&](float& x, int slot) { x = numbers[t][slot].has_keys() ? x * share[slot] : 0.0F; });
  }
}

// A tile of both tensors of the columns, and of the queries' numbers where they are the columns.
class FloatColumns {
 public:
  template <class Alive>
  FULMEN_DEVICE void fetch(const BackwardArguments& a, Int64 batch, Int64 head, Int64 first,
                           Int64 end, int buffer, const Alive& alive) {
    const Side side =
        kRowsAreKeys ? Side::queries(a, batch, head) : Side::keys(a, batch, head / a.group_size);
    const int at = buffer * kFloatBackward.buffer_bytes;
    const auto tile_alive = [&](int row) { return alive(first + row); };
    constexpr bool kChecked = !kRowsAreKeys ? kKeepMask || ((kDropout || kMaskBits) && kBand)
                                            : (kDropout || kMaskBits) && kBand;
    first_.template fetch<kChecked>(FloatSource::of(side.first, side.first_stride, first, end),
                                    a.head_dim, at, tile_alive);
    if constexpr (kNeedsSecond) {
      second_.template fetch<kChecked && kGivesDv>(
          FloatSource::of(side.second, side.second_stride, first, end), a.head_dim_v,
          at + kFloatBackward.second_at, tile_alive);
    }
    if constexpr (kRowsAreKeys) {
      if (thread_id() < kBlockN)
        numbers_ = RowStatistics::of(a, batch, head,
                                     first + thread_id() < end ? first + thread_id() : a.seqlen_q);
    }
    commit_floats();
  }
  FULMEN_DEVICE void publish(int buffer) const {
    const int at = buffer * kFloatBackward.buffer_bytes;
    first_.publish(at);
    if constexpr (kNeedsSecond) second_.publish(at + kFloatBackward.second_at);
    if constexpr (kRowsAreKeys) {
      if (thread_id() < kBlockN)
        lds_store(at + kFloatBackward.numbers_at + 8 * thread_id(), numbers_.words());
    }
    floats_arrived();
  }

 private:
  FloatTile<kHeadDim, true, kGivesFirst> first_;
  FloatTile<kHeadDimV, kNeedsDout, kGivesDv> second_;
  RowStatistics numbers_;
};

}  // namespace fulmen::kernels
