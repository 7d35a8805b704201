// AMD: tiles go to LDS through registers, V transposed there.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/kept_keys.h"
#include "tile/register_pressure.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"
#include "tile/values.h"

namespace fulmen::kernels {

constexpr bool kSpreadsCopies = false;
// The next tile is in flight while one is computed.
constexpr bool kFetchesEarly = true;
// Operands of Q in registers.
constexpr int kQueryMmaSteps = kQueriesInLds ? 0 : kMmaSteps;
constexpr bool kWideHeads = false;
FULMEN_DEVICE unsigned operand_lane() { return lane_id(); }

FULMEN_DEVICE KeyOperand key_operand(int buffer, int tile, int depth, unsigned /*lane*/) {
  return lds_row_operand(
      keys_at(buffer) + kScoreTile * tile * kLayout.key_pitch + 2 * kTileMmaK * depth,
      kLayout.key_pitch);
}
// Queries [row, row + 16) of the workgroup's, from LDS.
FULMEN_DEVICE QueryOperand lds_queries(int row, int depth, unsigned /*lane*/) {
  return lds_row_operand(kLayout.queries_at + row * kLayout.query_pitch + 2 * kTileMmaK * depth,
                         kLayout.query_pitch);
}

// Global memory to registers early, registers to LDS a tile later, V transposed on the way: a lane
// takes kGroup neighbouring positions of V^T's rows and 8 dims.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source) : source_(source) {}
  FULMEN_DEVICE static NoCopies next_tile(Int64 /*first_key*/, int /*buffer*/, bool /*there*/) {
    return {};
  }
  FULMEN_DEVICE static void committed() {}
  FULMEN_DEVICE static void fetch_queries(const QuerySource& /*source*/) {}
  template <int kRows>
  FULMEN_DEVICE static void fetch_wave_queries(const QuerySource& /*source*/, int /*first*/) {}
  FULMEN_DEVICE static bool brings_queries(int /*tiles*/) { return true; }
  FULMEN_DEVICE static void publish_queries(const QuerySource& source) {
    if constexpr (!kQueriesInLds) return;
    for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
      const int row = index / kRowPieces, piece = index % kRowPieces;
      lds_store(kLayout.queries_at + row * kLayout.query_pitch + 16 * piece,
                load_piece(source.row(row), 8 * piece, source.dims));
    }
  }
  FULMEN_DEVICE static QueryOperand query_operand(const QuerySource& source, int row, int d) {
    return load_row_operand(source.rows, source.stride, source.first + row, source.end, kMmaK * d,
                            source.dims);
  }
  // Rows past the end read as 0.
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int /*buffer*/) {
    const ForwardArguments& a =
        kManyArguments ? again(source_.arguments, first_key) : source_.arguments;
    const int thread = kManyArguments ? recompute(thread_id(), first_key) : thread_id();
    const auto key_rows = TileRows<false>::of(a, source_, first_key);
    const auto value_rows = TileRows<true>::of(a, source_, first_key);
    const Source<TileRows<false>, false> keys(key_rows, a.head_dim);
    const Source<TileRows<true>, kClamped && TileRows<true>::kSkips> values(value_rows,
                                                                            a.head_dim_v);
    KeptKeys<kBlockN> kept;
    if constexpr (kMaskBits && kMayHide<kClamped>) {
      kept = KeptKeys<kBlockN>::of(source_.masked_rows().attended(first_key));
    } else if constexpr (kMayHide<kClamped>) {
      kept = KeptKeys<kBlockN>::of(
          [&](int n) { return n <= value_rows.last && source_.alive(a, first_key + n); });
    }
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      if constexpr (kWorkgroup % kRowPieces == 0) {
        // Every round the same piece of a later row.
        keys_[n] =
            keys.piece(n * (kWorkgroup / kRowPieces), thread / kRowPieces, thread % kRowPieces * 8);
      } else {
        keys_[n] = keys.piece(0, index / kRowPieces, index % kRowPieces * 8);
      }
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup,
                dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        // Positions of a group are at fixed distances from its first.
        values_[n][m] = values.piece(key_at(m) - key_at(0), key_at(position), dim);
        if constexpr (kMayHide<kClamped>) {
          values_[n][m] = kept.or_zero(key_at(position) + (key_at(m) - key_at(0)), values_[n][m]);
        }
      }
    }
  }
  FULMEN_DEVICE void publish(int buffer) {
    if constexpr (kBuffers == 1) barrier();  // the last tile is read by now
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      lds_store(keys_at(buffer) + static_cast<int>(index / kRowPieces * kLayout.key_pitch +
                                                   index % kRowPieces * 16),
                keys_[n]);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup,
                dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        Words<kGroup / 2> words;
#pragma unroll
        for (int m = 0; m < kGroup / 2; ++m) {
          words.word[m] =
              halves(values_[n][2 * m].word[d / 2], values_[n][2 * m + 1].word[d / 2], d % 2 != 0);
        }
        lds_store(values_at(buffer) + algorithm::transposed_row(dim, kBlockN, kValueDepth) +
                      d * kLayout.value_pitch + 2 * position,
                  words);
      }
    }
  }

 private:
  static constexpr int kGroup = (kBlockN / 4) * kRowPiecesV >= kWorkgroup ? 4 : 2;
  static constexpr int kValueGroups = kBlockN / kGroup * kRowPiecesV;
  static constexpr int kKeyRounds = (kKeyPieces + kWorkgroup - 1) / kWorkgroup;
  static constexpr int kValueRounds = (kValueGroups + kWorkgroup - 1) / kWorkgroup;

  // The key at a position of V^T's rows.
  FULMEN_DEVICE static int key_at(int position) {
    return position / kValueDepth * kValueDepth + value_key(position % kValueDepth);
  }

  // A tile's memory: whole rows as a buffer, whose hardware knows the end. kSkips: rows before the
  // first are 0.
  template <class Rows, bool kSkips>
  class Source {
   public:
    FULMEN_DEVICE Source(const Rows& rows, int dims)
        : rows_(rows),
          dims_(dims),
          buffer_(rows.rows, static_cast<unsigned>(rows.last * rows.stride + dims) * 2) {}
    // Elements [dim, dim + 8) of row `fixed + row`, where `fixed` is the same in all lanes.
    FULMEN_DEVICE Words<4> piece(int fixed, int row, int dim) const {
      if constexpr (kWholeRows && !kScattered) {
        const auto stride = static_cast<unsigned>(rows_.stride) * 2;
        const unsigned offset =
            static_cast<unsigned>(row) * stride + 2 * static_cast<unsigned>(dim);
        const bool there = (kExactDims || dim < dims_) && (!kSkips || fixed + row >= rows_.first);
        return buffer_.template load<Words<4> >(there ? offset : kBeyond,
                                                static_cast<unsigned>(fixed) * stride);
      } else {
        return load_piece(rows_.row(rows_.clamp(fixed + row)), dim, dims_);
      }
    }

   private:
    static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end
    const Rows& rows_;
    int dims_;
    Buffer buffer_;
  };

  const StageSource& source_;
  Words<4> keys_[kKeyRounds];
  Words<4> values_[kValueRounds][kGroup];
};

FULMEN_DEVICE ValueOperand value_operand(int buffer, int tile, int dims, unsigned /*lane*/) {
  return lds_value_operand<kLayout.value_pitch>(values_at(buffer), tile, dims);
}

}  // namespace fulmen::kernels
