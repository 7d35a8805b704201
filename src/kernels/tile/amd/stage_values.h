// AMD: a tile of V on its way to LDS, and its operands from there.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/amd/rows_as_values.h"
#include "tile/kept_keys.h"
#include "tile/rows.h"
#include "tile/stage_layout.h"
#include "tile/stored_pieces.h"
#include "tile/values.h"

namespace fulmen::kernels {

// A tile's memory: whole rows as a buffer, whose hardware knows the end. kSkips: rows before the
// first are 0.
template <class Rows, bool kSkips>
class TileMemory {
  static constexpr bool kOfValues = Rows::kOfValues;

 public:
  FULMEN_DEVICE TileMemory(const Rows& rows, int dims)
      : rows_(rows),
        dims_(dims),
        buffer_(rows.rows, static_cast<unsigned>(rows.last * rows.stride) * kUnit +
                               static_cast<unsigned>(dims * kStoredBytes<kOfValues>)) {}
  // Elements [dim, dim + kCount) of row `fixed + row`, where `fixed` is the same in all lanes.
  template <int kCount = 8>
  FULMEN_DEVICE StoredWords<kOfValues, kCount> piece(int fixed, int row, int dim) const {
    if constexpr (kAreWhole) {
      const auto stride = static_cast<unsigned>(rows_.stride) * kUnit;
      const unsigned offset = static_cast<unsigned>(row) * stride +
                              kStoredBytes<kOfValues> * static_cast<unsigned>(dim);
      const bool there = (kExactDims || dim < dims_) && (!kSkips || fixed + row >= rows_.first);
      return buffer_.template load<StoredWords<kOfValues, kCount> >(
          there ? offset : kBeyond, static_cast<unsigned>(fixed) * stride);
    } else {
      return load_stored<kOfValues>(rows_.row(rows_.clamp(fixed + row)), dim, dims_);
    }
  }

 private:
  // Codes of keys are, wherever the tensors lie.
  static constexpr bool kAreWhole = (kWholeRows && !kScattered) || (kCodeKeys && !kOfValues);
  static constexpr unsigned kUnit = kQuantized ? 1 : 2;  // bytes that strides count
  static constexpr unsigned kBeyond = 0x80000000U;       // past every buffer's end
  const Rows& rows_;
  int dims_;
  Buffer buffer_;
};

// kAsRows: as it comes, [key][dim], for targets that transpose while they read.
template <bool kAsRows, class T>
class StagedValues;

// V^T: a lane takes kGroup neighbouring positions of its rows and 8 dims.
template <class T>
class StagedValues<false, T> {
 public:
  // kMasked: what is not kept becomes 0.
  template <bool kMasked, class Memory>
  FULMEN_DEVICE void fetch(int thread, const Memory& memory, const KeptKeys<kBlockN>& kept) {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kGroups % kWorkgroup != 0 && index >= kGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup,
                dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        // Positions of a group are at fixed distances from its first.
        pieces_[n][m] = memory.piece(row_at(m) - row_at(0), row_at(position), dim);
        if constexpr (kMasked) {
          pieces_[n][m] = kept.or_zero(row_at(position) + (row_at(m) - row_at(0)), pieces_[n][m]);
        }
      }
    }
  }
  FULMEN_DEVICE void publish(int at) const {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) publish_dims(at, n, 0, 8);
  }
  // Two dims of a round.
  FULMEN_DEVICE void publish_part(int at, int part) const {
    const int first = 2 * (part % kRoundParts);
    publish_dims(at, part / kRoundParts, first, first + 2);
  }
  FULMEN_DEVICE static ValueOperand operand(int at, int step, int dims) {
    return lds_value_operand<kLayout.value_pitch>(at, step, dims);
  }

  static constexpr int kGroup = (kBlockN / 4) * kRowPiecesV >= kWorkgroup ? 4 : 2;
  static constexpr int kGroups = kBlockN / kGroup * kRowPiecesV;
  static constexpr int kRounds = (kGroups + kWorkgroup - 1) / kWorkgroup;
  static constexpr int kRoundParts = 4, kParts = kRoundParts * kRounds;

 private:
  // Dims [first, end) of a lane's 8 in the n-th round.
  FULMEN_DEVICE void publish_dims(int at, int n, int first, int end) const {
    const unsigned index = thread_id() + n * kWorkgroup;
    if (kGroups % kWorkgroup != 0 && index >= kGroups) return;
    const int position = index % (kBlockN / kGroup) * kGroup, dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
    for (int d = first; d < end; ++d) {
      Words<kGroup / 2> words;
#pragma unroll
      for (int m = 0; m < kGroup / 2; ++m) {
        words.word[m] = pair_of_rows<true, T>(pieces_[n][2 * m], pieces_[n][2 * m + 1], d);
      }
      lds_store(at + algorithm::transposed_row(dim, kBlockN, kValueDepth) +
                    d * kLayout.value_pitch + 2 * position,
                words);
    }
  }

  StoredWords<true, 8> pieces_[kRounds][kGroup];
};

// Rows: a lane takes 16 bytes of some.
template <class T>
class StagedValues<true, T> {
 public:
  template <bool kMasked, class Memory>
  FULMEN_DEVICE void fetch(int thread, const Memory& memory, const KeptKeys<kBlockN>& kept) {
    for_pieces(thread, [&](int n, int fixed, int row, int dim) {
      pieces_[n] = memory.piece(fixed, row, dim);
      if constexpr (kMasked) pieces_[n] = kept.or_zero(fixed + row, pieces_[n]);
    });
  }
  FULMEN_DEVICE void publish(int at) const {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) publish_part(at, n);
  }
  FULMEN_DEVICE void publish_part(int at, int round) const {
    for_pieces(thread_id(), [&](int n, int fixed, int row, int dim) {
      if (n != round) return;
      lds_store(at + (fixed + row) * kLayout.value_pitch + 2 * dim, piece_of<true, T>(pieces_[n]));
    });
  }
  FULMEN_DEVICE static ValueOperand operand(int at, int step, int dims) {
    return lds_rows_as_values<kLayout.value_pitch>(at, step, dims);
  }

  static constexpr int kAll = kBlockN * kRowPiecesV;
  static constexpr int kRounds = (kAll + kWorkgroup - 1) / kWorkgroup, kParts = kRounds;

 private:
  template <class Body>
  FULMEN_DEVICE static void for_pieces(int thread, const Body& body) {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kAll % kWorkgroup != 0 && index >= kAll) break;
      if constexpr (kWorkgroup % kRowPiecesV == 0) {
        // Every round the same piece of a later row.
        body(n, n * (kWorkgroup / kRowPiecesV), thread / kRowPiecesV, thread % kRowPiecesV * 8);
      } else {
        body(n, 0, static_cast<int>(index / kRowPiecesV),
             static_cast<int>(index % kRowPiecesV) * 8);
      }
    }
  }

  StoredWords<true, 8> pieces_[kRounds];
};

}  // namespace fulmen::kernels
