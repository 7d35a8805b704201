// What the kernels without matrix instructions share: products of tiles in LDS by 16 x 16 lanes.
// Lane (y, x) has rows y + 16 r, and columns x + 16 c or a run of dims from kChunkDims x on.
//
// LDS holds words (tile/words.h):
//   rows     [row][word of dims]     a pair is two neighbouring dims
//   values   [word of columns][dim]  a pair is two columns, kSide apart
//   weights  [row][word of columns]  the same: what a lane has of two products over rows
#pragma once

#include "tile/square_layout.h"
#include "tile/words.h"

namespace fulmen::kernels {

constexpr int kSide = 16;
constexpr int kChunk = kConfig.chunk;
constexpr bool kRowsStay = kConfig.queries_in_lds != 0;  // all dims of the rows are in LDS
constexpr int kChunkDims = kChunk / kSide;
constexpr int kRows = kBlockM / kSide, kColumns = kBlockN / kSide;
constexpr int kChunks = (kHeadDim + kChunk - 1) / kChunk;
constexpr int kChunksV = (kHeadDimV + kChunk - 1) / kChunk;
static_assert(kWorkgroup == kSide * kSide, "square: lanes form a square of 16 x 16");
static_assert(kBlockM % kSide == 0 && kBlockN % (kInWord * kSide) == 0,
              "square: each lane has whole words of a tile");
static_assert(kChunkDims == 2 || kChunkDims == 4, "square: a lane's dims of a chunk are a vector");

FULMEN_ALGORITHM SquareShape square_shape(bool second_rows, int weights, int numbers = 0) {
  return {kPairs,  kRowsStay, kChunk,      kHeadDim, kHeadDimV,
          kBlockM, kBlockN,   second_rows, weights,  numbers};
}
constexpr int kColumnPitch = SquareLayout::of(square_shape(false, 1)).column_pitch;
constexpr int kValuePitch = SquareLayout::of(square_shape(false, 1)).value_pitch;
constexpr int kWeightPitch = SquareLayout::of(square_shape(false, 1)).weight_pitch;

FULMEN_DEVICE int lane_row() { return thread_id() / kSide; }
FULMEN_DEVICE int lane_column() { return thread_id() % kSide; }

using RowsByColumns = float[kRows][kColumns];
// A lane's sums over columns: dims of every chunk.
template <int kCount>
using RowsByDims = float[kRows][kCount][kChunkDims];

// Two steps of a product may be in registers at once: the compiler would load more before it
// multiplies, and spill. So would it without a loop.
constexpr int kStepsAhead = kHeadDim > 128 || kHeadDimV > 128 ? 1 : 2;
FULMEN_DEVICE constexpr int unrolled_steps(int steps) { return steps > 4 ? 4 : 2; }
FULMEN_DEVICE void end_step(int step) {
  if (step % kStepsAhead == kStepsAhead - 1) schedule_fence();
}

// product += rows . columns of a chunk of dims.
template <int kRowPitch>
FULMEN_DEVICE void multiply_chunk(int rows_at, int columns_at, RowsByColumns& product) {
  rows_at += lane_row() * kRowPitch;
  columns_at += lane_column() * kColumnPitch;
  constexpr int kSteps = kChunk / kInWord / 4, kUnrolledSteps = unrolled_steps(kSteps);
#pragma unroll 1
  for (int first = 0; first < 16 * kSteps; first += 16 * kUnrolledSteps) {
#pragma unroll
    for (int step = 0; step < kUnrolledSteps; ++step) {
      const int at = first + 16 * step;
      Words<4> row[kRows], column[kColumns];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        row[r] = lds_load<Words<4> >(rows_at + r * kSide * kRowPitch + at);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        column[c] = lds_load<Words<4> >(columns_at + c * kSide * kColumnPitch + at);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c)
            product[r][c] = multiply_add(row[r].word[w], column[c].word[w], product[r][c]);
        }
      }
      end_step(step);
    }
  }
}

// sum += weights . values, for a chunk of dims.
template <int kCount>
FULMEN_DEVICE void accumulate_chunk(int weights_at, int values_at, int chunk,
                                    RowsByDims<kCount>& sum) {
  weights_at += lane_row() * kWeightPitch;
  values_at += 4 * kChunkDims * lane_column();
  constexpr int kSteps = kBlockN / kInWord / 4, kUnrolledSteps = unrolled_steps(kSteps);
#pragma unroll 1
  for (int first = 0; first < 4 * kSteps; first += 4 * kUnrolledSteps) {
#pragma unroll
    for (int step = 0; step < kUnrolledSteps; ++step) {
      const int at = first + 4 * step;
      Words<4> weight[kRows];
      Words<kChunkDims> value[4];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        weight[r] = lds_load<Words<4> >(weights_at + r * kSide * kWeightPitch + 4 * at);
#pragma unroll
      for (int w = 0; w < 4; ++w)
        value[w] = lds_load<Words<kChunkDims> >(values_at + (at + w) * kValuePitch);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int e = 0; e < kChunkDims; ++e) {
            float& x = sum[r][chunk][e];
            x = multiply_add(weight[r].word[w], value[w].word[e], x);
          }
        }
      }
      end_step(step);
    }
  }
}

// A row of a lane's weights, one for each of its columns, to LDS. Pair::pack(a, b): rounds two.
template <class Pair>
FULMEN_DEVICE void store_weights(int weights_at, int r, const float (&weight)[kColumns]) {
  weights_at += (lane_row() + kSide * r) * kWeightPitch + 4 * lane_column();
#pragma unroll
  for (int c = 0; c < kColumns; c += kInWord) {
    if constexpr (kPairs) {
      lds_store(weights_at + 4 * kSide * c / 2, Pair::pack(weight[c], weight[c + 1]));
    } else {
      lds_store(weights_at + 4 * kSide * c, float_bits(weight[c]));
    }
  }
}

}  // namespace fulmen::kernels
