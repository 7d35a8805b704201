// Products in 8 bits: what belongs to the codes of a wave's query rows, and scores of their sums.
// Nothing where keys are no codes.
#pragma once

#include "tile/int8.h"
#include "tile/modified_scores.h"
#include "tile/softmax.h"
#include "tile/stage_layout.h"

namespace fulmen::kernels {

// Sums of codes of probabilities and values, times this, are outputs that a row's sum divides.
FULMEN_DEVICE float scale_of_value_codes(const ForwardArguments& a, Int64 batch, Int64 head) {
  const Int64 kv_head = batch * a.num_kv_heads + head / a.group_size;
  return kFp8Unshift * global_load(fp8_floats(a, fp8_workspace(a).v_scales) + kv_head);
}

struct RowCodes {
  CodeRow row[kRowTiles][kRowsPerLane];
  float origin[kElements];  // kCodeOrigin: what a tile's sums begin with

  using Scores = Fragment<kRowTiles, kKeyTiles>;

  // Of a wave's rows from first_row on.
  FULMEN_DEVICE void load(const ForwardArguments& call, const RowMap& map, Int64 first_row) {
    if constexpr (!kCodeKeys) return;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 query = map.clamp(first_row + kScoreTile * t + tile_row(slot));
        row[t][slot] = CodeRow::load(call, map.batch, map.first_head, query);
      }
    }
    if constexpr (kInt8Products) set_origin(origin);
  }
  // A tile's scores before its products.
  FULMEN_DEVICE void begin(Scores& score) const {
    if constexpr (!kInt8Products) return;
    for_scores([&](int t, int f, int e) { score[t][f][e] = origin[e]; });
  }
  // Sums become scores; not where a scale is all that they need, which is the softmax's then.
  FULMEN_DEVICE void finish(Scores& score) const {
    if constexpr (!kCodeKeys || kPlainScale) return;
    for_scores(
        [&](int t, int f, int e) { score[t][f][e] = row[t][row_slot(e)].score(score[t][f][e]); });
  }
  // Times a difference of what the softmax takes of row tile t: the exponent of 2.
  FULMEN_DEVICE auto softmax_scale(const ForwardArguments& a, int t) const {
    if constexpr (kKeepsShift) {
      return scales_of(row[t]);
    } else {
      return kernels::softmax_scale(a);
    }
  }
  // The maximum of a row, the query-th one, as end_row() takes it.
  FULMEN_DEVICE float maximum(const ForwardArguments& a, const RowMap& map, const RowState& state,
                              Int64 query, int t, int slot) const {
    if constexpr (kKeepsShift) {
      const CodeRow codes = kLoadsAgain
                                ? CodeRow::load(a, map.batch, map.first_head, map.clamp(query))
                                : row[t][slot];
      const float shift = state.reference[slot];
      if (shift == kNoShift) return -kInfinity;
      return fused(-kCodeOrigin, codes.scale, kShift - kLift - shift) + codes.start;
    }
    return row_maximum(state, kernels::softmax_scale(a), slot);
  }

 private:
  // NVIDIA: what is added at the end takes no registers until then, of which two rows a lane leave
  // none.
  static constexpr bool kLoadsAgain = kRowsPerLane > 1;
  FULMEN_DEVICE static RowScales scales_of(const CodeRow (&codes)[kRowsPerLane]) {
    RowScales scales;
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot) scales.of_row[slot] = codes[slot].scale;
    return scales;
  }
  template <class Body>
  FULMEN_DEVICE static void for_scores(const Body& body) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) body(t, f, e);
      }
    }
  }
};

}  // namespace fulmen::kernels
