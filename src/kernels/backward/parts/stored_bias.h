// dbias where none of its elements is a sum (kStoresDbias): each is one score's gradient, which the
// launch that has the scores stores. Elements that it does not visit, as a band or a mask leaves
// them out, were cleared before (parts/clear_bias.h).
#pragma once

#include "backward/parts/bias.h"
#include "backward/parts/tile.h"

namespace fulmen::kernels {

static_assert(!kStoresDbias || (!kGivesDbias && !kSoftcap && !kScoreMod && !kVariable),
              "stored_bias: the gradient by the bias is that by scale * q.k");

// Where rows of dbias are whole as well (kWholeBias), a lane of NVIDIA stores two neighbours of 16
// bits at once.
constexpr bool kDbiasInPairs =
    kStoresDbias && kWholeBias && sizeof(BiasGradient) == 2 && kCopiesToLds;

// Of 16 rows from first_row on and 16 columns from first_column on. of(e): the gradient by the
// lane's element e. kMasked: the last column may lie in the tile.
template <bool kMasked, class Of>
FULMEN_DEVICE void store_bias_elements(const BackwardTask& task, Int64 head, Int64 first_row,
                                       Int64 first_column, const Of& of) {
  if constexpr (kStoresDbias) {
    const BackwardArguments& a = task.arguments;
    const Int64 last = kRowsAreKeys ? a.seqlen_q : a.seqlen_k;
    const auto stores = [&](Int64 row, Int64 column) {
      return row < task.row_end && (!kMasked || column < last);
    };
    const auto place = [&](Int64 i, Int64 j) {
      return const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, task.batch, i, head)) + j;
    };
    if constexpr (kDbiasInPairs && kRowsAreKeys) {
      // A lane has two queries of a key, and gets two keys of a query.
      const Int64 i = first_column + lane_id() / 4, j = first_row + 2 * (lane_id() % 4);
      BiasGradient* const lane = place(i, j);
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        const unsigned pair = transpose_pairs(pack<BiasGradient>(of(e), of(e + 1)));
        const int queries = 8 * (e / 4), keys = 8 * row_slot(e);
        if (stores(j + keys, i + queries))
          global_store(reinterpret_cast<unsigned*>(lane + (queries * a.dbias.row + keys)), pair);
      }
    } else {
      constexpr int kStep = kDbiasInPairs ? 2 : 1;
      const Int64 row = first_row + tile_row(0), column = first_column + tile_column(0);
      BiasGradient* const lane = kRowsAreKeys ? place(column, row) : place(row, column);
#pragma unroll
      for (int e = 0; e < kElements; e += kStep) {
        const int rows = tile_row(row_slot(e)) - tile_row(0),
                  columns = tile_column(e) - tile_column(0);
        if (!stores(row + rows, column + columns)) continue;
        BiasGradient* const to = kRowsAreKeys ? lane + (columns * a.dbias.row + rows)
                                              : lane + (rows * a.dbias.row + columns);
        if constexpr (kStep == 2) {
          global_store(reinterpret_cast<unsigned*>(to), pack<BiasGradient>(of(e), of(e + 1)));
        } else {
          global_store(to, from_float<BiasGradient>(of(e)));
        }
      }
    }
  }
}
// Of elements that are gradients, whatever their dout holds.
template <bool kMasked>
FULMEN_DEVICE void store_bias_gradient(const BackwardTask& task, Int64 head, Int64 first_row,
                                       Int64 first_column, const float (&gradient)[kElements]) {
  store_bias_elements<kMasked>(task, head, first_row, first_column,
                               [&](int e) { return gradient[e]; });
}
// What has no probability has no gradient: its dout may be infinite.
template <bool kMasked>
FULMEN_DEVICE void store_bias_gradient(const BackwardTask& task, Int64 head, Int64 first_row,
                                       Int64 first_column, const float (&p)[kElements],
                                       const float (&gradient)[kElements]) {
  store_bias_elements<kMasked>(task, head, first_row, first_column,
                               [&](int e) { return p[e] == 0 ? 0.0F : gradient[e]; });
}

}  // namespace fulmen::kernels
