// forward/decode_latent.h: what a wave of the two warpgroups that multiply does with a pair of
// tiles.
#pragma once

#include "forward/parts/latent_tile.h"

namespace fulmen::kernels {

// A wave's 16 rows, and their outputs in half kGroup of the dims.
template <int kGroup>
struct LatentRows {
  const RowMap& map;
  Int64 wave_row;
  int parity = 0;
  WaveRows rows = {};
  float factor[kRowsPerLane] = {};  // of what was summed before, where the reference moves

  // The tiles from `key` on: the second one may lie behind the split's end.
  FULMEN_DEVICE void pair(const SplitKeys& split, Int64 key) {
    const Int64 second = key + kBlockN;
    const bool has_second = second < split.any.end;
    if (kGroup == 1 && !has_second) {
      wait_for_other();
      take_other();
      end_other();
    } else if (split.is_masked(kGroup == 0 ? key : second)) {
      with_own_tile<true>(kGroup == 0 ? key : second, has_second);
    } else {
      with_own_tile<false>(kGroup == 0 ? key : second, has_second);
    }
    parity ^= 1;
  }

 private:
  static constexpr int kOther = 1 - kGroup;

  // What a warpgroup does with its own tile of the pair, and with the other one's probabilities.
  template <bool kMasked>
  FULMEN_DEVICE void with_own_tile(Int64 first_key, bool has_second) {
    TileRow<kKeyTiles> scores;
    multiply_keys(scores);
    if constexpr (kGroup == 0) {
      if (exponentiate_scores<kMasked>(first_key, scores)) rescale(rows, factor);
      publish();
      begin_own();
      if (has_second) wait_for_other();
      end_own();
      if (has_second) {
        take_other();
        end_other();
      }
    } else {
      wait_for_other();
      take_other();
      const bool moved = exponentiate_scores<kMasked>(first_key, scores);
      publish();
      end_other();
      if (moved) rescale(rows, factor);
      begin_own();
      end_own();
    }
  }
  // O += P K of the other tile begins.
  FULMEN_DEVICE void take_other() {
    if (follow_other()) rescale(rows, factor);
    begin_other();
  }
  FULMEN_DEVICE void end_other() {
    end_outputs(rows);
    release(tile_empty(kOther, kGroup));
    // Where the probabilities of the second tile lie.
    if constexpr (kGroup == 0) release(tile_empty(1, 1));
  }
  FULMEN_DEVICE void end_own() {
    end_outputs(rows);
    release(tile_empty(kGroup, kGroup));
  }
  // S of the warpgroup's own tile: products of the first half begin before the other one is there.
  FULMEN_DEVICE void multiply_keys(TileRow<kKeyTiles>& scores) const {
    constexpr int kFirstTiles = kHalfPanels * kPanelColumns / kWgmmaDepth;
    const LdsMatrix queries = LdsMatrix::of(0, kBlockM),
                    keys = LdsMatrix::of(tile_at(kGroup), kBlockN);
    mbarrier_wait(tile_full(kGroup, 0), parity);
    wgmma_fence();
    begin_scores<0, kFirstTiles>(queries, keys, scores);
    mbarrier_wait(tile_full(kGroup, 1), parity);
    wgmma_fence();
    begin_scores<kFirstTiles, kHeadDimTiles>(queries, keys, scores);
    wgmma_wait<0>();
    wgmma_hold(scores);
    wave_barrier();
    release(scores_done(kGroup));
  }
  // Scores become rows.p. Returns true if the reference moved.
  template <bool kMasked>
  FULMEN_DEVICE bool exponentiate_scores(Int64 first_key, TileRow<kKeyTiles>& scores) {
    const bool moved =
        exponentiate_tile<kMasked>(map, wave_row, rows.state, first_key,
                                   RowBits<kMasked>::of(map, wave_row, first_key), scores, factor);
    keep_probabilities(rows, scores);
    return moved;
  }
  // The own tile's probabilities and references, for the other warpgroup.
  FULMEN_DEVICE void publish() const {
    // Probabilities take the place of keys, which the other waves of the warpgroup multiply, too.
    mbarrier_wait(scores_done(kGroup), parity);
    const int own_row = wave_id() % 4 * kScoreTile, l = lane_id(),
              references = reference_at(kGroup);
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      stmatrix_x4(probabilities_at(kGroup) +
                      panel_place(own_row + l % 16, kScoreTile * f + l / 16 * 8, kBlockM),
                  rows.p[f].words);
    }
    if (tile_column(0) == 0) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot)
        lds_store(references + 4 * tile_row(slot), rows.state.reference[slot]);
    }
    lds_fence_for_matrices();
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive(probabilities_full(kGroup));
  }
  FULMEN_DEVICE void wait_for_other() const {
    mbarrier_wait(tile_full(kOther, kGroup), parity);
    mbarrier_wait(probabilities_full(kOther), parity);
  }
  // Takes the other warpgroup's references. Returns true if one moved.
  FULMEN_DEVICE bool follow_other() {
    const int references = reference_at(kOther);
    float moved[kRowsPerLane];
    bool moves = false;
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      moved[slot] = lds_load<float>(references + 4 * tile_row(slot));
      moves = moves || moved[slot] != rows.state.reference[slot];
    }
    if (__builtin_expect(!any_lane(moves), 1)) return false;
    follow_maxima(rows.state, softmax_scale(map.arguments), moved, factor);
    return true;
  }
  // Where the references of the wave's rows lie.
  FULMEN_DEVICE static int reference_at(int group) {
    return kLdsLayout.references_at + 4 * (kBlockM * group + wave_id() % 4 * kScoreTile);
  }
  // The sums are in the products' registers before the fence. Else the compiler moves them there
  // between two products, and waits.
  FULMEN_DEVICE void settle_outputs() {
#pragma unroll
    for (int g = 0; g < kProducts; ++g) wgmma_hold(rows.out[g]);
    wgmma_fence();
  }
  // O += P K begins, of the own tile and of the other one.
  FULMEN_DEVICE void begin_own() {
    settle_outputs();
    begin_outputs(rows, values(kGroup));
  }
  FULMEN_DEVICE void begin_other() {
    const LdsMatrix probabilities = LdsMatrix::of(probabilities_at(kOther), kBlockM);
    settle_outputs();
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int g = 0; g < kProducts; ++g) {
        wgmma<Element, false, true>(rows.out[g],
                                    probabilities.columns_further(kScoreTile * f, kBlockM),
                                    values(kOther)
                                        .rows_further(kScoreTile * f)
                                        .columns_further(kScoreTile * kProductTiles * g, kBlockN),
                                    true);
      }
    }
    wgmma_commit();
  }
  FULMEN_DEVICE static LdsMatrix values(int tile) {
    return LdsMatrix::of(tile_at(tile), kBlockN).columns_further(kGroup * kHeadDimV, kBlockN);
  }
  FULMEN_DEVICE static void release(int empty) {
    if (lane_id() == 0) mbarrier_arrive(empty);
  }
};

}  // namespace fulmen::kernels
