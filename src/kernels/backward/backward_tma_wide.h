// Gradients of q, k and v as in backward_tma.h, of heads of more than 128 dims: the sums of 64 keys take the registers of two
// warpgroups, which share them.
//
//   S^T[64, kBlockN / 2] = K[64, d] Q[kBlockN / 2, d]^T        D^T = V dO^T of the same       a warpgroup's half of the queries
//   P^T = 2^(S^T - lse),  dS^T = P^T (D^T - delta)             both to LDS
//   dV[64, d_v / 2] += P^T dO,  dK[64, d / 2] += dS^T Q        a warpgroup's half of the dims
//   dQ[kBlockN, d / 2] = dS[kBlockN, 64] K[64, d / 2]          added to sums in memory, fp32
//
// A workgroup takes blocks of kBlockM = 64 keys of one KV head. A third warpgroup brings tiles and says when dQ may be added
// (parts/tma_roles.h). The waves that multiply add dQ themselves, while the products of a tile's keys and the scores of the next
// tile are in flight: adding takes about as long as these.
//
// Registers of a lane: dK d / 4, dV d_v / 4, dQ kBlockN d / 256, S and D kBlockN / 4 each.
#include "backward/parts/tma_scores.h"
#include "tile/nvidia/register_shares.h"

namespace fulmen::kernels {

static_assert(kWide && kDimGroups == 2 && kHeadDim % 128 == 0 && kHeadDimV % 128 == 0,
              "backward_tma_wide: a warpgroup has half of the dims, in whole panels");

constexpr RegisterShares kRegisters = RegisterShares::of(kWarpgroups, kMinWorkgroups, kTmaRegisters);
constexpr int kShareTiles = kColumnTiles / kWarpgroups;  // a warpgroup's of a tile's queries, by 16
constexpr int kKeyTiles = kHeadDimTiles / kWarpgroups, kValueTiles = kHeadDimVTiles / kWarpgroups;  // of the dims

// A wave of the two warpgroups that multiply.
class Consumer {
 public:
  FULMEN_DEVICE explicit Consumer(int wave)
      : warpgroup_(wave / 4),
        wave_(wave % 4),
        gradient_place_(panel_place(16 * (wave % 4) + lane_id() % 16, 32 * (wave / 4) + lane_id() / 16 * 8, kBlockM)) {}

  FULMEN_DEVICE void run(const Work& work) {
    const BackwardArguments& a = work.arguments;
    const BackwardTask task{a, work.batch, work.band, work.row_begin + 16 * wave_, work.row_end, 0, 0};
    clear(dk_[0]);
    clear(dv_[0]);
    if (work.order.count > 0) over_tiles(work, task);
    if constexpr (kGivesDk) store_rows(task, a.dk, work.kv_head, warpgroup_ * kKeyTiles, a.head_dim, a.softmax_scale, dk_);
    if constexpr (kGivesDv) store_rows(task, a.dv, work.kv_head, warpgroup_ * kValueTiles, a.head_dim_v, 1.0F, dv_);
  }

 private:
  using Scores = float[kShareTiles][kElements];
  using Sums = float[kSumTiles][kElements];

  FULMEN_DEVICE void over_tiles(const Work& work, const BackwardTask& task) {
    const QueryOrder& order = work.order;
    const int first_head = work.first_head(), end_head = first_head + work.arguments.group_size;
    int head = first_head, n = 0, tile = order.tile(0);
    mbarrier_wait(kKeysFull, keys_parity_);
    keys_parity_ ^= 1;
    begin(task, head, tile);
#pragma unroll 1
    while (true) {
      const int last_head = head, last_tile = tile;
      if (++n == order.count) {
        n = 0;
        if (++head == end_head) {
          finish(task, last_head, last_tile);
          return;
        }
      }
      tile = order.tile(n);
      if (order.is_masked(tile)) {
        step<true>(task, last_head, last_tile, head, tile);
      } else {
        step<false>(task, last_head, last_tile, head, tile);
      }
    }
  }
  // P^T and dS^T of the first tile.
  FULMEN_DEVICE void begin(const BackwardTask& task, int head, int tile) {
    Scores score, gradient;
    const Int64 first_query = Int64{tile} * kBlockN;
    mbarrier_wait(kQueriesFull + 8 * queries_.buffer, queries_.parity);
    Statistics<kShareTiles> statistics = statistics_of(queries_);
    statistics.load_offsets();
    multiply_scores_of(score, kLdsLayout.keys_at, queries_at(queries_));
    multiply_values_of(gradient, kLdsLayout.values_at, dout_at(queries_));
    wait_for_scores<true, 0>(task, head, first_query, first_row(), statistics, score, gradient);
    store_scores(score, gradient);
  }
  // The products of a tile whose P^T and dS^T are in LDS, and the scores of the next one. kMasked: whether that needs masks. No
  // product is in flight where step() ends, because compilers wait for all of them where branches meet.
  template <bool kMasked>
  FULMEN_DEVICE void step(const BackwardTask& task, int head, int tile, int next_head, int next_tile) {
    Scores score, gradient;
    Sums dq;
    const QueryRing held = queries_;
    queries_.advance();
    wait_for_gradients();
    multiply_queries(dq);
    add_keys(held);
    mbarrier_wait(kQueriesFull + 8 * queries_.buffer, queries_.parity);
    Statistics<kShareTiles> statistics = statistics_of(queries_);
    multiply_scores_of(score, kLdsLayout.keys_at, queries_at(queries_));
    wgmma_wait<2>();
    wgmma_hold(dq);
    add_queries(task, head, tile, dq);
    multiply_values_of(gradient, kLdsLayout.values_at, dout_at(queries_));
    statistics.load_offsets();
    wgmma_wait<2>();
    hold_keys();
    arrive(kQueriesEmpty + 8 * held.buffer);
    wait_for_scores<kMasked, 0>(task, next_head, Int64{next_tile} * kBlockN, first_row(), statistics, score, gradient);
    store_scores(score, gradient);
  }
  // The products of the last tile.
  FULMEN_DEVICE void finish(const BackwardTask& task, int head, int tile) {
    Sums dq;
    wait_for_gradients();
    multiply_queries(dq);
    add_keys(queries_);
    wgmma_wait<1>();
    wgmma_hold(dq);
    arrive(kKeysEmpty);
    add_queries(task, head, tile, dq);
    wgmma_wait<0>();
    hold_keys();
    arrive(kQueriesEmpty + 8 * queries_.buffer);
    queries_.advance();
  }

  // Of the tile's queries, the warpgroup's first.
  FULMEN_DEVICE int first_row() const { return 16 * kShareTiles * warpgroup_; }
  FULMEN_DEVICE Statistics<kShareTiles> statistics_of(const QueryRing& ring) const {
    return {kLdsLayout.statistics_at + ring.buffer * kLdsLayout.statistic_bytes, first_row()};
  }
  FULMEN_DEVICE static int queries_at(const QueryRing& ring) {
    return kLdsLayout.queries_at + ring.buffer * kLdsLayout.query_bytes;
  }
  FULMEN_DEVICE static int dout_at(const QueryRing& ring) { return kLdsLayout.dout_at + ring.buffer * kLdsLayout.dout_bytes; }
  FULMEN_DEVICE int gradients_at() const { return kLdsLayout.gradients_at + gradients_.buffer * kLdsLayout.gradient_bytes; }
  // S^T or D^T begins.
  FULMEN_DEVICE void multiply_scores_of(Scores& product, int keys_at, int queries_at) const {
    multiply_panels<kHeadDimTiles>(product, matrix_at(keys_at, kBlockM), matrix_at(queries_at, kBlockN).rows_further(first_row()));
  }
  FULMEN_DEVICE void multiply_values_of(Scores& product, int values_at, int dout_at) const {
    multiply_panels<kHeadDimVTiles>(product, matrix_at(values_at, kBlockM), matrix_at(dout_at, kBlockN).rows_further(first_row()));
  }
  // P^T and dS^T to panels of [key][query], for both warpgroups. The buffer is free: each wave ended its products from it before it
  // arrived at the other buffer's kGradientsWritten, for which this wave has waited.
  FULMEN_DEVICE void store_scores(const Scores& p, const Scores& ds) const {
#pragma unroll
    for (int f = 0; f < kShareTiles; ++f) {
      // The swizzle is an exclusive or: one address for all.
      const int at = (gradients_at() + gradient_place_) ^ 32 * f;
      stmatrix_x4(at, to_operand<Element>(ds[f]).words);
      stmatrix_x4(at + kLdsLayout.probabilities_at, to_operand<Element>(p[f]).words);
    }
    lds_fence_for_matrices();
    arrive(kGradientsWritten + 8 * gradients_.buffer);
  }
  FULMEN_DEVICE void wait_for_gradients() const { mbarrier_wait(kGradientsWritten + 8 * gradients_.buffer, gradients_.parity); }
  FULMEN_DEVICE void multiply_queries(Sums& dq) const { begin_queries(dq, gradients_at(), kLdsLayout.keys_at, warpgroup_); }
  // After it gradients_ is the next tile's buffer.
  FULMEN_DEVICE void add_keys(const QueryRing& ring) {
    begin_shared_keys(dk_[0], dv_[0], gradients_at(), gradients_at() + kLdsLayout.probabilities_at, queries_at(ring), dout_at(ring),
                      warpgroup_);
    gradients_.advance();
  }
  FULMEN_DEVICE void hold_keys() {
    if constexpr (kGivesDv) wgmma_hold(dv_[0]);
    if constexpr (kGivesDk) wgmma_hold(dk_[0]);
  }
  // The wave's 16 queries of a tile, and the warpgroup's half of the dims, to the sums in memory, when the usher lets it.
  FULMEN_DEVICE void add_queries(const BackwardTask& task, int head, int tile, const Sums& dq) {
    const QuerySums sums = QuerySums::of(task.arguments, task.batch, head);
    const Int64 rows = Int64{tile} * (kBlockN / 16) + wave_;
    float* const to = QuerySums::of_lane(sums.tile(rows, kSumTiles * warpgroup_), lane_id());
    mbarrier_wait(kSumsEmpty, sums_parity_);
    sums_parity_ ^= 1;
    const bool is_first = lds_load<int>(kLdsLayout.sums_at) == 0, exists = rows < sums.tiles;
    add_tiles<0>(to, dq, exists && is_first, exists && !is_first);
    arrive(kSumsFull);
  }
  template <int kTile, int kElement = 0>
  FULMEN_DEVICE static void add_tiles(float* to, const Sums& dq, bool stores, bool adds) {
    constexpr int kPlace = kTile * kSumTile + QuerySums::place(kElement);
    global_store_or_add<kPlace>(to, QuerySums::words_of(dq[kTile], kElement), stores, adds);
    if constexpr (kElement + kAddWidth < kElements) {
      add_tiles<kTile, kElement + kAddWidth>(to, dq, stores, adds);
    } else if constexpr (kTile + 1 < kSumTiles) {
      add_tiles<kTile + 1>(to, dq, stores, adds);
    }
  }

  int warpgroup_, wave_;  // its waves 0 to 3
  int gradient_place_;    // of the lane in a tile of dS^T
  float dk_[1][kKeyTiles][kElements], dv_[1][kValueTiles][kElements];
  int keys_parity_ = 0, sums_parity_ = 0;
  QueryRing queries_;       // the tile whose P^T and dS^T are in LDS, or the next one
  GradientRing gradients_;  // where they are
};

FULMEN_DEVICE void backward_tma_wide(const TmaBackwardArguments& a) {
  if (thread_id() == 0) initialise_barriers();
  barrier();
  const int wave = wave_id();
  if (wave < kConsumerWaves) {
    setmaxnreg_inc<kRegisters.consumer>();
    Consumer consumer(wave);
    ClaimedBlocks(a).for_each([&](const Work& work) { consumer.run(work); });
    return;
  }
  setmaxnreg_dec<kRegisters.loader>();
  const int role = wave - kConsumerWaves;
  if (role == 0) {
    Loader(a).run();
  } else if (role <= kUshers) {
    Usher usher(a, role == kUshers);
    ClaimedBlocks(a).for_each([&](const Work& work) { usher.run(work); });
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::TmaBackwardArguments, fulmen::kernels::backward_tma_wide)
