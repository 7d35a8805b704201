// dq from the sums that backward_atomic.h, backward_wgmma_atomic.h and backward_tma.h leave: scaled
// and rounded. A wave has 16 queries of a head.
#include "backward/parts/query_sums.h"
#include "core/row_statistics.h"
#include "tile/lane_quads.h"
#include "tile/rows.h"

namespace fulmen::kernels {

constexpr int kQuadDims = 4 * kQuadRun;  // of a row, that a quad of lanes has
static_assert(kHeadDim % kScoreTile == 0, "backward_dq: whole tiles of 16 dims");

FULMEN_DEVICE void backward_dq(const BackwardArguments& call) {
  const Int64 tiles = tiles_of(call.seqlen_q, kScoreTile),
              wave = workgroup_id() * (kWorkgroup / kWaveSize) + wave_id();
  const Int64 tile = wave % tiles, head = wave / tiles % call.num_heads,
              batch = wave / tiles / call.num_heads;
  if (batch >= call.batch) return;
  const BackwardArguments& a = sequence_of(call, batch);
  const QuerySums sums = QuerySums::of(a, batch, head);
  if (tile >= sums.tiles) return;
  bool has_keys[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 i = kScoreTile * tile + tile_row(slot);
    // By the band, too: with a sink the log-sum-exp of a query without keys is finite, and its sums
    // may be unwritten.
    has_keys[slot] = RowStatistics::of(a, batch, head, i).has_keys() &&
                     band_of(a).first(i) < band_of(a).last_plus_one(i);
  }
#pragma unroll
  for (int dim = 0; dim < kHeadDim; dim += kQuadDims) {
    const bool is_half = dim + kQuadDims > kHeadDim;
    float x[2][kElements] = {};
    QuerySums::load(sums.tile(tile, dim / kScoreTile), x[0]);
    if (!is_half) QuerySums::load(sums.tile(tile, dim / kScoreTile + 1), x[1]);
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      float run[kQuadRun];
      quad_run(x[0], x[1], slot, a.softmax_scale, run);
      // A query without any key has no gradient, whatever its dout holds.
#pragma unroll
      for (int n = 0; n < kQuadRun; ++n) run[n] = has_keys[slot] ? run[n] : 0.0F;
      const Int64 i = kScoreTile * tile + tile_row(slot);
      if (i >= a.seqlen_q || (is_half && lane_id() % 4 >= 2)) continue;
      store_run(const_cast<Element*>(at<Element>(a.dq, batch, i, head)),
                dim + kQuadRun * (lane_id() % 4), a.head_dim, run);
    }
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_dq)
