// AMD: tiles go to LDS through registers, V transposed there or while it is read.
#pragma once

#include "tile/amd/stage_codes.h"
#include "tile/amd/stage_values.h"
#include "tile/amd/staged_rows.h"
#include "tile/kept_keys.h"
#include "tile/register_pressure.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"
#include "tile/stage_scales.h"

namespace fulmen::kernels {

constexpr bool kSpreadsCopies = false;
// The next tile is in flight while one is computed.
constexpr bool kFetchesEarly = true;
// Operands of Q in registers.
constexpr int kQueryMmaSteps = kQueriesInLds ? 0 : kMmaSteps;
constexpr bool kWideHeads = false;
FULMEN_DEVICE unsigned operand_lane() { return lane_id(); }

FULMEN_DEVICE StagedRows key_operand(int buffer, int tile, int depth, unsigned /*lane*/) {
  return staged_rows(
      keys_at(buffer) + kScoreTile * tile * kLayout.key_pitch + kCodeBytes * kStepDims * depth,
      kLayout.key_pitch);
}
// Queries [row, row + 16) of the workgroup's, from LDS.
FULMEN_DEVICE StagedRows lds_queries(int row, int depth, unsigned /*lane*/) {
  return staged_rows(
      kLayout.queries_at + row * kLayout.query_pitch + kCodeBytes * kStepDims * depth,
      kLayout.query_pitch);
}

using AllValues = Either<kCodeValues, StagedCodes, StagedValues<kReadsTransposed, Element> >;
using StagedProbabilities = Either<kCodeValues, CodeProbabilities, ProbabilityOperand>;

// Global memory to registers early, registers to LDS a tile later.
class Stage {
 public:
  FULMEN_DEVICE explicit Stage(const StageSource& source)
      : source_(source), key_scales_(source), value_scales_(source) {}
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
                query_piece(source, row, piece));
    }
  }
  FULMEN_DEVICE static StagedRows query_operand(const QuerySource& source, int row, int d) {
    return row_operand_of(source, row, d);
  }
  template <int kTiles, int kSteps>
  FULMEN_DEVICE static void queries_arrived(StagedRows (&queries)[kTiles][kSteps]) {
#pragma unroll
    for (auto& tile : queries) {
#pragma unroll
      for (StagedRows& step : tile) arrived(step);
    }
  }
  template <bool kClamped>
  FULMEN_DEVICE void fetch(Int64 first_key, int /*buffer*/) {
    load<kClamped, true, !kValuesFollow>(first_key);
  }
  // Loads the keys alone of a whole tile.
  FULMEN_DEVICE void fetch_keys(Int64 first_key) { load<false, true, false>(first_key); }
  // Tiles one behind the other, without a key past the end: where they are in memory advances. Both
  // are of tiles from those keys on, or what lies there is not fetched.
  FULMEN_DEVICE void begin_whole(Int64 first_key, Int64 first_value) {
    if constexpr (!kAdvances) return;
    const ForwardArguments& a = source_.arguments;
    next_keys_ = source_.keys + first_key * a.k.row;
    next_values_ = source_.values + first_value * a.v.row;
  }
  // more: else the next keys are these again.
  FULMEN_DEVICE void fetch_whole(Int64 first_key, bool more = true) {
    fetch_whole_part<true, true>(first_key, more);
  }
  template <bool kKeys, bool kValues>
  FULMEN_DEVICE void fetch_whole_part(Int64 first_key, bool more) {
    if constexpr (kAdvances) {
      const ForwardArguments& a = source_.arguments;
      const TileRows<false> key_rows{a, source_.keys, first_key, next_keys_, a.k.row,
                                     0, kBlockN - 1};
      const TileRows<true> value_rows{a, source_.values, first_key, next_values_, a.v.row,
                                      0, kBlockN - 1};
      load_rows<false, kKeys, kValues>(a, thread_id(), key_rows, value_rows, first_key);
      if constexpr (kKeys) next_keys_ += more ? kBlockN * a.k.row : 0;
      if constexpr (kValues) next_values_ += kBlockN * a.v.row;
    } else {
      load<false, kKeys, kValues>(first_key);
    }
  }
  // kValuesFollow: the values of the tile whose keys are there.
  template <bool kClamped>
  FULMEN_DEVICE void fetch_values(Int64 first_key) {
    load<kClamped, false, true>(first_key);
  }
  FULMEN_DEVICE void publish_values() const {
    barrier();  // all waves have read the keys
    values_.publish(values_at(0));
    value_scales_.publish(0);
    barrier();
  }
  FULMEN_DEVICE void publish(int buffer) {
    publish_keys(buffer);
    if constexpr (kValuesFollow) return;
    values_.publish(values_at(buffer));
    value_scales_.publish(buffer);
  }
  FULMEN_DEVICE void publish_keys(int buffer) {
    if constexpr (kBuffers == 1) barrier();  // the last tile is read by now
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) publish_keys(buffer, n);
    key_scales_.publish(buffer);
  }
  // A tile in parts, of keys and values that all lanes have, without scales.
  static constexpr int kKeyRounds = (kKeyPieces + kWorkgroup - 1) / kWorkgroup;
  static constexpr int kParts = kKeyRounds + AllValues::kParts;
  FULMEN_DEVICE void publish_part(int buffer, int n) const {
    if (n < kKeyRounds) {
      publish_keys(buffer, n);
    } else {
      values_.publish_part(values_at(buffer), n - kKeyRounds);
    }
  }

 private:
  // Rows past the end read as 0.
  template <bool kClamped, bool kKeys, bool kValues>
  FULMEN_DEVICE void load(Int64 first_key) {
    const ForwardArguments& a =
        kLoadsAnew ? again(source_.arguments, first_key) : source_.arguments;
    const int thread = kLoadsAnew ? recompute(thread_id(), first_key) : thread_id();
    const auto key_rows = TileRows<false>::of(a, source_, first_key);
    const auto value_rows = TileRows<true>::of(a, source_, first_key);
    load_rows<kClamped, kKeys, kValues>(a, thread, key_rows, value_rows, first_key);
  }
  template <bool kClamped, bool kKeys, bool kValues>
  FULMEN_DEVICE void load_rows(const ForwardArguments& a, int thread,
                               const TileRows<false>& key_rows, const TileRows<true>& value_rows,
                               Int64 first_key) {
    const TileMemory<TileRows<false>, false> keys(key_rows, kCodeKeys ? kHeadDim : a.head_dim);
    const Either<kCodeValues, PanelMemory,
                 TileMemory<TileRows<true>, kClamped && TileRows<true>::kSkips> >
        values(value_rows, a.head_dim_v);
    if constexpr (kKeys) {
      load_keys(thread, keys);
      key_scales_.fetch(a, source_, first_key);
    }
    if constexpr (!kValues) return;
    value_scales_.fetch(a, source_, first_key);
    KeptKeys<kBlockN> kept;
    if constexpr (kMaskBits && kMayHide<kClamped>) {
      kept = KeptKeys<kBlockN>::of(source_.masked_rows().attended(first_key));
      // Bits are of more rows than the workgroup's, and keys before its first one repeat that one,
      // as those behind its last one do where no buffer ends there.
      if constexpr (TileRows<true>::kSkips) kept.drop_before(value_rows.first);
      if constexpr (!kWholeRows || kScattered) kept.drop_behind(value_rows.last);
    } else if constexpr (kMayHide<kClamped>) {
      kept = KeptKeys<kBlockN>::of(
          [&](int n) { return value_rows.has(n) && source_.alive(a, first_key + n); });
    }
    values_.template fetch<kMayHide<kClamped> >(thread, values, kept);
  }
  FULMEN_DEVICE void publish_keys(int buffer, int n) const {
    const unsigned index = thread_id() + n * kWorkgroup;
    if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) return;
    lds_store(keys_at(buffer) + static_cast<int>(index / kRowPieces * kLayout.key_pitch +
                                                 index % kRowPieces * 16),
              staged_piece(keys_[n]));
  }
  FULMEN_DEVICE void load_keys(int thread, const TileMemory<TileRows<false>, false>& keys) {
#pragma unroll
    for (int n = 0; n < kKeyRounds; ++n) {
      const unsigned index = thread + n * kWorkgroup;
      if (kKeyPieces % kWorkgroup != 0 && index >= kKeyPieces) break;
      if constexpr (kWorkgroup % kRowPieces == 0) {
        // Every round the same piece of a later row.
        keys_[n] = keys.template piece<kPieceDims>(
            n * (kWorkgroup / kRowPieces), thread / kRowPieces, thread % kRowPieces * kPieceDims);
      } else {
        keys_[n] =
            keys.template piece<kPieceDims>(0, index / kRowPieces, index % kRowPieces * kPieceDims);
      }
    }
  }

  // Where a tile is in memory is computed for each.
  static constexpr bool kLoadsAnew = kManyArguments || kValuesFollow;

  // Rows follow rows, in a dtype's numbers.
  static constexpr bool kAdvances =
      kWholeRows && !kPaged && !kQuantized && !kCodeKeys && !kCodeValues && !kLoadsAnew;

  const StageSource& source_;
  const KvElement* next_keys_ = nullptr;
  const KvElement* next_values_ = nullptr;
  KeyPiece keys_[kKeyRounds];
  AllValues values_;
  StagedScales<false> key_scales_;
  StagedScales<true> value_scales_;
};

// Where the first of a wave's dims lie in a tile of values.
FULMEN_DEVICE int first_value_at() {
  const int dim = first_value_dim();
  if constexpr (kCodeValues) return dim * kLayout.value_pitch;
  return kReadsTransposed ? 2 * dim : algorithm::transposed_row(dim, kBlockN, kValueDepth);
}
FULMEN_DEVICE auto value_operand(int buffer, int step, int dims, unsigned /*lane*/) {
  return AllValues::operand(values_at(buffer) + first_value_at(), step, dims);
}

}  // namespace fulmen::kernels
