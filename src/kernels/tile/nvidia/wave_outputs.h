// NVIDIA: a lane's outputs of a row are too few neighbours for wide stores. They go through the LDS
// of the wave's queries, or, where the next queries are in flight to that, through LDS of their
// own, 8 rows at a time.
#pragma once

#include "tile/modified_scores.h"
#include "tile/wave_rows.h"

namespace fulmen::kernels {

constexpr bool kStoresThroughLds = kWholeRows;

// Byte `byte` of row `first` + `row` of the outputs' room, where `first` is a multiple of 8.
FULMEN_DEVICE int output_at(int first, int row, int byte) {
  return kLayout.outputs_at + first * ValueRows::kPitch + ValueRows::place(row, byte);
}

// A slot's rows of the wave's tile t, to 8 rows of LDS from `row` on.
FULMEN_DEVICE void leave_row(const OutputFragment& out, int t, int slot, int row, float factor) {
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
    for (int e = 0; e < kElements; e += 2) {
      if (row_slot(e) != slot) continue;
      const unsigned two = pack<Element>(out[t][d][e] * factor, out[t][d][e + 1] * factor);
      if constexpr (kPersistent) {
        ValueRows::leave_half(lane_id(), kLayout.outputs_at + row * ValueRows::kPitch,
                              32 * d + 16 * (e / 4), two);
      } else {
        lds_store(output_at(row, tile_row(0), 2 * (kScoreTile * d + output_column(e))) +
                      2 * first_value_dim(),
                  two);
      }
    }
  }
}

// kRows rows that lie in LDS from row `at` on, to rows of memory from `first` on.
template <int kRows>
FULMEN_DEVICE void store_rows(const ForwardArguments& a, const RowMap& map, int at, Int64 first) {
  constexpr int kRounds = kRows * kRowPiecesV / kWaveSize;
  static_assert(kRounds * kWaveSize == kRows * kRowPiecesV, "prefill: all lanes store");
  const unsigned lane = static_cast<unsigned>(recompute(lane_id())) % kWaveSize;
  const auto row = [&](int n) { return static_cast<int>((n * kWaveSize + lane) / kRowPiecesV); };
  const auto dim = [&](int n) {
    return static_cast<int>((n * kWaveSize + lane) % kRowPiecesV * 8);
  };
  Words<4> piece[kRounds];
#pragma unroll
  for (int n = 0; n < kRounds; ++n)
    piece[n] = lds_load<Words<4>>(output_at(at, row(n), 2 * dim(n)));
  // All are here: no store waits for its own piece, and others may take their place.
  wave_barrier();
  // Whole rows are near each other: distances of 32 bits (gpu/launch/specialisation.cpp).
  const int left = at_most(a.seqlen_q - first, kRows), stride = static_cast<int>(a.out.row);
  Element* rows = out_row(a, map.batch, map.first_head, first);
#pragma unroll
  for (int n = 0; n < kRounds; ++n) {
    if (row(n) >= left || (!kExactDims && dim(n) >= a.head_dim_v)) continue;
    // Opaque, else NVRTC stores four words one by one.
    const int distance = recompute(row(n) * stride + dim(n));
    global_store(reinterpret_cast<Words<4>*>(rows + distance), piece[n]);
  }
}

}  // namespace fulmen::kernels
