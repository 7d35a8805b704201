// Tiles of K and V on their way from memory to LDS, and from there into operands. The kernel's loop:
//   fetch(first key, buffer)   begins the next tile's way
//   publish(buffer)            its data is in LDS after the barrier that follows
// Tiles begin at attended keys. Keys past the end repeat the last one: their scores are masked, and a probability of 0 meets a
// value that the tile has anyway. What the keep-mask hides from every row becomes 0, as it may be NaN.
#pragma once

#include "layout.h"
#include "scores.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// What all tiles of a workgroup share.
struct StageSource {
  const ForwardArguments& arguments;
  Int64 batch, head;         // the (first) query head
  Int64 row_begin, row_end;  // its query rows, for the keep-mask
  const Element* keys;       // row 0 of the KV head
  const Element* values;
  Int64 key_end;

  FULMEN_DEVICE Int64 clamp(Int64 key) const { return key < key_end ? key : key_end - 1; }
  FULMEN_DEVICE bool alive(Int64 key) const { return any_row_keeps(arguments, batch, head, row_begin, row_end, key); }
};

constexpr ForwardLayout kLayout =
    ForwardLayout::of({kTransposedValues, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kQueriesInLds});
static_assert(kLayout.total == kLdsBytes, "forward: the host reserves the LDS that the tiles need");

FULMEN_DEVICE int keys_at(int buffer) { return buffer * kLayout.key_bytes; }
FULMEN_DEVICE int values_at(int buffer) { return kBuffers * kLayout.key_bytes + buffer * kLayout.value_bytes; }

constexpr int kKeyPieces = kBlockN * (kHeadDim / 8);  // of a tile
constexpr int kRowPieces = kHeadDim / 8;
constexpr int kRowPiecesV = kHeadDimV / 8;

FULMEN_DEVICE RowOperand key_operand(int buffer, int tile, int depth) {
  return lds_row_operand(keys_at(buffer) + 16 * tile * kLayout.key_pitch + 2 * kDepth * depth, kLayout.key_pitch);
}

#if defined(FULMEN_TARGET_SM80)

// cp.async writes to LDS by itself; memory that is not whole pieces goes through registers.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source) : source_(source) {}
  FULMEN_DEVICE void fetch(Int64 first_key, int buffer) {
    first_key_ = first_key;
    if constexpr (kWholeRows) {
      copy<kRowPieces>(source_.keys, source_.arguments.k.row, source_.arguments.head_dim, keys_at(buffer), kLayout.key_pitch,
                       false);
      copy<kRowPiecesV>(source_.values, source_.arguments.v.row, source_.arguments.head_dim_v, values_at(buffer),
                        kLayout.value_pitch, true);
    }
    copy_commit();
  }
  FULMEN_DEVICE void publish(int buffer) {
    if constexpr (kWholeRows) {
      copy_wait<0>();
    } else {
      through_registers<kRowPieces>(source_.keys, source_.arguments.k.row, source_.arguments.head_dim, keys_at(buffer),
                                    kLayout.key_pitch, false);
      through_registers<kRowPiecesV>(source_.values, source_.arguments.v.row, source_.arguments.head_dim_v, values_at(buffer),
                                     kLayout.value_pitch, true);
    }
  }

 private:
  template <int kRow>
  FULMEN_DEVICE void copy(const Element* rows, Int64 stride, int dims, int at, int pitch, bool values) {
#pragma unroll
    for (int n = 0; n < (kBlockN * kRow + kWorkgroup - 1) / kWorkgroup; ++n) {
      const int index = thread_id() + n * kWorkgroup;
      const int row = static_cast<unsigned>(index) / kRow, dim = static_cast<unsigned>(index) % kRow * 8;
      if (kBlockN * kRow % kWorkgroup != 0 && index >= kBlockN * kRow) break;
      const Int64 key = source_.clamp(first_key_ + row);
      bool valid = kExactDims || dim < dims;
      if constexpr (kKeepMask) valid = valid && (!values || source_.alive(key));
      copy_async_16(at + row * pitch + 2 * dim, valid ? rows + key * stride + dim : rows, valid);
    }
  }
  template <int kRow>
  FULMEN_DEVICE void through_registers(const Element* rows, Int64 stride, int dims, int at, int pitch, bool values) {
    for (int index = thread_id(); index < kBlockN * kRow; index += kWorkgroup) {
      const int row = index / kRow, dim = index % kRow * 8;
      const Int64 key = source_.clamp(first_key_ + row);
      Words<4> piece{};
      if (!values || source_.alive(key)) piece = load_piece(rows + key * stride, dim, dims);
      lds_store(at + row * pitch + 2 * dim, piece);
    }
  }

  const StageSource& source_;
  Int64 first_key_ = 0;
};

// 16 keys x 16 dims of V: matrices of keys 0-7 and 8-15 for the first 8 dims, then for the others.
FULMEN_DEVICE ValueOperand value_operand(int buffer, int tile, int dims) {
  const int key = 16 * tile + lane_id() % 16, dim = 16 * dims + lane_id() / 16 * 8;
  return {ldmatrix_x4_trans(values_at(buffer) + key * kLayout.value_pitch + 2 * dim)};
}

#else

// Global memory to registers early, registers to LDS a tile later, V transposed on the way: a lane takes kGroup neighbouring
// positions of V^T's rows and 8 dims.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source) : source_(source) {}
  FULMEN_DEVICE void fetch(Int64 first_key, int /*buffer*/) {
    const ForwardArguments& a = source_.arguments;
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      const Int64 key = source_.clamp(first_key + index / kRowPieces);
      keys_[n] = load_piece(source_.keys + key * a.k.row, index % kRowPieces * 8, a.head_dim);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup, dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        const Int64 key = source_.clamp(first_key + key_at(position + m));
        values_[n][m] = load_piece(source_.values + key * a.v.row, dim, a.head_dim_v);
        if constexpr (kKeepMask) {
          if (!source_.alive(key)) values_[n][m] = {};
        }
      }
    }
  }
  FULMEN_DEVICE void publish(int buffer) {
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      lds_store(keys_at(buffer) + static_cast<int>(index / kRowPieces * kLayout.key_pitch + index % kRowPieces * 16), keys_[n]);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup, dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        Words<kGroup / 2> words;
#pragma unroll
        for (int m = 0; m < kGroup / 2; ++m) {
          words.word[m] = halves(values_[n][2 * m].word[d / 2], values_[n][2 * m + 1].word[d / 2], d % 2 != 0);
        }
        lds_store(values_at(buffer) + (dim + d) * kLayout.value_pitch + 2 * position, words);
      }
    }
  }

 private:
  static constexpr int kGroup = (kBlockN / 4) * kRowPiecesV >= kWorkgroup ? 4 : 2;
  static constexpr int kValueGroups = kBlockN / kGroup * kRowPiecesV;
  static constexpr int kKeyRounds = (kKeyPieces + kWorkgroup - 1) / kWorkgroup;
  static constexpr int kValueRounds = (kValueGroups + kWorkgroup - 1) / kWorkgroup;

  // The key at a position of V^T's rows.
  FULMEN_DEVICE static int key_at(int position) { return position / kValueKeys * kValueKeys + value_key(position % kValueKeys); }

  const StageSource& source_;
  Words<4> keys_[kKeyRounds];
  Words<4> values_[kValueRounds][kGroup];
};

FULMEN_DEVICE ValueOperand value_operand(int buffer, int tile, int dims) {
  ValueOperand operand;
  const int row = values_at(buffer) + (16 * dims + value_dim()) * kLayout.value_pitch + 2 * 16 * tile;
#pragma unroll
  for (int p = 0; p < kValuePieces; ++p) {
    // Rows begin at multiples of 8 bytes.
    constexpr int kWords = sizeof(operand.piece[0]) / 4;
#pragma unroll
    for (int w = 0; w < kWords; w += 2) {
      const auto two = lds_load<Words<2> >(row + 2 * value_piece(p) + 4 * w);
      operand.piece[p].word[w] = two.word[0];
      operand.piece[p].word[w + 1] = two.word[1];
    }
  }
  return operand;
}

#endif

}  // namespace fulmen::kernels
