// Tiles of K and V on their way from memory to LDS, and from there into operands. The kernel's loop:
//   fetch<clamped>(first key, buffer)   begins the next tile's way; clamped: keys past the end are possible
//   publish(buffer)            its data is in LDS after the barrier that follows
// Tiles begin at attended keys, or before them where they lie in pages or elements are dropped. Keys past the end repeat the last
// one: their scores are masked, and a probability of 0 meets a value that the tile has anyway; keys before the first repeat that,
// or are 0. What the keep-mask hides from every row becomes 0, as it may be NaN.
#pragma once

#include "tile/kept_keys.h"
#include "tile/layout.h"
#include "tile/sources.h"
#include "tile/values.h"
#if defined(FULMEN_TARGET_SM80)
#include "tile/swizzle.h"
#endif

namespace fulmen::kernels {

constexpr ForwardLayout kLayout =
    ForwardLayout::of({kTransposedValues, kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kQueriesInLds, kPersistent});
static_assert(kLayout.total == kLdsBytes, "forward: the host reserves the LDS that the tiles need");

FULMEN_DEVICE int keys_at(int buffer) { return buffer * kLayout.key_bytes; }
FULMEN_DEVICE int values_at(int buffer) { return kBuffers * kLayout.key_bytes + buffer * kLayout.value_bytes; }

constexpr int kKeyPieces = kBlockN * (kHeadDim / 8);  // of a tile
constexpr int kRowPieces = kHeadDim / 8;
constexpr int kRowPiecesV = kHeadDimV / 8;

// What a step does for the next tile between its products: nothing, where that is on its way already.
struct NoCopies {
  FULMEN_DEVICE void turn(int /*turn*/, int /*turns*/) {}
};

#if defined(FULMEN_TARGET_SM80)

using KeyRows = SwizzledRows<kHeadDim>;     // of K and Q
using ValueRows = SwizzledRows<kHeadDimV>;  // of V and of outputs on their way back
// lane: lane_id(), or that computed anew where addresses that follow from it are not to stay in registers.
FULMEN_DEVICE KeyOperand key_operand(int buffer, int tile, int depth, unsigned lane) {
  return KeyRows::keys(lane, keys_at(buffer), 16 * tile, depth);
}
// Queries [row, row + 16) of the workgroup's, from LDS.
FULMEN_DEVICE QueryOperand lds_queries(int row, int depth, unsigned lane) {
  return KeyRows::queries(lane, kLayout.queries_at, row, depth);
}
FULMEN_DEVICE ValueOperand value_operand(int buffer, int tile, int dims, unsigned lane) {
  return ValueRows::values(lane, values_at(buffer), tile, dims);
}
// Byte `byte` of row `first` + `row` of the outputs' room, where `first` is a multiple of 8.
FULMEN_DEVICE int output_at(int first, int row, int byte) {
  return kLayout.outputs_at + first * ValueRows::kPitch + ValueRows::place(row, byte);
}
// Two neighbouring outputs, element e and the next of the tile of 16 dims d, to the lane's row of 8 from `first` on.
FULMEN_DEVICE void leave_outputs(int first, int d, int e, unsigned outputs) {
  ValueRows::leave_half(lane_id(), kLayout.outputs_at + first * ValueRows::kPitch, 32 * d + 16 * (e / 4), outputs);
}

// Are a tile's copies spread over the step before it? Many at once hold up that step's own reads of LDS. (With head_dim 64 under a
// causal mask the H200 is slower for it.)
constexpr bool kSpreadsCopies = kBuffers == 2 && kWholeRows && !kKeepMask && !kScattered && !(kHeadDim <= 64 && kBand);

// 8 neighbouring lanes copy 128 bytes of a row at a time, so that one address serves all of a row: registers that a copy waits to
// read must not be needed soon.
constexpr int kCopiedRows = kWorkgroup / 8;  // at once
static_assert(kBlockN % kCopiedRows == 0 && kBlockM % kCopiedRows == 0 && kCopiedRows % 8 == 0, "stage: all lanes copy");
FULMEN_DEVICE int copied_row() { return static_cast<int>(static_cast<unsigned>(thread_id()) / 8); }
FULMEN_DEVICE int copied_dim() { return static_cast<int>(static_cast<unsigned>(thread_id()) % 8) * 8; }
// Row `first + copied_row()` of those at `at`, where `first` is a multiple of kCopiedRows. This lane takes the pieces from
// copied_dim() on, where `from` is. Invalid rows are zeros.
template <int kDims>
FULMEN_DEVICE void copy_row(int at, int first, const Element* from, int dims, bool valid) {
  const int to = at + first * SwizzledRows<kDims>::kPitch + SwizzledRows<kDims>::place(copied_row(), 2 * copied_dim());
#pragma unroll
  for (int dim = 0; dim < kDims; dim += 64) {
    if (kDims % 64 != 0 && dim + copied_dim() >= kDims) break;
    copy_async_16(to + 2 * dim, from + dim, valid && (kExactDims || dim + copied_dim() < dims));
  }
}

// A tile without clamped rows on its way, by turns that the loop gives.
class NextTile {
 public:
  FULMEN_DEVICE NextTile(const TileRows& keys, const TileRows& values, int buffer, bool there)
      : arguments_(keys.arguments),
        key_(keys.row(copied_row()) + copied_dim()),
        value_(values.row(copied_row()) + copied_dim()),
        key_step_(kCopiedRows * keys.stride),
        value_step_(kCopiedRows * values.stride),
        buffer_(buffer),
        there_(there) {}
  // All has begun its way long before the step ends, as the next step waits for it.
  FULMEN_DEVICE void turn(int turn, int turns) {
#pragma unroll
    for (int n = (turn * kRounds + turns - 1) / turns; n < ((turn + 1) * kRounds + turns - 1) / turns; ++n) {
      // Not after the copies that are yet to read them.
      if (n > 0) {
        key_ += key_step_;
        value_ += value_step_;
      }
      if (!there_) continue;
      copy_row<kHeadDim>(keys_at(buffer_), n * kCopiedRows, key_, arguments_.head_dim, true);
      copy_row<kHeadDimV>(values_at(buffer_), n * kCopiedRows, value_, arguments_.head_dim_v, true);
    }
  }

 private:
  static constexpr int kRounds = kBlockN / kCopiedRows;
  const ForwardArguments& arguments_;
  const Element* key_;
  const Element* value_;
  Int64 key_step_, value_step_;
  int buffer_;
  bool there_;  // is there such a tile?
};

// cp.async writes to LDS by itself; memory that is not whole pieces goes through registers.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source) : source_(source) {}
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int buffer) {
    first_key_ = first_key;
    const ForwardArguments& a = source_.arguments;
    if constexpr (kWholeRows) {
      copy<kClamped, kHeadDim>(source_.keys, a.k, a.head_dim, keys_at(buffer), false);
      copy<kClamped, kHeadDimV>(source_.values, a.v, a.head_dim_v, values_at(buffer), true);
    }
    copy_commit();
  }
  // The same by turns, which end with committed(); there: is there such a tile?
  FULMEN_DEVICE NextTile next_tile(Int64 first_key, int buffer, bool there) const {
    const ForwardArguments& a = source_.arguments;
    return {TileRows::of(a, a.k, source_.keys, source_, first_key), TileRows::of(a, a.v, source_.values, source_, first_key),
            buffer, there};
  }
  FULMEN_DEVICE static void committed() { copy_commit(); }
  FULMEN_DEVICE void publish(int buffer) {
    const ForwardArguments& a = source_.arguments;
    if constexpr (kWholeRows) {
      copy_wait<0>();
    } else {
      through_registers<kHeadDim>(source_.keys, a.k, a.head_dim, keys_at(buffer), false);
      through_registers<kHeadDimV>(source_.values, a.v, a.head_dim_v, values_at(buffer), true);
    }
  }
  // Q's way to LDS begins: before the first fetch().
  FULMEN_DEVICE static void fetch_queries(const QuerySource& source) {
#pragma unroll
    for (int n = 0; n < kBlockM; n += kCopiedRows) {
      const int row = n + copied_row();
      if constexpr (kWholeRows) {
        copy_row<kHeadDim>(kLayout.queries_at, n, source.row(row) + copied_dim(), source.dims, true);
      } else {
        for (int dim = copied_dim(); dim < kHeadDim; dim += 64) {
          lds_store(kLayout.queries_at + KeyRows::place(row, 2 * dim), load_piece(source.row(row), dim, source.dims));
        }
      }
    }
    copy_commit();
  }
  // The same of the wave's own rows alone, `first` to `first` + kRows of the workgroup's.
  template <int kRows>
  FULMEN_DEVICE static void fetch_wave_queries(const QuerySource& source, int first) {
    const unsigned lane = recompute(lane_id());
    // Whole rows are near each other: distances of 32 bits.
    const int last = at_most(source.end - source.first, kBlockM) - 1, stride = static_cast<int>(source.stride);
    const Element* rows = source.rows + source.first * source.stride;
#pragma unroll
    for (int n = 0; n < kRows; n += 4) {
      const int row = first + n + static_cast<int>(lane / 8), dim = static_cast<int>(lane % 8) * 8;
      const Element* from = rows + (row < last ? row : last) * stride + dim;
      const int to = kLayout.queries_at + KeyRows::place(row, 2 * dim);
#pragma unroll
      for (int d = 0; d < kHeadDim; d += 64) {
        if (kHeadDim % 64 != 0 && d + dim >= kHeadDim) break;
        copy_async_16(to + 2 * d, from + d, kExactDims || d + dim < source.dims);
      }
    }
    copy_commit();
  }
  // After the first fetch(), for registers: the first tile's publish() would do.
  FULMEN_DEVICE static void publish_queries(const QuerySource& /*source*/) {
    copy_wait<1>();
    barrier();
  }
  FULMEN_DEVICE static QueryOperand query_operand(const QuerySource& /*source*/, int row, int d) {
    return lds_queries(row, d, lane_id());
  }

 private:
  template <bool kClamped, int kDims>
  FULMEN_DEVICE void copy(const Element* head, const View& view, int dims, int at, bool values) {
    const TileRows rows = TileRows::of(source_.arguments, view, head, source_, first_key_);
    const Element* first = rows.row(kClamped || kScattered ? 0 : copied_row());
#pragma unroll
    for (int n = 0; n < kBlockN; n += kCopiedRows) {
      const int row = n + copied_row(), from = rows.clamp(row);
      const bool valid = !(kKeepMask && values) || source_.alive(source_.arguments, first_key_ + from);
      const Element* of = kClamped || kScattered ? rows.row(kClamped ? from : row) : first + n * rows.stride;
      copy_row<kDims>(at, n, of + copied_dim(), dims, valid);
    }
  }
  template <int kDims>
  FULMEN_DEVICE void through_registers(const Element* head, const View& view, int dims, int at, bool values) {
    const TileRows rows = TileRows::of(source_.arguments, view, head, source_, first_key_);
    for (int index = thread_id(); index < kBlockN * (kDims / 8); index += kWorkgroup) {
      const int row = index / (kDims / 8), dim = index % (kDims / 8) * 8;
      Words<4> piece{};
      if (!values || source_.alive(source_.arguments, first_key_ + rows.clamp(row)))
        piece = load_piece(rows.row(rows.clamp(row)), dim, dims);
      lds_store(at + SwizzledRows<kDims>::place(row, 2 * dim), piece);
    }
  }

  const StageSource& source_;
  Int64 first_key_ = 0;
};

#else

constexpr bool kSpreadsCopies = false;

FULMEN_DEVICE KeyOperand key_operand(int buffer, int tile, int depth, unsigned /*lane*/) {
  return lds_key_operand(keys_at(buffer) + 16 * tile * kLayout.key_pitch + 2 * kTileMmaK * depth, kLayout.key_pitch);
}
// Queries [row, row + 16) of the workgroup's, from LDS.
FULMEN_DEVICE QueryOperand lds_queries(int row, int depth, unsigned /*lane*/) {
  return lds_query_operand(kLayout.queries_at + row * kLayout.query_pitch + 2 * kTileMmaK * depth, kLayout.query_pitch);
}
// Outputs do not go through LDS here.
FULMEN_DEVICE int output_at(int /*first*/, int /*row*/, int /*byte*/) { return 0; }
FULMEN_DEVICE void leave_outputs(int /*first*/, int /*d*/, int /*e*/, unsigned /*outputs*/) {}

// Global memory to registers early, registers to LDS a tile later, V transposed on the way: a lane takes kGroup neighbouring
// positions of V^T's rows and 8 dims.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source) : source_(source) {}
  FULMEN_DEVICE static NoCopies next_tile(Int64 /*first_key*/, int /*buffer*/, bool /*there*/) { return {}; }
  FULMEN_DEVICE static void committed() {}
  FULMEN_DEVICE static void fetch_queries(const QuerySource& /*source*/) {}
  FULMEN_DEVICE static void publish_queries(const QuerySource& source) {
    if constexpr (!kQueriesInLds) return;
    for (int index = thread_id(); index < kBlockM * kRowPieces; index += kWorkgroup) {
      const int row = index / kRowPieces, piece = index % kRowPieces;
      lds_store(kLayout.queries_at + row * kLayout.query_pitch + 16 * piece, load_piece(source.row(row), 8 * piece, source.dims));
    }
  }
  FULMEN_DEVICE static QueryOperand query_operand(const QuerySource& source, int row, int d) {
    return load_row_operand(source.rows, source.stride, source.first + row, source.end, kMmaK * d, source.dims);
  }
  // Rows past the end read as 0.
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int /*buffer*/) {
    const ForwardArguments& a = kManyArguments ? again(source_.arguments, first_key) : source_.arguments;
    const int thread = kManyArguments ? recompute(thread_id(), first_key) : thread_id();
    const TileRows key_rows = TileRows::of(a, a.k, source_.keys, source_, first_key);
    const TileRows value_rows = TileRows::of(a, a.v, source_.values, source_, first_key);
    const Source<false> keys(key_rows, a.head_dim);
    const Source<kClamped && TileRows::kSkips> values(value_rows, a.head_dim_v);
    KeptKeys<kBlockN> kept;
    if constexpr (kKeepMask) {
      kept = KeptKeys<kBlockN>::of([&](int n) { return n <= value_rows.last && source_.alive(a, first_key + n); });
    }
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      if constexpr (kWorkgroup % kRowPieces == 0) {
        // Every round the same piece of a later row.
        keys_[n] = keys.piece(n * (kWorkgroup / kRowPieces), thread / kRowPieces, thread % kRowPieces * 8);
      } else {
        keys_[n] = keys.piece(0, index / kRowPieces, index % kRowPieces * 8);
      }
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kValueGroups % kWorkgroup != 0 && index >= kValueGroups) break;
      const int position = index % (kBlockN / kGroup) * kGroup, dim = index / (kBlockN / kGroup) * 8;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        // Positions of a group are at fixed distances from its first.
        values_[n][m] = values.piece(key_at(m) - key_at(0), key_at(position), dim);
        if constexpr (kKeepMask) {
          values_[n][m] = kept.or_zero(key_at(position) + (key_at(m) - key_at(0)), values_[n][m]);
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
        lds_store(values_at(buffer) + transposed_row(dim, kBlockN) + d * kLayout.value_pitch + 2 * position, words);
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

  // A tile's memory: whole rows as a buffer, whose hardware knows the end. kSkips: rows before the first are 0.
  template <bool kSkips>
  class Source {
   public:
    FULMEN_DEVICE Source(const TileRows& rows, int dims)
        : rows_(rows), dims_(dims), buffer_(rows.rows, static_cast<unsigned>(rows.last * rows.stride + dims) * 2) {}
    // Elements [dim, dim + 8) of row `fixed + row`, where `fixed` is the same in all lanes.
    FULMEN_DEVICE Words<4> piece(int fixed, int row, int dim) const {
      if constexpr (kWholeRows && !kScattered) {
        const auto stride = static_cast<unsigned>(rows_.stride) * 2;
        const unsigned offset = static_cast<unsigned>(row) * stride + 2 * static_cast<unsigned>(dim);
        const bool there = (kExactDims || dim < dims_) && (!kSkips || fixed + row >= rows_.first);
        return buffer_.template load<Words<4> >(there ? offset : kBeyond, static_cast<unsigned>(fixed) * stride);
      } else {
        return load_piece(rows_.row(rows_.clamp(fixed + row)), dim, dims_);
      }
    }

   private:
    static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end
    const TileRows& rows_;
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

#endif

}  // namespace fulmen::kernels
