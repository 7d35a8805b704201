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
#include "tile/softmax.h"
#include "tile/sources.h"

namespace fulmen::kernels {

constexpr int kParts = 3;
constexpr int kMmaSteps = kHeadDim / kMmaK;
constexpr int kDimTiles = kHeadDimV / kScoreTile;
static_assert(kHeadDim % kMmaK == 0 && kHeadDimV % kScoreTile == 0,
              "fp32: rows are whole operands");

// Registers of outputs, queries and scores.
constexpr int kHeldRegisters = kRowTiles * (kElements * (kDimTiles + 2 * kKeyTiles) +
                                            (kQueriesInLds ? 0 : kParts * kMmaSteps * kPieces * 4));
// The next tile is in flight while one is computed, where registers allow.
constexpr bool kFetchesEarly = kWaveSize == 64 || kHeldRegisters <= 160;
// Each element is looked at on its way to LDS.
constexpr bool kGuardsAlways = true;

struct QueryParts {
  RowOperand part[kParts];
};
struct FloatRows {
  RowState state[kRowTiles];
  Fragment<kRowTiles, kDimTiles> out;
  QueryParts queries[kRowTiles][kQueriesInLds ? 1 : kMmaSteps];

  FULMEN_DEVICE void rescale(int t, const float (&factor)[kRowsPerLane]) {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) out[t][d][e] *= factor[row_slot(e)];
    }
  }
  FULMEN_DEVICE static bool has_nan() { return false; }
  FULMEN_DEVICE void store(float* row, int dims, int t, int slot, float factor) const {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        if (row_slot(e) != slot) continue;
        Words<4> piece;
#pragma unroll
        for (int n = 0; n < 4; ++n) piece.word[n] = float_bits(out[t][d][e + n] * factor);
        store_floats(row, kScoreTile * d + output_column(e), dims, piece);
      }
    }
  }
};

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

// Calls multiply(i, j) for the products of part i of one factor and part j of the other but the
// first, the smallest ones first.
template <class Multiply>
FULMEN_DEVICE void for_small_products(const Multiply& multiply) {
#pragma unroll
  for (int order = kParts - 1; order > 0; --order) {
#pragma unroll
    for (int i = 0; i <= order; ++i) multiply(i, order - i);
  }
}

// S = Q K^T. The small products have sums of their own: fewer of the large ones are rounded.
template <bool kGuarded>
FULMEN_DEVICE void multiply_keys(const FloatRows& rows, int first_row, int buffer,
                                 ScoreFragment& score) {
  ScoreFragment small = {};
  score = {};
#pragma unroll
  for (int d = 0; d < kMmaSteps; ++d) {
    QueryParts query[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if constexpr (!kQueriesInLds) {
        query[t] = rows.queries[t][d];
        continue;
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        query[t].part[p] =
            lds_row_operand(kLayout.queries_at + p * kLayout.query_plane +
                                (first_row + kScoreTile * t) * kLayout.key_pitch + 2 * kMmaK * d,
                            kLayout.key_pitch);
      }
    }
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      RowOperand keys[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        keys[p] = lds_row_operand(keys_at(buffer) + p * kLayout.key_plane +
                                      kScoreTile * f * kLayout.key_pitch + 2 * kMmaK * d,
                                  kLayout.key_pitch);
      }
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        for_small_products([&](int i, int j) {
          multiply_scores<Bfloat16>(small[t][f], keys[i], query[t].part[j]);
        });
        multiply_scores<Bfloat16>(score[t][f], keys[0], query[t].part[0]);
      }
    }
    schedule_fence();
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) score[t][f][e] += small[t][f][e];
    }
  }
}

// The parts of a tile of probabilities, as operands.
struct ProbabilityParts {
  ProbabilityOperand part[kParts];

  FULMEN_DEVICE static ProbabilityParts of(const float (&p)[kElements]) {
    ProbabilityParts parts;
    float rest[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) rest[e] = p[e];
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      parts.part[n] = to_operand<LeadingBits>(rest);
      if (n + 1 == kParts) break;
#pragma unroll
      for (int e = 0; e < kElements; ++e) rest[e] -= leading(rest[e]);
    }
    return parts;
  }
};

// O += P V.
template <bool kGuarded>
FULMEN_DEVICE void multiply_values(FloatRows& rows, int buffer, const ScoreFragment& p) {
#pragma unroll
  for (int step = 0; step < kKeyTiles; ++step) {
    ProbabilityParts weights[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) weights[t] = ProbabilityParts::of(p[t][step]);
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      ValueOperand values[kParts];
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        values[n] = lds_value_operand<kLayout.value_pitch>(
            values_at(buffer) + n * kLayout.value_plane, step, d);
      }
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        for_small_products([&](int i, int j) {
          multiply_output<Bfloat16>(rows.out[t][d], weights[t].part[i], values[j]);
        });
        multiply_output<Bfloat16>(rows.out[t][d], weights[t].part[0], values[0]);
      }
      schedule_fence();
    }
  }
}

// Global memory to registers early, registers to LDS a tile later: a lane takes 8 dims of a key, or
// of kGroup neighbouring positions of V^T's rows.
class FloatStage {
 public:
  FULMEN_DEVICE explicit FloatStage(const StageSource& source) : source_(source) {}
  FULMEN_DEVICE static void fetch_queries(const QuerySource& source, FloatRows& rows) {
    if constexpr (kQueriesInLds) {
      for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
        const int row = index / kRowPieces, piece = index % kRowPieces;
        store_parts(kLayout.queries_at + row * kLayout.key_pitch + 16 * piece, kLayout.query_plane,
                    split<true>(load_float_piece(source.row(row), 8 * piece, source.dims)));
      }
      return;
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int d = 0; d < (kQueriesInLds ? 0 : kMmaSteps); ++d) {
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
          const float* row = source.row(first_row_of_wave() + kScoreTile * t + piece_row(n));
          const PieceParts parts =
              split<true>(load_float_piece(row, kMmaK * d + piece_dim(n), source.dims));
#pragma unroll
          for (int p = 0; p < kParts; ++p) rows.queries[t][d].part[p].piece[n] = parts.part[p];
        }
      }
    }
  }
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int /*buffer*/) {
    const ForwardArguments& a = source_.arguments;
    const auto key_rows = TileRows<false>::of(a, source_, first_key);
    const auto value_rows = TileRows<true>::of(a, source_, first_key);
    const Memory<TileRows<false>> keys(key_rows, a.head_dim);
    const Memory<TileRows<true>> values(value_rows, a.head_dim_v);
    KeptKeys<kBlockN> kept;
    if constexpr (kMaskBits) {
      kept = KeptKeys<kBlockN>::of(source_.masked_rows().attended(first_key));
    } else if constexpr (kKeepMask) {
      kept = KeptKeys<kBlockN>::of(
          [&](int n) { return n <= value_rows.last && source_.alive(a, first_key + n); });
    }
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      keys_[n] = keys.piece(0, index / kRowPieces, index % kRowPieces * 8);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup,
                dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        // Positions of a group are at fixed distances from its first.
        const int later = row_at(m) - row_at(0);
        values_[n][m] = values.piece(later, row_at(position), dim);
        if constexpr (kKeepMask)
          values_[n][m] = kept.or_zero(row_at(position) + later, values_[n][m]);
      }
    }
  }
  FULMEN_DEVICE void publish(int buffer) {
    if constexpr (kBuffers == 1) barrier();  // the last tile is read by now
    float most = 0;
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) most = larger(most, largest(keys_[n]));
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
#pragma unroll
      for (int m = 0; m < kGroup; ++m) most = larger(most, largest(values_[n][m]));
    }
    if (__builtin_expect(any_lane(most == kInfinity), 0)) {
      store<true>(buffer);
    } else {
      store<false>(buffer);
    }
  }

 private:
  static constexpr int kRowPieces = kHeadDim / 8, kRowPiecesV = kHeadDimV / 8;
  static constexpr int kKeyPieces = kBlockN * kRowPieces;
  static constexpr int kGroup = (kBlockN / 4) * kRowPiecesV >= kWorkgroup ? 4 : 2;
  static constexpr int kValueGroups = kBlockN / kGroup * kRowPiecesV;
  static constexpr int kKeyRounds = (kKeyPieces + kWorkgroup - 1) / kWorkgroup;
  static constexpr int kValueRounds = (kValueGroups + kWorkgroup - 1) / kWorkgroup;

  // A tile's memory: whole rows as a buffer, whose hardware knows the end.
  template <class Rows>
  class Memory {
   public:
    FULMEN_DEVICE Memory(const Rows& rows, int dims)
        : rows_(rows),
          dims_(dims),
          buffer_(rows.rows, static_cast<unsigned>(rows.last * rows.stride + dims) * 4) {}
    // Elements [dim, dim + 8) of row `fixed + row`, where `fixed` is the same in all lanes.
    FULMEN_DEVICE FloatPiece piece(int fixed, int row, int dim) const {
      // Rows before the first repeat it: their probabilities are 0.
      if constexpr (kWholeRows && !kScattered && !Rows::kSkips) {
        const auto stride = static_cast<unsigned>(rows_.stride) * 4;
        const unsigned offset =
                           static_cast<unsigned>(row) * stride + 4 * static_cast<unsigned>(dim),
                       from = kExactDims || dim < dims_ ? offset : kBeyond;
        return joined(
            buffer_.template load<Words<4>>(from, static_cast<unsigned>(fixed) * stride),
            buffer_.template load<Words<4>>(from + 16, static_cast<unsigned>(fixed) * stride));
      } else {
        return load_float_piece(rows_.row(rows_.clamp(fixed + row)), dim, dims_);
      }
    }

   private:
    static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end
    const Rows& rows_;
    int dims_;
    Buffer buffer_;
  };
  template <bool kGuarded>
  FULMEN_DEVICE void store(int buffer) const {
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      store_parts(
          keys_at(buffer) + index / kRowPieces * kLayout.key_pitch + index % kRowPieces * 16,
          kLayout.key_plane, split<kGuarded>(keys_[n]));
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      store_values<kGuarded>(values_at(buffer), index % (kBlockN / kGroup) * kGroup,
                             index / (kBlockN / kGroup) * 8, values_[n]);
    }
  }
  FULMEN_DEVICE static void store_parts(int at, int plane, const PieceParts& parts) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) lds_store(at + p * plane, parts.part[p]);
  }
  // Keys at kGroup positions and 8 dims, transposed.
  template <bool kGuarded>
  FULMEN_DEVICE static void store_values(int at, int position, int dim,
                                         const FloatPiece (&values)[kGroup]) {
    PieceParts parts[kGroup];
#pragma unroll
    for (int m = 0; m < kGroup; ++m) parts[m] = split<kGuarded>(values[m]);
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
        lds_store(at + p * kLayout.value_plane + algorithm::transposed_row(dim, kBlockN) +
                      d * kLayout.value_pitch + 2 * position,
                  words);
      }
    }
  }

  const StageSource& source_;
  FloatPiece keys_[kKeyRounds] = {};
  FloatPiece values_[kValueRounds][kGroup] = {};
};

}  // namespace fulmen::kernels
