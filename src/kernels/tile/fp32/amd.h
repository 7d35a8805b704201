// AMD: fp32 is the sum of three parts of bf16, each the first 8 significant bits of what those
// before it leave: all 24. They are cut off, not rounded: their signs are x's, so that no product
// of parts overflows to the other infinity, and the largest number stays finite. Tiles are split on
// their way to LDS, once a workgroup: three planes as of bf16, V's transposed.
//   q k = q0 k0 + q0 k1 + q1 k0 + q0 k2 + q1 k1 + q2 k0    what is left out is below 2^-22 of q k
#pragma once

#include "tile/amd/values.h"
#include "tile/fp32/tiles.h"
#include "tile/kept_keys.h"
#include "tile/rows.h"

namespace fulmen::kernels {

constexpr int kParts = 3;
static_assert(kHeadDim % kMmaK == 0 && kHeadDimV % kScoreTile == 0,
              "fp32: rows are whole operands");

// Each element is looked at before it is stored to LDS.
constexpr bool kGuardsAlways = true;

// 8 elements of a row, and their parts.
using FloatPiece = Words<8>;
struct PieceParts {
  Words<4> part[kParts];
};
FULMEN_DEVICE float leading(float x) { return bits_float(float_bits(x) & 0xFFFF0000U); }
// kGuarded: infinities have finite leading parts.
template <bool kGuarded>
FULMEN_DEVICE PieceParts split(const FloatPiece& x) {
  PieceParts parts;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float rest[2] = {bits_float(x.word[2 * w]), bits_float(x.word[2 * w + 1])};
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const bool last = p + 1 == kParts;
      float part[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        part[n] = kGuarded && !last ? finite(rest[n]) : rest[n];
        if (!last) rest[n] -= leading(part[n]);
      }
      parts.part[p].word[w] = halves(float_bits(part[0]), float_bits(part[1]), true);
    }
  }
  return parts;
}
FULMEN_DEVICE float largest(const FloatPiece& x) {
  float most = 0;
#pragma unroll
  for (int w = 0; w < 8; ++w) most = larger(most, absolute(bits_float(x.word[w])));
  return most;
}
FULMEN_DEVICE FloatPiece joined(const Words<4>& low, const Words<4>& high) {
  return {{low.word[0], low.word[1], low.word[2], low.word[3], high.word[0], high.word[1],
           high.word[2], high.word[3]}};
}
FULMEN_DEVICE FloatPiece load_float_piece(const float* row, int dim, int dims) {
  return joined(load_floats(row, dim, dims), load_floats(row, dim + 4, dims));
}
FULMEN_DEVICE void store_parts(int at, int plane, const PieceParts& parts) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) lds_store(at + p * plane, parts.part[p]);
}

// Calls multiply(i, j) for the products of part i of one factor and part j of the other, the
// smallest ones first.
template <class Multiply>
FULMEN_DEVICE void for_products(const Multiply& multiply) {
#pragma unroll
  for (int order = kParts - 1; order >= 0; --order) {
#pragma unroll
    for (int i = 0; i <= order; ++i) multiply(i, order - i);
  }
}

// Sums of [16 kFloatRowTiles, kDims].
template <int kDims>
struct FloatSums {
  static constexpr int kTiles = kDims / kScoreTile;
  float sum[kFloatRowTiles][kTiles][kElements];

  // Calls what(x, slot) for the lane's sums of row tile t.
  template <class What>
  FULMEN_DEVICE void for_each(int t, const What& what) {
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) what(sum[t][d][e], row_slot(e));
    }
  }
  FULMEN_DEVICE void store(float* row, int dims, int t, int slot, float factor) const {
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        if (row_slot(e) != slot) continue;
        Words<4> piece;
#pragma unroll
        for (int n = 0; n < 4; ++n) piece.word[n] = float_bits(sum[t][d][e + n] * factor);
        store_floats(row, kScoreTile * d + output_column(e), dims, piece);
      }
    }
  }
};

// A wave's rows of the first operand: parts in registers, or where they begin in LDS.
template <int kDims>
struct HeldRows {
  static constexpr int kSteps = kDims / kMmaK;
  static constexpr Fp32Tile kTile = Fp32Tile::of(kTransposedDepth, kDims, kBlockM, true, false);
  int at;
  RowOperand held[kQueriesInLds ? 1 : kFloatRowTiles][kQueriesInLds ? 1 : kSteps][kParts];

  FULMEN_DEVICE RowOperand part(int t, int d, int p) const {
    if constexpr (!kQueriesInLds) return held[kQueriesInLds ? 0 : t][kQueriesInLds ? 0 : d][p];
    return lds_row_operand(
        at + p * kTile.row_plane + kScoreTile * t * kTile.row_pitch + 2 * kMmaK * d,
        kTile.row_pitch);
  }
};

// product = rows . columns^T of 16 kColumns columns, whose planes, of kBlockN, begin at columns_at.
template <bool kGuarded, int kDims, int kColumns>
FULMEN_DEVICE void multiply_columns(const HeldRows<kDims>& rows, int columns_at,
                                    Fragment<kFloatRowTiles, kColumns>& product) {
  constexpr Fp32Tile kTile = Fp32Tile::of(kTransposedDepth, kDims, kBlockN, true, false);
  product = {};
#pragma unroll
  for (int d = 0; d < kDims / kMmaK; ++d) {
    RowOperand row[kFloatRowTiles][kParts];
#pragma unroll
    for (int t = 0; t < kFloatRowTiles; ++t) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) row[t][p] = rows.part(t, d, p);
    }
#pragma unroll
    for (int f = 0; f < kColumns; ++f) {
      RowOperand column[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        column[p] = lds_row_operand(
            columns_at + p * kTile.row_plane + kScoreTile * f * kTile.row_pitch + 2 * kMmaK * d,
            kTile.row_pitch);
      }
#pragma unroll
      for (int t = 0; t < kFloatRowTiles; ++t) {
        for_products(
            [&](int i, int j) { multiply_scores<Bfloat16>(product[t][f], column[i], row[t][j]); });
      }
    }
    schedule_fence();
  }
}

// The parts of weights, as operands of the step-th product.
struct WeightParts {
  ProbabilityOperand part[kParts];

  template <int kColumns>
  FULMEN_DEVICE static WeightParts of(const TileRow<kColumns>& weights, int step) {
    WeightParts parts;
    TileRow<kStepTiles> rest;
#pragma unroll
    for (int f = 0; f < kStepTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) rest[f][e] = weights[kStepTiles * step + f][e];
    }
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      parts.part[n] = step_operand<LeadingBits>(rest, 0);
      if (n + 1 == kParts) break;
#pragma unroll
      for (int f = 0; f < kStepTiles; ++f) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) rest[f][e] -= leading(rest[f][e]);
      }
    }
    return parts;
  }
};

// sums += weights values, of kBlockN rows of values, whose transposed planes begin at values_at.
template <bool kGuarded, int kDims>
FULMEN_DEVICE void multiply_values(FloatSums<kDims>& sums, int values_at,
                                   const FloatScores& weights) {
  constexpr Fp32Tile kTile = Fp32Tile::of(kTransposedDepth, kDims, kBlockN, false, true);
#pragma unroll
  for (int step = 0; step < kFloatColumnTiles / kStepTiles; ++step) {
    WeightParts weight[kFloatRowTiles];
#pragma unroll
    for (int t = 0; t < kFloatRowTiles; ++t) weight[t] = WeightParts::of(weights[t], step);
#pragma unroll
    for (int d = 0; d < kDims / kScoreTile; ++d) {
      ValueOperand values[kParts];
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        values[n] =
            lds_value_operand<kTile.value_pitch>(values_at + n * kTile.value_plane, step, d);
      }
#pragma unroll
      for (int t = 0; t < kFloatRowTiles; ++t) {
        for_products([&](int i, int j) {
          multiply_output<Bfloat16>(sums.sum[t][d], weight[t].part[i], values[j]);
        });
      }
      schedule_fence();
    }
  }
}

// A tile of kBlockN rows in flight to LDS: memory to registers early, registers to LDS a tile
// later. A lane takes 8 dims of a row, or of kGroup neighbouring positions of transposed rows.
template <int kDims, bool kAsRows, bool kAsValues>
class FloatTile {
 public:
  // kChecked: rows that `valid` says no to become 0.
  template <bool kChecked, class Source, class Valid>
  FULMEN_DEVICE void fetch(const Source& rows, int dims, int /*at*/, const Valid& valid) {
    const Memory<Source> memory(rows, dims);
    KeptKeys<kBlockN> kept;
    if constexpr (kChecked)
      kept = KeptKeys<kBlockN>::of([&](int n) { return rows.has(n) && valid(n); });
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kItems % kWorkgroup != 0 && index >= kItems) break;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        piece_[n][m] = memory.piece(later(m), first_row(index), dim(index));
        if constexpr (kChecked)
          piece_[n][m] = kept.or_zero(first_row(index) + later(m), piece_[n][m]);
      }
    }
  }
  FULMEN_DEVICE float most() const {
    float most = 0;
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
#pragma unroll
      for (int m = 0; m < kGroup; ++m) most = larger(most, largest(piece_[n][m]));
    }
    return most;
  }
  template <bool kGuarded>
  FULMEN_DEVICE void store(int at) const {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kItems % kWorkgroup != 0 && index >= kItems) break;
      PieceParts parts[kGroup];
#pragma unroll
      for (int m = 0; m < kGroup; ++m) parts[m] = split<kGuarded>(piece_[n][m]);
      if constexpr (kAsRows) {
#pragma unroll
        for (int m = 0; m < kGroup; ++m) {
          store_parts(at + (first_row(index) + later(m)) * kTile.row_pitch + 2 * dim(index),
                      kTile.row_plane, parts[m]);
        }
      }
      if constexpr (kAsValues) store_values(at + kTile.values_at, index, parts);
    }
  }
  // Registers to LDS.
  FULMEN_DEVICE void publish(int at) const {
    if (__builtin_expect(any_lane(most() == kInfinity), 0)) {
      store<true>(at);
    } else {
      store<false>(at);
    }
  }

 private:
  static constexpr Fp32Tile kTile =
      Fp32Tile::of(kTransposedDepth, kDims, kBlockN, kAsRows, kAsValues);
  static constexpr int kRowPieces = kDims / 8;
  static constexpr int kGroup = !kAsValues ? 1 : (kBlockN / 4) * kRowPieces >= kWorkgroup ? 4 : 2;
  static constexpr int kItems = kBlockN / kGroup * kRowPieces;
  static constexpr int kRounds = (kItems + kWorkgroup - 1) / kWorkgroup;

  FULMEN_DEVICE static int position(int index) { return index % (kBlockN / kGroup) * kGroup; }
  FULMEN_DEVICE static int first_row(int index) {
    return kAsValues ? row_at(position(index)) : index / kRowPieces;
  }
  // Positions of a group are at fixed distances from its first.
  FULMEN_DEVICE static int later(int m) { return kAsValues ? row_at(m) - row_at(0) : 0; }
  FULMEN_DEVICE static int dim(int index) {
    return 8 * (kAsValues ? index / (kBlockN / kGroup) : index % kRowPieces);
  }

  // A tile's memory: whole rows as a buffer, whose hardware knows the end.
  template <class Source>
  class Memory {
   public:
    FULMEN_DEVICE Memory(const Source& rows, int dims)
        : rows_(rows),
          dims_(dims),
          buffer_(rows.rows, static_cast<unsigned>(rows.last * rows.stride + dims) * 4) {}
    // Elements [dim, dim + 8) of row `fixed + row`, where `fixed` is the same in all lanes.
    FULMEN_DEVICE FloatPiece piece(int fixed, int row, int dim) const {
      if constexpr (kWholeRows && Source::kIsBuffer) {
        const auto stride = static_cast<unsigned>(rows_.stride) * 4;
        const unsigned to = static_cast<unsigned>(fixed) * stride,
                       offset =
                           static_cast<unsigned>(row) * stride + 4 * static_cast<unsigned>(dim),
                       from = kExactDims || dim < dims_ ? offset : kBeyond;
        return joined(buffer_.template load<Words<4>>(from, to),
                      buffer_.template load<Words<4>>(from + 16, to));
      } else {
        return load_float_piece(rows_.row(rows_.clamp(fixed + row)), dim, dims_);
      }
    }

   private:
    static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end
    const Source& rows_;
    int dims_;
    Buffer buffer_;
  };
  FULMEN_DEVICE static void store_values(int at, int index, const PieceParts (&parts)[kGroup]) {
    const int row =
        at + algorithm::transposed_row(dim(index), kBlockN, kValueDepth) + 2 * position(index);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        Words<kGroup / 2> words;
#pragma unroll
        for (int m = 0; m < kGroup / 2; ++m) {
          words.word[m] = halves(parts[2 * m].part[p].word[d / 2],
                                 parts[2 * m + 1].part[p].word[d / 2], d % 2 != 0);
        }
        lds_store(row + p * kTile.value_plane + d * kTile.value_pitch, words);
      }
    }
  }

  FloatPiece piece_[kRounds][kGroup] = {};
};
FULMEN_DEVICE void commit_floats() {}
FULMEN_DEVICE void floats_arrived() {}

// The workgroup's kBlockM rows: to LDS at `at`, or the wave's to its registers.
template <int kDims, class Row>
FULMEN_DEVICE HeldRows<kDims> hold_rows(int at, int first_row, int dims, const Row& row_at) {
  HeldRows<kDims> rows;
  rows.at = at + first_row * HeldRows<kDims>::kTile.row_pitch;
  if constexpr (kQueriesInLds) {
    constexpr int kRowPieces = kDims / 8;
    for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
      const int row = index / kRowPieces, piece = index % kRowPieces;
      store_parts(at + row * HeldRows<kDims>::kTile.row_pitch + 16 * piece,
                  HeldRows<kDims>::kTile.row_plane,
                  split<true>(load_float_piece(row_at(row), 8 * piece, dims)));
    }
    return rows;
  }
#pragma unroll
  for (int t = 0; t < (kQueriesInLds ? 0 : kFloatRowTiles); ++t) {
#pragma unroll
    for (int d = 0; d < HeldRows<kDims>::kSteps; ++d) {
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        const float* row = row_at(first_row + kScoreTile * t + piece_row(n));
        const PieceParts parts = split<true>(load_float_piece(row, kMmaK * d + piece_dim(n), dims));
#pragma unroll
        for (int p = 0; p < kParts; ++p) rows.held[t][d][p].piece[n] = parts.part[p];
      }
    }
  }
  return rows;
}

}  // namespace fulmen::kernels
