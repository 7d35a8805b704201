// Where the rows of Q, K and V lie that a workgroup goes over.
#pragma once

#include "core/scores.h"
#include "tile/mask_bits.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// Which query rows of which head a workgroup of a forward kernel has.
struct QueryBlock {
  int batch, head;
  Int64 row_begin;

  FULMEN_DEVICE static QueryBlock of(const ForwardArguments& call) {
    // No launch has more than 2^31 - 1 workgroups, and divisions of 64 bits take long.
    const auto id = static_cast<unsigned>(workgroup_id()),
               row_tiles = static_cast<unsigned>(call.row_tiles);
    const auto num_heads = static_cast<unsigned>(call.num_heads),
               heads = static_cast<unsigned>(call.batch) * num_heads;
    // The last rows attend most keys under a causal mask: they start first, of every head.
    const Int64 tile = kBand ? row_tiles - 1 - id / heads : id % row_tiles;
    const unsigned batch_head = kBand ? id % heads : id / row_tiles;
    return {static_cast<int>(batch_head / num_heads), static_cast<int>(batch_head % num_heads),
            tile * kBlockM};
  }
};

// Reduces one index of the mixed-radix (tile, head, batch) index below its base, after an addition;
// returns the carry to the next.
FULMEN_DEVICE int carried(int& digit, int base) {
  const bool over = digit >= base;
  digit -= over ? base : 0;
  return over ? 1 : 0;
}

// Static persistent tile scheduler: adds the grid stride to the mixed-radix (tile, head, batch)
// index, without divisions between work tiles.
struct TileScheduler {
  int tile, head, batch;

  FULMEN_DEVICE static TileScheduler first(const ForwardArguments& call) {
    const QueryBlock block = QueryBlock::of(call);
    return {static_cast<int>(block.row_begin / kBlockM), block.head, block.batch};
  }
  FULMEN_DEVICE bool there(const ForwardArguments& call) const {
    return kBand ? tile >= 0 : batch < call.batch;
  }
  FULMEN_DEVICE QueryBlock block() const { return {batch, head, Int64{tile} * kBlockM}; }
  FULMEN_DEVICE void go_on(const ForwardArguments& call) {
    if constexpr (kBand) {
      head += call.step_head;
      batch += call.step_batch + carried(head, call.num_heads);
      tile -= call.step_tile + carried(batch, call.batch);
    } else {
      tile += call.step_tile;
      head += call.step_head + carried(tile, call.row_tiles);
      batch += call.step_batch + carried(head, call.num_heads);
    }
  }
};

// What all tiles of a workgroup share.
struct StageSource {
  const ForwardArguments& arguments;
  int batch, head;           // the query head
  Int64 row_begin, row_end;  // its query rows, for the keep-mask
  const KvElement* keys;     // of the KV head, by head_rows()
  const KvElement* values;
  Int64 key_begin, key_end;

  // Returns true if some row attends the key.
  FULMEN_DEVICE bool alive(const ForwardArguments& a, Int64 key) const {
    return any_row_attends(a, batch, head, row_begin, row_end, key);
  }
  // kMaskBits: what the rows attend.
  FULMEN_DEVICE MaskedRows masked_rows() const {
    return MaskedRows::of(arguments, batch, head, row_begin, row_end);
  }
};
// Whether values of a tile are looked at one by one, as the keep-mask may hide them. Where tiles
// are known, kClamped says so.
template <bool kClamped>
constexpr bool kMayHide = kKeepMask && (!kKnowsTiles || kClamped);

// The workgroup's rows of Q.
struct QuerySource {
  const Element* rows;  // of the head
  Int64 stride, first, end;
  int dims;

  // Rows past the end repeat the last one; their results are not stored.
  FULMEN_DEVICE const Element* row(int n) const {
    return rows + (first + n < end ? first + n : end - 1) * stride;
  }
};

// Rows [first_key, first_key + kBlockN) of K or V: where they begin, the same in all lanes, and
// each lane's distance from there in 32 bits (whole rows are near, see
// gpu/launch/specialisation.cpp).
template <bool kValues>
struct TileRows {
  const ForwardArguments& arguments;
  const KvElement* head;
  Int64 first_key;
  const KvElement* rows;  // the tile's first row; of no meaning where rows are scattered
  Int64 stride;
  int first, last;  // the rows that are there

  FULMEN_DEVICE static TileRows of(const ForwardArguments& a, const StageSource& source,
                                   Int64 first_key) {
    const View& view = kValues ? a.v : a.k;
    const KvElement* const head = kValues ? source.values : source.keys;
    const TilePlace place = TilePlace::of(a, first_key);
    // Rows of codes lie one behind the other, in the workspace.
    constexpr bool kCodes = kCodeKeys && !kValues;
    constexpr Int64 kCodeStride = kHeadDim / 2;
    const int first =
        kSkips && first_key < source.key_begin ? static_cast<int>(source.key_begin - first_key) : 0;
    return {a,
            head,
            first_key,
            kCodes ? head + first_key * kCodeStride : place.row<kValues>(a, view, head),
            kCodes ? kCodeStride : place.stride<kValues>(a, view),
            first,
            at_most(source.key_end - first_key, kBlockN) - 1};
  }
  // False where clamp() reads another row.
  FULMEN_DEVICE bool has(int row) const {
    if constexpr (kSkips) return row >= first && row <= last;
    return row <= last;
  }
  FULMEN_DEVICE int clamp(int row) const {
    if constexpr (kSkips) row = row < first ? first : row;
    return row < last ? row : last;
  }
  FULMEN_DEVICE const KvElement* row(int n) const {
    if constexpr (kScattered)
      return kv_row<kValues>(arguments, kValues ? arguments.v : arguments.k, head, first_key + n);
    return rows + n * stride;
  }

  static constexpr bool kOfValues = kValues;
  static constexpr bool kSkips = kTilesBeginEarly && kBand;
  static constexpr bool kIsBuffer = !kScattered && !kSkips;  // rows from first to last, at a stride
};

}  // namespace fulmen::kernels
