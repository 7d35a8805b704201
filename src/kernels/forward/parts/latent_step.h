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
    const bool has_second = key + kBlockN < split.any.end;
    if constexpr (kGroup == 0) {
      const bool moved = score(split, key);
      if (moved) rescale(rows, factor);
      publish();
      begin_own();
      if (has_second) {
        wait_for_other();
        if (follow_other()) {
          end_outputs(rows);
          rescale(rows, factor);
        }
        begin_other();
        wgmma_wait<1>();
        release(tile_empty(0, 0));
        end_outputs(rows);
        release(tile_empty(1, 0));
        release(tile_empty(1, 1));
      } else {
        end_outputs(rows);
        release(tile_empty(0, 0));
      }
    } else {
      TileRow<kKeyTiles> scores;
      if (has_second) multiply_keys(scores);
      wait_for_other();
      if (follow_other()) rescale(rows, factor);
      begin_other();
      if (has_second) {
        const bool moved = exponentiate_scores(split, key + kBlockN, scores);
        publish();
        end_outputs(rows);
        release(tile_empty(0, 1));
        if (moved) rescale(rows, factor);
        begin_own();
        end_outputs(rows);
        release(tile_empty(1, 1));
      } else {
        end_outputs(rows);
        release(tile_empty(0, 1));
      }
    }
    parity ^= 1;
  }

 private:
  static constexpr int kOther = 1 - kGroup;
  FULMEN_DEVICE bool score(const SplitKeys& split, Int64 key) {
    TileRow<kKeyTiles> scores;
    multiply_keys(scores);
    return exponentiate_scores(split, key, scores);
  }
  // S of the warpgroup's own tile.
  FULMEN_DEVICE void multiply_keys(TileRow<kKeyTiles>& scores) const {
    mbarrier_wait(tile_full(kGroup, 0), parity);
    mbarrier_wait(tile_full(kGroup, 1), parity);
    wgmma_fence();
    begin_scores(LdsMatrix::of(0, kBlockM), LdsMatrix::of(tile_at(kGroup), kBlockN), scores);
    wgmma_wait<0>();
    wgmma_hold(scores);
  }
  // Scores become rows.p. Returns true if the reference moved.
  FULMEN_DEVICE bool exponentiate_scores(const SplitKeys& split, Int64 key,
                                         TileRow<kKeyTiles>& scores) {
    bool moved = false;
    if (wave_row >= map.end) {
      // The warpgroup multiplies 64 rows, these are none.
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) scores[f][e] = 0;
      }
    } else if (split.is_masked(key)) {
      moved = exponentiate_tile<true>(map, wave_row, rows.state, key,
                                      RowBits<true>::of(map, wave_row, key), scores, factor);
    } else {
      moved = exponentiate_tile<false>(map, wave_row, rows.state, key,
                                       RowBits<false>::of(map, wave_row, key), scores, factor);
    }
    keep_probabilities(rows, scores);
    return moved;
  }
  // The own tile's probabilities and references, for the other warpgroup.
  FULMEN_DEVICE void publish() const {
    const int own_row = wave_id() % 4 * kScoreTile, l = lane_id();
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      stmatrix_x4(probabilities_at(kGroup) +
                      panel_place(own_row + l % 16, kScoreTile * f + l / 16 * 8, kBlockM),
                  rows.p[f].words);
    }
    if (tile_column(0) == 0) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot)
        lds_store(reference_at(kGroup, slot), rows.state.reference[slot]);
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
    float moved[kRowsPerLane];
    bool moves = false;
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) {
      moved[slot] = lds_load<float>(reference_at(kOther, slot));
      moves = moves || moved[slot] != rows.state.reference[slot];
    }
    if (__builtin_expect(!any_lane(moves), 1)) return false;
    follow_maxima(rows.state, softmax_scale(map.arguments), moved, factor);
    return true;
  }
  FULMEN_DEVICE static int reference_at(int group, int slot) {
    const int row = wave_id() % 4 * kScoreTile + tile_row(slot);
    return kLdsLayout.references_at + 4 * (kBlockM * group + row);
  }
  // O += P K begins, of the own tile and of the other one.
  FULMEN_DEVICE void begin_own() {
    wgmma_fence();
    begin_outputs(rows, values(kGroup));
  }
  FULMEN_DEVICE void begin_other() {
    const LdsMatrix probabilities = LdsMatrix::of(probabilities_at(kOther), kBlockM);
    wgmma_fence();
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
