// Gradients of q, k and v as in backward_tma.h, of heads of more than 128 dims, by pairs of
// workgroups (clusters of two). The sums of 128 keys take the registers of both; a workgroup has
// half of the dims.
//
//   S^T[64, kBlockN / 2] = K[64, d] Q[kBlockN / 2, d]^T      D^T = V dO^T of the same
//                                                            of the workgroup's 64 keys, all dims;
//   P^T = 2^(S^T - lse),  dS^T = P^T (D^T - delta)
//                         a warpgroup's half of the queries
//   dV[128, d_v / 4] += P^T dO,  dK[128, d / 4] += dS^T Q
//                                of both workgroups' keys, a warpgroup's quarter of the dims
//   dQ[kBlockN, d / 4] = dS[kBlockN, 128] K[128, d / 4]      the same, added to sums in memory,
//                                                            fp32
//
// P^T and dS^T go to LDS and from there to the peer's, 16 KiB a tile: so each workgroup adds half
// of the dims of dQ for 128 keys. Adding, of which the L2 takes 13 bytes a cycle from each
// multiprocessor, then takes less time than the products.
//
// A step has the products of one tile and the scores of the next one, in the order that leaves the
// matrix units least idle: S^T while P^T and dS^T go to the peer; dV and dK of the own keys, beside
// them P^T of the next tile; dQ; dV and dK of the peer's keys; D^T, between whose products the
// waves add dQ to memory.
//
// A third warpgroup brings tiles, sends P^T and dS^T and says when dQ may be added
// (parts/tma_pair_roles.h).
//
// Registers of a lane: dK d / 4, dV d_v / 4, dQ kBlockN d / 512, S and D kBlockN / 4 each.
#include "backward/parts/tma_pair_roles.h"
#include "backward/parts/tma_scores.h"
#include "tile/nvidia/register_shares.h"

namespace fulmen::kernels {

// Measured: with fewer the loader, which spills, is what all others wait for.
constexpr int kLoaderRegisters = 40;
constexpr RegisterShares kRegisters =
    RegisterShares::of(kWarpgroups, kMinWorkgroups, kLoaderRegisters);
constexpr int kShareTiles = kColumnTiles / kWarpgroups;  // a warpgroup's of a tile's queries, by 16
// A warpgroup's of the dims, by 16.
constexpr int kKeyTiles = kHalfDims / kScoreTile / kWarpgroups,
              kValueTiles = kHalfDimsV / kScoreTile / kWarpgroups;

// The nth of so many parts.
template <int kN, int kOf>
struct Part {};
struct Nothing {
  template <class Part>
  FULMEN_DEVICE void after(Part /*part*/) const {}
};

// A wave of the two warpgroups that multiply.
class Consumer {
 public:
  FULMEN_DEVICE Consumer(int wave, int rank)
      : rank_(rank),
        warpgroup_(wave / 4),
        wave_(wave % 4),
        gradient_place_(panel_place(kScoreTile * (wave % 4) + lane_id() % 16,
                                    32 * (wave / 4) + lane_id() / 16 * 8, kBlockM)) {}

  FULMEN_DEVICE void run(const Work& work) {
#pragma unroll
    for (int n = 0; n < kPair; ++n) {
      clear(dk_[n][0]);
      clear(dv_[n][0]);
    }
    if (work.order.count > 0) over_tiles(work, task_of(work, rank_));
    store_gradients<0>(work, rank_);
    store_gradients<1>(work, 1 - rank_);
  }

 private:
  using Scores = float[kShareTiles][kElements];
  using Sums = float[kKeyTiles][kElements];

  // The wave's 16 of a workgroup's keys.
  FULMEN_DEVICE BackwardTask task_of(const Work& work, int rank) const {
    return {
        work.arguments, work.batch, work.band, work.row_begin + kBlockM * rank + kScoreTile * wave_,
        work.row_end,   0,          0};
  }
  // Stores dK and dV of the own keys (kWhose = 0) or the peer's (1). A loop over both would index
  // the sums and so put them in memory.
  template <int kWhose>
  FULMEN_DEVICE void store_gradients(const Work& work, int rank) const {
    const BackwardArguments& a = work.arguments;
    const BackwardTask task = task_of(work, rank);
    const int quarter = kWarpgroups * rank_ + warpgroup_;
    if constexpr (kGivesDk)
      store_rows(task, a.dk, work.kv_head, quarter * kKeyTiles, a.head_dim, a.softmax_scale,
                 dk_[kWhose]);
    if constexpr (kGivesDv)
      store_rows(task, a.dv, work.kv_head, quarter * kValueTiles, a.head_dim_v, 1.0F, dv_[kWhose]);
  }
  FULMEN_DEVICE void over_tiles(const Work& work, const BackwardTask& task) {
    const QueryOrder& order = work.order;
    const int first_head = work.first_head(), end_head = first_head + work.arguments.group_size;
    int head = first_head, n = 0, tile = order.nth(0).tile();
    mbarrier_wait(kKeysFull, keys_parity_);
    keys_parity_ ^= 1;
    begin(task, head, tile);
    auto ahead = order.ahead(order.count > 1 ? 1 : 0);  // in flight beside a step
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
      const auto entry = kTilesAhead ? order.arrived(ahead) : order.nth(n);
      if constexpr (kTilesAhead) ahead = order.ahead(n + 1 < order.count ? n + 1 : 0);
      tile = entry.tile();
      if (order.is_masked(entry)) {
        step<true>(task, last_head, last_tile, head, tile);
      } else {
        step<false>(task, last_head, last_tile, head, tile);
      }
    }
  }
  // P^T and dS^T of the first tile.
  FULMEN_DEVICE void begin(const BackwardTask& task, int head, int tile) {
    Scores score, gradient;
    Statistics<kShareTiles> statistics = begin_scores(score);
    statistics.load_offsets();
    wait_for_dout();
    begin_own_gradients(gradient, Nothing{});
    begin_other_gradients(gradient, Nothing{});
    const Int64 first_query = Int64{tile} * kBlockN;
    wait_for_probabilities<kFirstMasked, 2>(task, head, first_query, first_row(), statistics,
                                            score);
    wait_for_gradients<kFirstMasked, 0>(task, head, first_query, first_row(), statistics, score,
                                        gradient);
    arrive(kOtherQueriesEmpty);
    store_scores(score, gradient);
  }
  // The products of a tile whose P^T and dS^T are in LDS, and the scores of the next one. kMasked:
  // whether these need masks. No product is in flight where step() ends, because compilers wait for
  // all of them where branches meet.
  template <bool kMasked>
  FULMEN_DEVICE void step(const BackwardTask& task, int head, int tile, int next_head,
                          int next_tile) {
    Scores score, gradient;
    Sums dq;
    const QueryRing held = queries_;
    const DoutRing held_dout = dout_;
    queries_.advance();
    dout_.advance();
    const Int64 next_query = Int64{next_tile} * kBlockN;
    Statistics<kShareTiles> statistics = begin_scores(score);
    statistics.load_offsets();
    mbarrier_wait(kGradientsWritten, gradients_parity_);
    begin_keys<0>(held, held_dout, rank_);
    wait_for_probabilities<kMasked, 1>(task, next_head, next_query, first_row(), statistics, score);
    if constexpr (kSplitStatistics) arrive(kOtherQueriesEmpty);
    wait_for_peer();
    begin_queries(dq);
    begin_keys<1>(held, held_dout, 1 - rank_);
    wait_for_dout();
    const SumsOfLane sums = wait_for_sums(task, head, tile, dq);
    wgmma_wait<1>();
    wgmma_hold(dq);
    begin_own_gradients(gradient, sums);
    wgmma_wait<1>();
    end_keys(held, held_dout);
    begin_other_gradients(gradient, sums);
    arrive(kSumsFull);
    wait_for_gradients<kMasked, 0>(task, next_head, next_query, first_row(), statistics, score,
                                   gradient);
    if constexpr (!kSplitStatistics) arrive(kOtherQueriesEmpty);
    store_scores(score, gradient);
  }
  // The products of the last tile.
  FULMEN_DEVICE void finish(const BackwardTask& task, int head, int tile) {
    Sums dq;
    arrive(kValuesEmpty);
    mbarrier_wait(kGradientsWritten, gradients_parity_);
    wait_for_peer();
    begin_queries(dq);
    // Waits for all products: else compilers let each wait for the one before, in step(), too.
    wgmma_wait<0>();
    wgmma_hold(dq);
    arrive(kKeysEmpty);
    begin_keys<0>(queries_, dout_, rank_);
    begin_keys<1>(queries_, dout_, 1 - rank_);
    wgmma_wait<0>();
    end_keys(queries_, dout_);
    wait_for_sums(task, head, tile, dq).after(Part<0, 1>{});
    arrive(kSumsFull);
    queries_.advance();
    dout_.advance();
  }

  // The first of the warpgroup's queries in the tile.
  FULMEN_DEVICE int first_row() const { return kScoreTile * kShareTiles * warpgroup_; }
  // S^T of the tile in queries_ begins: over the own half of the dims, then over the other one, a
  // group each.
  FULMEN_DEVICE Statistics<kShareTiles> begin_scores(Scores& score) {
    mbarrier_wait(kQueriesFull + 8 * queries_.buffer, queries_.parity);
    multiply_half<kHalfDims, 0>(score, kLdsLayout.keys_at,
                                kLdsLayout.queries_at + queries_.buffer * kLdsLayout.half_bytes,
                                Nothing{});
    multiply_half<kHalfDims, 1>(score, kLdsLayout.keys_at + kLdsLayout.half_bytes,
                                kLdsLayout.other_queries_at, Nothing{});
    return {kLdsLayout.statistics_at + queries_.buffer * kLdsLayout.statistic_bytes, first_row()};
  }
  FULMEN_DEVICE void wait_for_dout() const {
    mbarrier_wait(kDoutFull + 8 * dout_.buffer, dout_.parity);
  }
  // D^T of the tile in dout_ begins: over the own half of the dims here, over the other one in
  // begin_other_gradients(). Calls between.after(part) after each product.
  template <class Between>
  FULMEN_DEVICE void begin_own_gradients(Scores& gradient, const Between& between) const {
    multiply_half<kHalfDimsV, 0>(gradient, kLdsLayout.values_at,
                                 kLdsLayout.dout_at + dout_.buffer * kLdsLayout.half_bytes_v,
                                 between);
  }
  template <class Between>
  FULMEN_DEVICE void begin_other_gradients(Scores& gradient, const Between& between) const {
    multiply_half<kHalfDimsV, 1>(gradient, kLdsLayout.values_at + kLdsLayout.half_bytes_v,
                                 kLdsLayout.other_dout_at, between);
  }
  template <int kDims, int kHalf, class Between>
  FULMEN_DEVICE void multiply_half(Scores& product, int rows_at, int columns_at,
                                   const Between& between) const {
    const LdsMatrix rows = matrix_at(rows_at, kBlockM),
                    columns = matrix_at(columns_at, kBlockN).rows_further(first_row());
    wgmma_fence();
    multiply_from<kHalf * kDims / kScoreTile, (kHalf + 1) * kDims / kScoreTile,
                  2 * kDims / kScoreTile>(product, rows, columns, between);
    wgmma_commit();
  }
  template <int kStep, int kEnd, int kAll, class Between>
  FULMEN_DEVICE static void multiply_from(Scores& product, const LdsMatrix& rows,
                                          const LdsMatrix& columns, const Between& between) {
    constexpr int kColumn = kScoreTile * kStep % (8 * kAll);
    wgmma<Element, false, false>(product, rows.columns_further(kColumn, kBlockM),
                                 columns.columns_further(kColumn, kBlockN), kStep > 0);
    between.after(Part<kStep, kAll>{});
    if constexpr (kStep + 1 < kEnd)
      multiply_from<kStep + 1, kEnd, kAll>(product, rows, columns, between);
  }
  FULMEN_DEVICE static int gradients_at(int rank) {
    return kLdsLayout.gradients_at + rank * kLdsLayout.gradient_bytes;
  }
  // Stores P^T and dS^T of the workgroup's keys to panels of [key][query], for both workgroups,
  // once both have read those of the tile before.
  FULMEN_DEVICE void store_scores(const Scores& p, const Scores& ds) {
    arrive(kOtherDoutEmpty);
    mbarrier_wait(kGradientsEmpty, gradients_parity_ ^ 1);
#pragma unroll
    for (int f = 0; f < kShareTiles; ++f) {
      // The swizzle is an exclusive or: one address for all.
      const int at = (gradients_at(rank_) + gradient_place_) ^ 32 * f;
      stmatrix_x4(at, to_operand<Element>(ds[f]).words);
      stmatrix_x4(at + kLdsLayout.probabilities_at, to_operand<Element>(p[f]).words);
    }
    lds_fence_for_matrices();
    arrive(kGradientsWritten);
  }
  FULMEN_DEVICE void wait_for_peer() {
    mbarrier_wait(kPeerWritten, gradients_parity_);
    gradients_parity_ ^= 1;
  }
  // dQ begins, a group of its own: of both workgroups' keys.
  FULMEN_DEVICE void begin_queries(Sums& dq) const {
    const LdsMatrix ds[kPair] = {matrix_at(gradients_at(rank_), kBlockM),
                                 matrix_at(gradients_at(1 - rank_), kBlockM)};
    const LdsMatrix keys[kPair] = {
        half_of_dims<kHalfDims>(kLdsLayout.keys_at, kBlockM, warpgroup_),
        half_of_dims<kHalfDims>(kLdsLayout.peer_keys_at, kBlockM, warpgroup_)};
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kPair * kBlockM / kScoreTile; ++k) {
      const int n = k / (kBlockM / kScoreTile), row = kScoreTile * k % kBlockM;
      wgmma<Element, true, true>(dq, ds[n].rows_further(row), keys[n].rows_further(row), k > 0);
    }
    wgmma_commit();
  }
  // dV and dK of one workgroup's keys begin, a group of their own.
  template <int kWhose>
  FULMEN_DEVICE void begin_keys(const QueryRing& queries, const DoutRing& dout, int rank) {
    const int at = gradients_at(rank);
    begin_shared_keys<kHalfDims, kHalfDimsV>(
        dk_[kWhose][0], dv_[kWhose][0], at, at + kLdsLayout.probabilities_at,
        kLdsLayout.queries_at + queries.buffer * kLdsLayout.half_bytes,
        kLdsLayout.dout_at + dout.buffer * kLdsLayout.half_bytes_v, warpgroup_);
  }
  // They are done.
  FULMEN_DEVICE void end_keys(const QueryRing& queries, const DoutRing& dout) {
#pragma unroll
    for (int n = 0; n < kPair; ++n) {
      if constexpr (kGivesDv) wgmma_hold(dv_[n][0]);
      if constexpr (kGivesDk) wgmma_hold(dk_[n][0]);
    }
    wave_barrier();
    if (lane_id() == 0) {
      mbarrier_arrive(kQueriesEmpty + 8 * queries.buffer);
      mbarrier_arrive(kDoutEmpty + 8 * dout.buffer);
      mbarrier_arrive(kGradientsEmpty);
      mbarrier_arrive_at(1 - rank_, kGradientsEmpty);
    }
  }
  // Where a lane's part of the wave's 16 queries of a tile, and of the warpgroup's quarter of the
  // dims, is added up.
  class SumsOfLane {
   public:
    FULMEN_DEVICE SumsOfLane(float* to, bool stores, bool adds, const Sums& dq)
        : to_(to), stores_(stores), adds_(adds), dq_(dq) {}
    template <int kN, int kOf>
    FULMEN_DEVICE void after(Part<kN, kOf> /*part*/) const {
      constexpr int kPieces = kKeyTiles * kElements / kAddWidth;
      add<kN * kPieces / kOf, (kN + 1) * kPieces / kOf>();
    }

   private:
    template <int kPiece, int kEnd>
    FULMEN_DEVICE void add() const {
      if constexpr (kPiece < kEnd) {
        constexpr int kTile = kPiece * kAddWidth / kElements,
                      kElement = kPiece * kAddWidth % kElements;
        global_store_or_add<kTile * kSumTile + QuerySums::place(kElement)>(
            to_, QuerySums::words_of(dq_[kTile], kElement), stores_, adds_);
        add<kPiece + 1, kEnd>();
      }
    }

    float* to_;
    bool stores_, adds_;
    const Sums& dq_;
  };
  // Waits until the ordering warp lets the wave add.
  FULMEN_DEVICE SumsOfLane wait_for_sums(const BackwardTask& task, int head, int tile,
                                         const Sums& dq) {
    const QuerySums sums = QuerySums::of(task.arguments, task.batch, head);
    const Int64 rows = Int64{tile} * (kBlockN / kScoreTile) + wave_;
    float* const to = QuerySums::of_lane(
        sums.tile(rows, kKeyTiles * (kWarpgroups * rank_ + warpgroup_)), lane_id());
    mbarrier_wait(kSumsEmpty, sums_parity_);
    sums_parity_ ^= 1;
    const bool is_first = lds_load<int>(kLdsLayout.sums_at) == 0, exists = rows < sums.tiles;
    return {to, exists && is_first, exists && !is_first, dq};
  }
  int rank_, warpgroup_, wave_;  // its waves 0 to 3
  int gradient_place_;           // of the lane in a tile of dS^T
  // Sums of the own keys, and of the peer's.
  float dk_[kPair][1][kKeyTiles][kElements], dv_[kPair][1][kValueTiles][kElements];
  int keys_parity_ = 0, sums_parity_ = 0, gradients_parity_ = 0;
  // The tile whose P^T and dS^T are in LDS, or the next one.
  QueryRing queries_;
  DoutRing dout_;
};

FULMEN_DEVICE void backward_tma_wide(const TmaBackwardArguments& a) {
  const int rank = cluster_rank();
  if (thread_id() == 0) initialise_barriers();
  cluster_barrier();
  const int wave = wave_id();
  if (wave < kConsumerWaves) {
    setmaxnreg_inc<kRegisters.consumer>();
    Consumer consumer(wave, rank);
    ScheduledBlocks(a).for_each([&](const Work& work) { consumer.run(work); });
  } else {
    setmaxnreg_dec<kRegisters.loader>();
    const int role = wave - kConsumerWaves;
    if (role == 0) {
      Loader(a, rank).run();
    } else if (role <= kOrderingWarps) {
      OrderingWarp ordering(a, rank, role == kOrderingWarps);
      ScheduledBlocks(a).for_each([&](const Work& work) { ordering.run(work); });
    } else {
      SenderWarp sender(rank);
      ScheduledBlocks(a).for_each([&](const Work& work) { sender.run(work); });
    }
  }
  cluster_barrier();  // the peer reaches this workgroup's LDS until it ends
}

}  // namespace fulmen::kernels

FULMEN_CLUSTER_KERNEL(fulmen::kernels::TmaBackwardArguments, fulmen::kernels::backward_tma_wide,
                      fulmen::kernels::kPair)
