// A board of short_backward.h: its tiles, and their copy to LDS.
#pragma once

#include "backward/parts/scores.h"
#include "backward/short_backward_layout.h"
#include "tile/short_tile.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kTiles = kBlockN / kScoreTile;  // of keys, and of queries
constexpr int kValueSteps = kTiles / kStepTiles;
constexpr int kMmaSteps = kHeadDim / kTileMmaK, kMmaStepsV = kHeadDimV / kTileMmaK;
static_assert(kBlockM == kBlockN && kWaves == kTiles, "short_backward: a wave has 16 queries");
static_assert(kHeadDim % kTileMmaK == 0 && kHeadDimV % kTileMmaK == 0 && kBlockN % kValueDepth == 0,
              "short_backward: tiles are whole operands");

// A bias that all batches of a run share stays in registers, or in LDS where lanes take it from
// there as it is stored.
constexpr bool kHoldsBias = kBias && !kBatchBias && sizeof(BiasElement) == 2;
constexpr bool kBiasInLds = kHoldsBias && kCopiesToLds;

// Beside dbias the sum of dout * out over the dims is taken as that of P (dout.v) over the keys,
// which are all here: out need not be read. Not without: out may then be that of more keys (ring
// attention), whose part this is. (Dropout and softcap would need more registers from the one sum
// to the other.)
constexpr bool kReadsOut = !(kGivesDbias && !kDropout && !kSoftcap);

constexpr ShortBackwardLayout kShort =
    ShortBackwardLayout::of({kTransposedDepth, kReadsTransposed, kHeadDim, kHeadDimV, kBlockN,
                             kBuffers, kBiasInLds, kReadsOut});
static_assert(kShort.total == kLdsBytes,
              "short_backward: the host reserves the LDS that the tiles need");

// The next board is in flight while one is computed: to the other buffer; or to the one there is,
// what dk and dv do not need before them. Through registers a board is fetched when it is needed:
// they are too few to hold it.
constexpr bool kFetchHalves = kCopiesToLds && kBuffers == 1;
constexpr bool kFetchLate = !kCopiesToLds;
static_assert(kBuffers == 1 || kCopiesToLds,
              "short_backward: one buffer where boards come through registers");

// A wave's scores, or what comes of them.
using Scores = float[kTiles][kElements];

// Between elements of a board; 32 bits where rows are near.
template <bool kNear>
struct DistanceOf {
  using Type = Int64;
};
template <>
struct DistanceOf<true> {
  using Type = int;
};
using Distance = DistanceOf<kWholeRows>::Type;

// A head of a sequence.
struct Board {
  const Element* first;
  Int64 stride;

  FULMEN_DEVICE static Board of(const View& view, int batch, int head) {
    return {at<Element>(view, batch, 0, head), view.row};
  }
  FULMEN_DEVICE ColumnSource rows(int dims, Int64 end) const {
    return ColumnSource::of(first, stride, dims, 0, end);
  }
};

using QueriesTile = ShortTile<kHeadDim, true>;  // of k and q
using ValuesTile = ShortTile<kHeadDimV, false>;
using DoutTile = ShortTile<kHeadDimV, true>;

// The copy of a board to LDS, in two halves: what is needed until probabilities are there, and what
// is needed after.
class BoardTiles {
 public:
  FULMEN_DEVICE void fetch_keys(const BackwardArguments& a, int batch, int head, int at) {
    const algorithm::KeyRange attended = band_of(a).any(0, a.seqlen_q);
    k_tile_.fetch(Board::of(a.k, batch, head).rows(a.head_dim, a.seqlen_k), at,
                  at + kShort.k_values_at, [&](int j) {
                    if (kBand && (j < attended.begin || j >= attended.end)) return false;
                    return any_row_keeps(a, batch, head, 0, a.seqlen_q, j);
                  });
    v_tile_.fetch(Board::of(a.v, batch, head).rows(a.head_dim_v, a.seqlen_k), at + kShort.v_at, 0,
                  always);
    if constexpr (kReadsOut && kCopiesToLds) {
      ValuesTile{}.fetch(Board::of(a.out, batch, head).rows(a.head_dim_v, a.seqlen_q),
                         at + kShort.out_at, 0, always);
    }
  }
  FULMEN_DEVICE void fetch_queries(const BackwardArguments& a, int batch, int head, int at) {
    q_tile_.fetch(Board::of(a.q, batch, head).rows(a.head_dim, a.seqlen_q), at + kShort.q_at,
                  at + kShort.q_values_at, always);
    dout_tile_.fetch(Board::of(a.dout, batch, head).rows(a.head_dim_v, a.seqlen_q),
                     at + kShort.dout_at, at + kShort.dout_values_at, always);
    commit_columns();
  }
  FULMEN_DEVICE void publish(int at) const {
    k_tile_.publish(at, at + kShort.k_values_at);
    v_tile_.publish(at + kShort.v_at, 0);
    q_tile_.publish(at + kShort.q_at, at + kShort.q_values_at);
    dout_tile_.publish(at + kShort.dout_at, at + kShort.dout_values_at);
    columns_arrived();
  }

 private:
  FULMEN_DEVICE static bool always(int /*row*/) { return true; }
  QueriesTile k_tile_, q_tile_;
  ValuesTile v_tile_;
  DoutTile dout_tile_;
};

// The log-sum-exp of a lane's queries, loaded a batch early.
struct QueryLse {
  float value[kRowsPerLane];

  FULMEN_DEVICE void load(const BackwardArguments& a, int batch, int head, int row) {
    const float* first = a.lse + batch * a.lse_batch + head * a.lse_head;
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      const int i = row + tile_row(slot);
      value[slot] = kWholeTiles || i < a.seqlen_q ? global_load(first + i * a.lse_row) : -kInfinity;
    }
  }
  // As core/row_statistics.h has it.
  FULMEN_DEVICE float offset(int slot) const {
    return value[slot] == -kInfinity ? kInfinity : kUnitsOfScore * value[slot];
  }
};

}  // namespace fulmen::kernels
