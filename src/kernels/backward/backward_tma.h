// Gradients of q, k and v by Hopper's warpgroup products, whose operands the tensor memory
// accelerator (TMA) brings: 5 products a tile of queries, by one launch.
//
//   S^T[64, kBlockN] = K[64, d] Q[kBlockN, d]^T    D^T[64, kBlockN] = V[64, d_v] dO[kBlockN, d_v]^T
//                                                      a warpgroup's step
//   P^T = 2^(S^T - lse),  dS^T = P^T (D^T - delta)     dV[64, d_v] += P^T dO,  dK[64, d] += dS^T Q
//   dQ[kBlockN, d / 2] = dS[kBlockN, kBlockM] K[kBlockM, d / 2]      added to sums in memory, fp32
//
// A workgroup takes blocks of kBlockM keys of one KV head, each of two warpgroups 64 of them, and
// goes over tiles of queries. P^T and dS^T go from scores to products in registers; dQ needs both
// warpgroups' dS^T, by way of LDS, one tile later. A third warpgroup brings tiles and adds dQ to
// memory (parts/tma_roles.h). mbarriers say what is full and what is empty: no barrier of all waves
// is in the loop.
//
// Registers of a lane: dK d / 2, dV d_v / 2, S and D kBlockN / 2 each, then P and dS kBlockN / 4
// each beside dQ kBlockN d / 256; up to 64 dims V d_v / 4.
#include "backward/parts/tma_roles.h"
#include "backward/parts/tma_scores.h"
#include "tile/nvidia/register_shares.h"

namespace fulmen::kernels {

// Where products are pipelined they leave the loader and the adders 32 registers, but for random
// numbers and softcap.
constexpr int kLoaderRegisters =
    (kPipelined || kTileLists) && kSplitStatistics ? 32 : kTmaRegisters;
constexpr RegisterShares kRegisters =
    RegisterShares::of(kWarpgroups, kMinWorkgroups, kLoaderRegisters);

// P^T and dS^T of a tile, and of a wave's keys, as operands.
struct Operands {
  ProbabilityOperand p[kColumnTiles], ds[kColumnTiles];
};

// Where dims fill the second panel in part, the second warpgroup has fewer of dQ's, in code of its
// own.
constexpr bool kWholePanels = kHeadDim % kPanelColumns == 0;
constexpr int kAnyWarpgroup = -1;

// A wave of the two warpgroups that multiply. kWarpgroup: of which one, or of either.
template <int kWarpgroup>
class Consumer {
 public:
  FULMEN_DEVICE explicit Consumer(int wave)
      : warpgroup_(kWarpgroup == kAnyWarpgroup ? wave / 4 : kWarpgroup),
        wave_(wave % 4),
        gradient_place_(
            panel_place(kScoreTile * wave + lane_id() % 16, lane_id() / 16 * 8, kBlockM)) {
    if (kPingPong && warpgroup_ == 1) pass_turn();
  }

  FULMEN_DEVICE void run(const Work& work) {
    const BackwardArguments& a = work.arguments;
    const BackwardTask task{a,
                            work.batch,
                            work.band,
                            work.row_begin + 64 * warpgroup_ + kScoreTile * wave_,
                            work.row_end,
                            0,
                            0};
    clear(dk_[0]);
    clear(dv_[0]);
    if (work.order.count > 0) over_tiles(work, task);
    if constexpr (kGivesDk)
      store_rows(task, a.dk, work.kv_head, 0, a.head_dim, a.softmax_scale, dk_);
    if constexpr (kGivesDv) store_rows(task, a.dv, work.kv_head, 0, a.head_dim_v, 1.0F, dv_);
  }

 private:
  // The warpgroup's tiles of dQ, 16 dims each.
  static constexpr int kOwnTiles = kWarpgroup == 1 ? kHeadDim / kScoreTile - kSumTiles : kSumTiles;
  using Sums = float[kOwnTiles][kElements];

  FULMEN_DEVICE void over_tiles(const Work& work, const BackwardTask& task) {
    const QueryOrder& order = work.order;
    const int first_head = work.first_head(), end_head = first_head + work.arguments.group_size;
    int head = first_head, n = 0;
    mbarrier_wait(kKeysFull + 8 * keys_.buffer, keys_.parity);
    if constexpr (kPipelined) load_values();
    step<kFirstMasked, 0>(task, head, order.nth(0).tile());
    bool second = kPipelined;                                          // is to come
    auto ahead = order.ahead(kTilesAhead && order.count > 1 ? 1 : 0);  // in flight beside a step
#pragma unroll 1
    while (true) {
      if constexpr (kTileByTile) {
        if (++head == end_head) {
          head = first_head;
          if (++n == order.count) break;
        }
      } else if (++n == order.count) {
        n = 0;
        if (++head == end_head) break;
      }
      const auto entry = kTilesAhead ? order.arrived(ahead) : order.nth(n);
      if constexpr (kTilesAhead) ahead = order.ahead(n + 1 < order.count ? n + 1 : 0);
      const int tile = entry.tile();
      if (kPipelined && second) {
        step<kFirstMasked, 1>(task, head, tile);
        second = false;
      } else if (order.is_masked(entry)) {
        step<true, 2>(task, head, tile);
      } else {
        step<false, 2>(task, head, tile);
      }
    }
    if (kPipelined && !second) {
      finish<2>();
    } else {
      finish<1>();
    }
  }
  FULMEN_DEVICE void wait_turn() const {
    if constexpr (kPingPong) warpgroup_turn_wait(warpgroup_);
  }
  FULMEN_DEVICE void pass_turn() const {
    if constexpr (kPingPong) warpgroup_turn_pass(1 - warpgroup_);
  }
  // One tile: P^T and dS^T, the products that they go into, and dQ of the tile before. kPipelined:
  // the products are those of the tile before, and dQ is that of the tile before that one, as the
  // other warpgroup may be one step behind. kNth: of the block's tiles, or a later one.
  template <bool kMasked, int kNth>
  FULMEN_DEVICE void step(const BackwardTask& task, int head, int tile) {
    constexpr bool kEarlyProducts = kPipelined && kNth > 0, kPending = kNth > (kPipelined ? 1 : 0);
    const Int64 first_query = Int64{tile} * kBlockN;
    float score[kColumnTiles][kElements], gradient[kColumnTiles][kElements];
    Sums dq;
    mbarrier_wait(kQueriesFull + 8 * queries_.buffer, queries_.parity);
    Statistics<kColumnTiles> statistics(
        kLdsLayout.statistics_at + queries_.buffer * kLdsLayout.statistic_bytes, 0);
    statistics.load_offsets();
    wait_turn();
    multiply_panels<kHeadDimTiles>(score, own_rows(keys_at()), queries_at(queries_));
    multiply_values(gradient, dout_at(queries_));
    if constexpr (kPipelined && kPending) multiply_queries(dq);
    if constexpr (kEarlyProducts) add_keys(held_, held_queries_);
    pass_turn();
    const int gradients_empty = kGradientsEmpty + 8 * gradients_.buffer;
    const bool may_store_gradients = mbarrier_test(gradients_empty, gradients_.parity ^ 1);
    const bool may_store_sums =
        kPending && mbarrier_test(kSumsEmpty + 8 * sums_.buffer, sums_.parity ^ 1);
    constexpr int kLater = (kPipelined && kPending ? 1 : 0) + (kEarlyProducts ? 1 : 0);
    wait_for_scores<kMasked, kLater>(task, head, first_query, 0, statistics, score, gradient);
    // Exponentials while the products behind are in flight: ptxas moves them behind the wait for
    // all products, but not past a branch.
    if constexpr (kEarlyProducts) {
      wgmma_hold(score);
      wgmma_hold(gradient);
      if constexpr (kPending) {
        wgmma_wait<1>();
        wgmma_hold(dq);
        end_pending();
        store_queries(dq, may_store_sums);
      }
    }
    wait_unless(may_store_gradients, gradients_empty, gradients_.parity ^ 1);
    // Operands are made when no product is in flight: compilers would wait for all products else.
    if constexpr (kEarlyProducts) wait_for_keys();
    Operands now;
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      now.ds[f] = to_operand<Element>(gradient[f]);
      store_transposed(f, now.ds[f]);
      now.p[f] = to_operand<Element>(score[f]);
    }
    arrive(kGradientsWritten + 8 * gradients_.buffer);
    if constexpr (kPipelined) {
      if constexpr (kEarlyProducts) release(held_queries_);
      held_ = now;
      held_queries_ = queries_;
    } else {
      wait_turn();
      if constexpr (kPending) multiply_queries(dq);
      add_keys(now, queries_);
      pass_turn();
      if constexpr (kPending) {
        wgmma_wait<1>();
        wgmma_hold(dq);
        end_pending();
        store_queries(dq, may_store_sums);
      }
      wait_for_keys();
      release(queries_);
    }
    gradients_.advance();
    queries_.advance();
  }
  // dQ of the last kTiles tiles, and the last one's products where they are still to come.
  template <int kTiles>
  FULMEN_DEVICE void finish() {
    Sums dq;
    if constexpr (kTiles > 1) multiply_queries(dq);
    if constexpr (kPipelined) add_keys(held_, held_queries_);
    if constexpr (kTiles > 1) {
      wgmma_wait<1>();
      wgmma_hold(dq);
      end_pending();
      store_queries(dq, false);
    }
    multiply_queries(dq);
    wait_for_keys();
    wgmma_hold(dq);
    arrive(kKeysEmpty + 8 * keys_.buffer);
    keys_.advance();
    end_pending();
    if constexpr (kPipelined) release(held_queries_);
    store_queries(dq, false);
  }
  // Its dS^T has been read.
  FULMEN_DEVICE void end_pending() {
    arrive(kGradientsEmpty + 8 * pending_.buffer);
    pending_.advance();
  }
  FULMEN_DEVICE static void release(const QueryRing& queries) {
    arrive(kQueriesEmpty + 8 * queries.buffer);
  }

  FULMEN_DEVICE void load_values() {
#pragma unroll
    for (int d = 0; d < kHeadDimVTiles; ++d) {
      const int row = 64 * warpgroup_ + kScoreTile * wave_ + lane_id() % 16,
                column = kScoreTile * d + lane_id() / 16 * 8;
      values_[d].words = ldmatrix_x4(values_at() + panel_place(row, column, kBlockM));
    }
  }
  // D^T begins. kPipelined: products with values in registers read less LDS, which they wait for.
  FULMEN_DEVICE void multiply_values(float (&product)[kColumnTiles][kElements],
                                     const LdsMatrix& dout) const {
    if constexpr (kPipelined) {
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < kHeadDimVTiles; ++d) {
        wgmma<Element, false>(product, values_[d].words,
                              dout.columns_further(kWgmmaDepth * d, kBlockN), d > 0);
      }
      wgmma_commit();
    } else {
      multiply_panels<kHeadDimVTiles>(product, own_rows(values_at()), dout);
    }
  }
  FULMEN_DEVICE int keys_at() const {
    return kLdsLayout.keys_at + (kKeyBuffers > 1 ? keys_.buffer * kLdsLayout.key_bytes : 0);
  }
  FULMEN_DEVICE int values_at() const {
    return kLdsLayout.values_at + (kKeyBuffers > 1 ? keys_.buffer * kLdsLayout.value_bytes : 0);
  }
  FULMEN_DEVICE LdsMatrix own_rows(int at) const {
    return matrix_at(at, kBlockM).rows_further(64 * warpgroup_);
  }
  FULMEN_DEVICE static LdsMatrix queries_at(const QueryRing& ring) {
    return matrix_at(kLdsLayout.queries_at + ring.buffer * kLdsLayout.query_bytes, kBlockN);
  }
  FULMEN_DEVICE static LdsMatrix dout_at(const QueryRing& ring) {
    return matrix_at(kLdsLayout.dout_at + ring.buffer * kLdsLayout.dout_bytes, kBlockN);
  }
  FULMEN_DEVICE static int gradients_at(const GradientRing& ring) {
    return kLdsLayout.gradients_at + ring.buffer * kLdsLayout.gradient_bytes;
  }
  // 16 queries of the wave's keys to panels of [key][query].
  FULMEN_DEVICE void store_transposed(int n, const ProbabilityOperand& x) const {
    // The swizzle is an exclusive or: one address for all.
    stmatrix_x4((gradients_at(gradients_) + gradient_place_) ^ 32 * n, x.words);
  }
  // dV += P^T dO and dK += dS^T Q begin.
  FULMEN_DEVICE void add_keys(const Operands& x, const QueryRing& ring) {
    const LdsMatrix queries = queries_at(ring), dout = dout_at(ring);
    wgmma_fence();
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      if constexpr (kGivesDv)
        wgmma<Element, true>(dv_[0], x.p[f].words, dout.rows_further(kWgmmaDepth * f), true);
    }
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      if constexpr (kGivesDk)
        wgmma<Element, true>(dk_[0], x.ds[f].words, queries.rows_further(kWgmmaDepth * f), true);
    }
    wgmma_commit();
  }
  FULMEN_DEVICE void wait_for_keys() {
    wgmma_wait<0>();
    if constexpr (kGivesDv) wgmma_hold(dv_[0]);
    if constexpr (kGivesDk) wgmma_hold(dk_[0]);
  }
  // dQ of the warpgroup's half of the dims begins.
  FULMEN_DEVICE void multiply_queries(Sums& dq) const {
    mbarrier_wait(kGradientsFull + 8 * pending_.buffer, pending_.parity);
    // No product is in flight that it would hold up.
    if constexpr (!kPipelined) lds_fence_for_matrices();
    begin_queries(dq, gradients_at(pending_), keys_at(), warpgroup_);
  }
  FULMEN_DEVICE static void wait_unless(bool passed, int barrier, int parity) {
    if constexpr (kPipelined) {  // products are in flight
      mbarrier_wait_unless(passed, barrier, parity);
    } else if (!passed) {
      mbarrier_wait(barrier, parity);
    }
  }
  // To LDS as QuerySums has them in memory. is_empty: the buffer is known to be.
  FULMEN_DEVICE void store_queries(const Sums& dq, bool is_empty) {
    wait_unless(is_empty, kSumsEmpty + 8 * sums_.buffer, sums_.parity ^ 1);
    const int first = wave_ * (kHeadDim / kScoreTile) + warpgroup_ * kSumTiles;
    const int at = kLdsLayout.sums_at + sums_.buffer * kLdsLayout.sum_bytes + first * kSumBytes;
#pragma unroll
    for (int d = 0; d < kOwnTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += kAddWidth) {
        lds_store(at + d * kSumBytes + 4 * (QuerySums::place(e) + lane_id() * kAddWidth),
                  QuerySums::words_of(dq[d], e));
      }
    }
    arrive(kSumsFull + 8 * sums_.buffer);
    sums_.advance();
  }

  int warpgroup_, wave_;  // its waves 0 to 3
  int gradient_place_;    // of the lane in a tile of dS^T
  float dk_[1][kHeadDimTiles][kElements], dv_[1][kHeadDimVTiles][kElements];
  KeyRing keys_;
  ProbabilityOperand values_[kHeadDimVTiles];  // kPipelined: the wave's, as operands
  QueryRing queries_;                          // the tile now
  GradientRing gradients_, pending_;           // its dS^T, and that of which dQ is next
  SumRing sums_;
  Operands held_;  // kPipelined: of the tile before, whose queries are these
  QueryRing held_queries_;
};

template <int kWarpgroup>
FULMEN_DEVICE void consume(const BackwardArguments& a, int wave) {
  Consumer<kWarpgroup> consumer(wave);
  ScheduledBlocks(a).for_each([&](const Work& work) { consumer.run(work); });
}

FULMEN_DEVICE void backward_tma(const TmaBackwardArguments& a) {
  if (thread_id() == 0) initialise_barriers();
  barrier();
  const int wave = wave_id();
  if (wave < kConsumerWaves) {
    setmaxnreg_inc<kRegisters.consumer>();
    if constexpr (kWholePanels) {
      consume<kAnyWarpgroup>(a, wave);
    } else if (wave < kConsumerWaves / 2) {
      consume<0>(a, wave);
    } else {
      consume<1>(a, wave);
    }
    return;
  }
  setmaxnreg_dec<kRegisters.loader>();
  const int role = wave - kConsumerWaves;
  if (role == 0) {
    Loader(a).run();
  } else if (role <= kAdders) {
    Adder adder(role - 1);
    ScheduledBlocks(a).for_each([&](const Work& work) { adder.run(work); });
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::TmaBackwardArguments, fulmen::kernels::backward_tma)
