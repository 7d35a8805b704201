// NVIDIA: cp.async copies tiles to swizzled rows in LDS; Q and the outputs go through LDS, too.
#pragma once

#include "tile/kept_keys.h"
#include "tile/nvidia/stage_codes.h"
#include "tile/nvidia/swizzle.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"
#include "tile/stage_scales.h"
#include "tile/stored_pieces.h"
#include "tile/values.h"

namespace fulmen::kernels {

// Rows of K and Q, in elements of 16 bits: of codes half as many.
constexpr int kKeyDims = kHeadDim * kCodeBytes / 2;
using KeyRows = SwizzledRows<kKeyDims>;
static_assert(kValueParts == 1 || kDimTiles % 4 == 0,
              "stage: swizzled parts are 128 bytes of a row");
using ValueRows = SwizzledRows<kHeadDimV>;  // of V, and of outputs before they are stored
using StagedKeys = Either<kCodeKeys, KeyCodes, KeyOperand>;
using StagedRows = Either<kCodeKeys, QueryCodes, QueryOperand>;
using StagedProbabilities = Either<kCodeValues, ProbabilityCodes, ProbabilityOperand>;
using StagedValues = Either<kCodeValues, ValueCodes, ValueOperand>;
// lane: lane_id(), or that computed anew where addresses that follow from it are not to stay in
// registers.
FULMEN_DEVICE StagedKeys key_operand(int buffer, int tile, int depth, unsigned lane) {
  return {KeyRows::keys(lane, keys_at(buffer), kScoreTile * tile, depth).words};
}
// Queries [row, row + 16) of the workgroup's, from LDS.
FULMEN_DEVICE StagedRows lds_queries(int row, int depth, unsigned lane) {
  return {KeyRows::queries(lane, kLayout.queries_at, row, depth).words};
}
// The values of the step-th product P V.
FULMEN_DEVICE StagedValues value_operand(int buffer, int step, int dims, unsigned lane) {
  if constexpr (kCodeValues)
    return {PanelRows::keys(lane, values_at(buffer), kScoreTile * dims, step).words};
  return {ValueRows::values(lane, values_at(buffer) + 2 * first_value_dim(), step, dims).words};
}

// Outputs of 16 rows fill half of the registers. 32 rows a wave, of smaller heads, are slower with
// what follows from this.
constexpr bool kWideHeads = kRowTiles == 1 && kHeadDimV > 128;
FULMEN_DEVICE unsigned operand_lane() { return kWideHeads ? recompute(lane_id()) : lane_id(); }

// Operands of Q in registers, of the first dims: all, or, where Q stays in LDS, as many as outputs
// and scores of 16 rows leave room for: each is a read of LDS less in every step.
constexpr int kSpareRegisters = (kValueParts > 1 ? 180 : 200) - (kDimTiles + kKeyTiles) * kElements;
constexpr bool kKeepsSomeQueries =
    kBuffers == 2 && kRowTiles == 1 && kPlainScale && kWholeRows && !kDropout && !kQuantized;
constexpr int kKeptMmaSteps =
    !kQueriesInLds || kSpareRegisters / 4 >= kMmaSteps ? kMmaSteps : kSpareRegisters / 4;
constexpr int kQueryMmaSteps = kQueriesInLds && !kKeepsSomeQueries ? 0 : kKeptMmaSteps;

// The next tile is in flight while one is computed: not with a single buffer, which asynchronous
// copies write to. Quantized tiles are in flight to registers.
constexpr bool kFetchesEarly = kBuffers == 2 || kQuantized;

// True if a tile's copies are spread over the step before it: many at once hold up that step's own
// reads of LDS. (With head_dim 64 under a causal mask the H200 is slower for it.)
constexpr bool kSpreadsCopies = kBuffers == 2 && kWholeRows && !kKeepMask && !kScattered &&
                                !(kHeadDim <= 64 && kBand) && !kQuantized;

// 8 neighbouring lanes copy 128 bytes of a row at a time, so that one address serves all of a row:
// registers that a copy waits to read must not be needed soon.
constexpr int kCopiedRows = kWorkgroup / 8;  // at once
static_assert(kBlockN % kCopiedRows == 0 && kBlockM % kCopiedRows == 0 && kCopiedRows % 8 == 0,
              "stage: all lanes copy");
FULMEN_DEVICE int copied_row() { return static_cast<int>(static_cast<unsigned>(thread_id()) / 8); }
FULMEN_DEVICE int copied_dim() {
  return static_cast<int>(static_cast<unsigned>(thread_id()) % 8) * 8;
}
// Dims of a row of K in memory: rows of codes are whole.
FULMEN_DEVICE int key_dims(const ForwardArguments& a) { return kCodeKeys ? kKeyDims : a.head_dim; }
constexpr bool kWholeKeys = kWholeRows || kCodeKeys, kWholeValues = kWholeRows || kCodeValues;
// Row `first + copied_row()` of those at `at`, where `first` is a multiple of kCopiedRows. This
// lane takes the pieces from copied_dim() on, where `from` is. Invalid rows are zeros.
template <int kDims, class T>
FULMEN_DEVICE void copy_row(int at, int first, const T* from, int dims, bool valid) {
  const int to = at + first * SwizzledRows<kDims>::kPitch +
                 SwizzledRows<kDims>::place(copied_row(), 2 * copied_dim());
#pragma unroll
  for (int dim = 0; dim < kDims; dim += 64) {
    if (kDims % 64 != 0 && dim + copied_dim() >= kDims) break;
    copy_async_16(to + 2 * dim, from + dim, valid && (kExactDims || dim + copied_dim() < dims));
  }
}

// Copies a tile without clamped rows, a share of it in each iteration of the loop.
class NextTile {
 public:
  FULMEN_DEVICE NextTile(const TileRows<false>& keys, const TileRows<true>& values, int buffer,
                         bool there)
      : arguments_(keys.arguments),
        key_(keys.row(copied_row()) + copied_dim()),
        value_(values.row(copied_row()) + copied_dim()),
        panel_(values, values_at(buffer)),
        key_step_(kCopiedRows * keys.stride),
        value_step_(kCopiedRows * values.stride),
        buffer_(buffer),
        there_(there) {}
  // All copies are issued long before the step ends, as the next step waits for them.
  FULMEN_DEVICE void turn(int turn, int turns) {
#pragma unroll
    for (int n = share(turn, turns, kRounds); n < share(turn + 1, turns, kRounds); ++n) {
      // Addresses advance before their copies, not after: copies in flight may yet have to read
      // them.
      if (n > 0) {
        key_ += key_step_;
        if constexpr (!kCodeValues) value_ += value_step_;
      }
      if (!there_) continue;
      copy_row<kKeyDims>(keys_at(buffer_), n * kCopiedRows, key_, key_dims(arguments_), true);
      if constexpr (!kCodeValues)
        copy_row<kHeadDimV>(values_at(buffer_), n * kCopiedRows, value_, arguments_.head_dim_v,
                            true);
    }
    if constexpr (!kCodeValues) return;
#pragma unroll
    for (int n = share(turn, turns, PanelCopies::kRounds);
         n < share(turn + 1, turns, PanelCopies::kRounds); ++n) {
      if (there_) panel_.copy(n);
    }
  }

 private:
  static constexpr int kRounds = kBlockN / kCopiedRows;
  // The first of so many rounds that come in a turn.
  FULMEN_DEVICE static constexpr int share(int turn, int turns, int rounds) {
    return (turn * rounds + turns - 1) / turns;
  }
  const ForwardArguments& arguments_;
  const KvElement* key_;
  const KvElement* value_;
  PanelCopies panel_;
  Int64 key_step_, value_step_;
  int buffer_;
  bool there_;  // there is such a tile
};

// A tile of quantized rows: from memory to registers early, to LDS a tile later, as numbers of q's
// dtype.
template <bool kValues>
class StoredTile {
 public:
  FULMEN_DEVICE explicit StoredTile(const StageSource& source) : scales_(source) {}
  // kMasked: values that no row attends become 0.
  template <bool kMasked>
  FULMEN_DEVICE void fetch(const StageSource& source, Int64 first_key) {
    const ForwardArguments& a = source.arguments;
    const auto rows = TileRows<kValues>::of(a, source, first_key);
    for_pieces([&](int n, int row, int dim) {
      const int from = rows.clamp(row);
      if (kMasked && !source.alive(a, first_key + from)) {
        pieces_[n] = {};
      } else {
        pieces_[n] = load_stored<kValues>(rows.row(from), dim, kValues ? a.head_dim_v : a.head_dim);
      }
    });
    scales_.fetch(a, source, first_key);
  }
  FULMEN_DEVICE void publish(int at, int buffer) const {
    for_pieces([&](int n, int row, int dim) {
      lds_store(at + SwizzledRows<kDims>::place(row, 2 * dim),
                piece_of<kValues, Element>(pieces_[n]));
    });
    scales_.publish(buffer);
  }

 private:
  static constexpr int kDims = kValues ? kHeadDimV : kHeadDim;
  static constexpr int kAll = kBlockN * (kDims / 8), kRounds = (kAll + kWorkgroup - 1) / kWorkgroup;

  template <class Body>
  FULMEN_DEVICE static void for_pieces(const Body& body) {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const unsigned index = thread_id() + n * kWorkgroup;
      if (kAll % kWorkgroup != 0 && index >= kAll) break;
      body(n, static_cast<int>(index / (kDims / 8)), static_cast<int>(index % (kDims / 8)) * 8);
    }
  }

  StoredWords<kValues, 8> pieces_[kRounds];
  StagedScales<kValues> scales_;
};

// cp.async writes to LDS by itself; memory that is not whole pieces goes through registers.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source)
      : source_(source), stored_keys_(source), stored_values_(source) {}
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int buffer) {
    first_key_ = first_key;
    const ForwardArguments& a = source_.arguments;
    if constexpr (kQuantized) {
      stored_keys_.template fetch<false>(source_, first_key);
      stored_values_.template fetch<kMayHide<kClamped> >(source_, first_key);
    } else {
      if constexpr (kWholeKeys) copy<kClamped, false, kKeyDims>(key_dims(a), keys_at(buffer));
      if constexpr (kCodeValues) {
        copy_panel(values_at(buffer));
      } else if constexpr (kWholeRows) {
        copy<kClamped, true, kHeadDimV>(a.head_dim_v, values_at(buffer));
      }
    }
    copy_commit();
  }
  // fetch() in shares (NextTile::turn), which committed() ends. there: true if there is such a
  // tile.
  FULMEN_DEVICE NextTile next_tile(Int64 first_key, int buffer, bool there) const {
    const ForwardArguments& a = source_.arguments;
    return {TileRows<false>::of(a, source_, first_key), TileRows<true>::of(a, source_, first_key),
            buffer, there};
  }
  FULMEN_DEVICE static void committed() { copy_commit(); }
  template <bool kClamped>
  FULMEN_DEVICE static void fetch_values(Int64 /*first_key*/) {}
  FULMEN_DEVICE static void publish_values() {}
  FULMEN_DEVICE void publish(int buffer) {
    const ForwardArguments& a = source_.arguments;
    if constexpr (kQuantized) {
      copy_wait<0>();                          // queries
      if constexpr (kBuffers == 1) barrier();  // the last tile is read by now
      stored_keys_.publish(keys_at(buffer), buffer);
      stored_values_.publish(values_at(buffer), buffer);
    } else {
      if constexpr (!kWholeKeys) through_registers<false, kHeadDim>(a.head_dim, keys_at(buffer));
      if constexpr (!kWholeValues)
        through_registers<true, kHeadDimV>(a.head_dim_v, values_at(buffer));
      if constexpr (kWholeKeys) copy_wait<0>();
    }
  }
  // Begins to copy Q to LDS. It precedes the first fetch().
  FULMEN_DEVICE static void fetch_queries(const QuerySource& source) {
#pragma unroll
    for (int n = 0; n < kBlockM; n += kCopiedRows) {
      const int row = n + copied_row();
      if constexpr (kWholeKeys) {
        copy_row<kKeyDims>(kLayout.queries_at, n, source.row(row) + copied_dim(), source.dims,
                           true);
      } else {
        for (int dim = copied_dim(); dim < kHeadDim; dim += 64) {
          lds_store(kLayout.queries_at + KeyRows::place(row, 2 * dim),
                    load_piece(source.row(row), dim, source.dims));
        }
      }
    }
    copy_commit();
  }
  // True if Q arrives for a wave to read into registers: with the first tile of keys.
  FULMEN_DEVICE static bool brings_queries(int tiles) { return kQueryMmaSteps > 0 && tiles > 0; }
  // Copies the wave's own query rows alone, `first` to `first` + kRows of the workgroup's.
  template <int kRows>
  FULMEN_DEVICE static void fetch_wave_queries(const QuerySource& source, int first) {
    const unsigned lane = recompute(lane_id());
    // Whole rows are near each other: distances of 32 bits.
    const int last = at_most(source.end - source.first, kBlockM) - 1,
              stride = static_cast<int>(source.stride);
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
  FULMEN_DEVICE static StagedRows query_operand(const QuerySource& /*source*/, int row, int d) {
    return lds_queries(row, d, lane_id());
  }
  template <class Queries>
  FULMEN_DEVICE static void queries_arrived(const Queries& /*queries*/) {}

 private:
  template <bool kClamped, bool kValues, int kDims>
  FULMEN_DEVICE void copy(int dims, int at) {
    const auto rows = TileRows<kValues>::of(source_.arguments, source_, first_key_);
    const KvElement* first = rows.row(kClamped || kScattered ? 0 : copied_row());
#pragma unroll
    for (int n = 0; n < kBlockN; n += kCopiedRows) {
      const int row = n + copied_row(), from = rows.clamp(row);
      const bool valid =
          !(kMayHide<kClamped> && kValues) || source_.alive(source_.arguments, first_key_ + from);
      const KvElement* of =
          kClamped || kScattered ? rows.row(kClamped ? from : row) : first + n * rows.stride;
      copy_row<kDims>(at, n, of + copied_dim(), dims, valid);
    }
  }
  FULMEN_DEVICE void copy_panel(int at) const {
    const PanelCopies panel(TileRows<true>::of(source_.arguments, source_, first_key_), at);
#pragma unroll
    for (int n = 0; n < PanelCopies::kRounds; ++n) panel.copy(n);
  }
  template <bool kValues, int kDims>
  FULMEN_DEVICE void through_registers(int dims, int at) {
    const auto rows = TileRows<kValues>::of(source_.arguments, source_, first_key_);
    for (int index = thread_id(); index < kBlockN * (kDims / 8); index += kWorkgroup) {
      const int row = index / (kDims / 8), dim = index % (kDims / 8) * 8;
      Words<4> piece{};
      if (!kValues || source_.alive(source_.arguments, first_key_ + rows.clamp(row)))
        piece = load_piece(rows.row(rows.clamp(row)), dim, dims);
      lds_store(at + SwizzledRows<kDims>::place(row, 2 * dim), piece);
    }
  }

  const StageSource& source_;
  Int64 first_key_ = 0;
  StoredTile<false> stored_keys_;  // kQuantized
  StoredTile<true> stored_values_;
};

}  // namespace fulmen::kernels
