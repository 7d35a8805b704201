// From tiles of q.k to scores, in registers: scale, softcap, bias, ALiBi, masks.
#pragma once

#include "core/matrix.h"
#include "core/scores.h"
#include "core/shared_heads.h"
#include "tile/mask_bits.h"
#include "tile/register_pressure.h"

namespace fulmen::kernels {

// Which query and head a row of a tile is. With kPackedRows the query heads of a KV head are
// neighbouring rows; with kSharesTiles the heads of a tile that they share are.
struct RowMap {
  const ForwardArguments& arguments;
  int batch, first_head;
  Int64 end;  // rows
  bool is_shared = false;

  FULMEN_DEVICE Int64 clamp(Int64 row) const { return row < end ? row : end - 1; }
  // Packed rows are few (launch/decode.cpp): divisions of 32 bits will do.
  FULMEN_DEVICE Int64 query(Int64 row) const {
    if constexpr (kSharesTiles) return is_shared ? shared_query(arguments, row) : row;
    if constexpr (!kPackedRows) return row;
    return static_cast<unsigned>(row) / static_cast<unsigned>(arguments.group_size);
  }
  FULMEN_DEVICE int head(Int64 row) const {
    if constexpr (kSharesTiles) {
      const auto before = static_cast<int>(shared_query(arguments, row)) * arguments.work.heads;
      return first_head + (is_shared ? static_cast<int>(row) - before : 0);
    }
    if constexpr (!kPackedRows) return first_head;
    return first_head + static_cast<int>(static_cast<unsigned>(row) %
                                         static_cast<unsigned>(arguments.group_size));
  }
  // Which row of partial results is a split's part of query i. call: the whole call, a sequence of
  // which the map has.
  FULMEN_DEVICE Int64 part(const ForwardArguments& call, int split, int head, Int64 i) const {
    const ForwardArguments& a = arguments;
    return static_cast<Int64>(split) * a.batch * a.num_heads * call.seqlen_q +
           (static_cast<Int64>(batch) * a.num_heads + head) * call.seqlen_q + i;
  }
};

// Bits of a row's element, in the low ones.
template <class T>
FULMEN_DEVICE unsigned load_bits(const T* p) {
  if constexpr (sizeof(T) == 4) {
    return float_bits(global_load(p));
  } else if constexpr (sizeof(T) == 2) {
    return global_load(p).bits;
  } else {
    return global_load(p);
  }
}

// What a lane's columns of 16 keys have in a row of memory, as bits. row: at the first of the 16
// keys. With kMasked keys from `left` on are not there and repeat the last one that is, at a
// distance below 0 if need be. kWhole: rows start at multiples of 16 bytes and end at multiples of
// 8 keys, so that a run of up to 8 is inside or outside.
template <bool kMasked, bool kWhole, class T>
FULMEN_DEVICE void load_columns(const T* row, int left, int slot, unsigned (&bits)[kElements]) {
  constexpr int kBytes = static_cast<int>(sizeof(T));
  if constexpr ((kWhole || (kAnyAlignment && !kMasked)) && kColumnRun > 1) {
    constexpr int kWords = kColumnRun * kBytes / 4, kStep = kWords < 4 ? kWords : 4;
#pragma unroll
    for (int e = 0; e < kElements; e += kColumnRun) {
      if (row_slot(e) != slot) continue;
      const int column = tile_column(e);
      const T* run = row + (kMasked && column > left - kColumnRun ? left - kColumnRun : column);
      unsigned words[kWords];
#pragma unroll
      for (int w = 0; w < kWords; w += kStep) {
        Words<kStep> piece;
        if constexpr (kAnyAlignment) {
          piece = global_load_unaligned<Words<kStep>>(reinterpret_cast<const unsigned char*>(run) +
                                                      4 * w);
        } else {
          piece = global_load(reinterpret_cast<const Words<kStep>*>(run) + w / kStep);
        }
#pragma unroll
        for (int n = 0; n < kStep; ++n) words[w + n] = piece.word[n];
      }
#pragma unroll
      for (int n = 0; n < kColumnRun; ++n) {
        bits[e + n] = words[n * kBytes / 4] >> (8U * (n * kBytes % 4));
        if constexpr (kBytes < 4) bits[e + n] &= (1U << (8U * kBytes)) - 1;
      }
    }
  } else if constexpr ((kWhole || !kMasked) && kAnyAlignment && kBytes < 4) {
    // Every second key is the lane's: all of them by vectors of 8 keys.
    constexpr int kWords = 2 * kBytes;
    Words<kWords> half[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      half[h] = global_load_unaligned<Words<kWords>>(
          row + (kMasked && 8 * h > left - 8 ? left - 8 : 8 * h));
    }
    const unsigned odd = 8U * kBytes * (tile_column(0) % 2);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int byte = e % 4 * 2 * kBytes;
      bits[e] = half[e / 4].word[byte / 4] >> (8U * (byte % 4) + odd) & ((1U << (8U * kBytes)) - 1);
    }
  } else {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (row_slot(e) != slot) continue;
      const int column = tile_column(e);
      bits[e] = load_bits(row + (kMasked && column >= left ? left - 1 : column));
    }
  }
}

// The band around a tile, in distances that fit in 32 bits: from its first key, for its first row.
struct TileBand {
  int begin, end;  // of the first row

  FULMEN_DEVICE static TileBand of(const ForwardArguments& a, Int64 first_row, Int64 first_key) {
    if constexpr (!kBand) return {0, 0};
    const Int64 diagonal = first_row + a.diagonal - first_key;
    // Computed whether used or not: no branches, around which operands would have to live.
    const int begin = near(diagonal - a.window_left), end = near(diagonal + a.window_right + 1);
    return {a.window_left < 0 ? -kFar : begin, a.window_right < 0 ? kFar : end};
  }
  FULMEN_DEVICE int first(int row) const {
    if constexpr (!kBand) return 0;
    return begin + row < 0 ? 0 : begin + row;
  }
  FULMEN_DEVICE int last_plus_one(int row, int left) const {
    if constexpr (!kBand) return left;
    return end + row < left ? end + row : left;
  }

 private:
  static constexpr int kFar = 1 << 24;
  FULMEN_DEVICE static int near(Int64 distance) {
    return static_cast<int>(algorithm::Band::clamp(distance, -kFar, kFar));
  }
};

// kMaskBits: what the mask lets a lane's rows attend of a tile of keys, of 16 rows from first_row
// on; only where the tile needs masks.
template <bool kMasked>
struct RowBits {
  static constexpr bool kUsed = kMaskBits && (kMasked || !kKnowsTiles);
  TileBits row[kUsed ? kRowsPerLane : 1];

  FULMEN_DEVICE static RowBits of(const RowMap& map, Int64 first_row, Int64 first_key) {
    RowBits bits{};
    if constexpr (kUsed) {
      const ForwardArguments& a =
          kManyArguments && !kCopiesToLds ? again(map.arguments, first_key) : map.arguments;
      const unsigned* rows = mask_rows(a, map.batch, map.first_head);
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        const Int64 row = map.clamp(first_row + tile_row(slot));
        if constexpr (kPackedRows) rows = mask_rows(a, map.batch, map.head(row));
        const Int64 query = a.mask_bits.rows == 1 ? 0 : map.query(row);
        bits.row[slot] = TileBits::of(rows + query * a.mask_bits.words, first_key);
      }
    }
    return bits;
  }
};

// The bias of a lane's columns of 16 keys, loaded when it is asked for.
struct BiasInPlace {
  template <bool kMasked>
  FULMEN_DEVICE void columns(const ScoreRow& modifiers, Int64 first_key, int left, int slot, int f,
                             unsigned (&bias)[kElements]) const {
    load_columns<kMasked, kWholeBias>(modifiers.bias + first_key + kScoreTile * f,
                                      left - kScoreTile * f, slot, bias);
  }
};
// key_end of a workgroup that has all keys, or whose tiles do not cross the end of its own.
struct AllKeys {
  FULMEN_DEVICE Int64 operator()(const ForwardArguments& a) const { return a.seqlen_k; }
};
template <class KeyEnd>
constexpr bool kHasAllKeys = false;
template <>
constexpr bool kHasAllKeys<AllKeys> = true;

// Scale, softcap, bias, ALiBi and masks of 16 rows from first_row on. kMasked: some keys of the
// tile may not be attended, or be beyond key_end(arguments), the end of the keys that the workgroup
// has. Bias: BiasInPlace, or what has it already (tile/nvidia/bias_ahead.h).
template <bool kMasked, int kTiles, class KeyEnd, class Bias = BiasInPlace>
FULMEN_DEVICE void modify_scores(const RowMap& map, Int64 first_row, Int64 first_key,
                                 const RowBits<kMasked>& row_bits, TileRow<kTiles>& score,
                                 const KeyEnd& key_end, const Bias& tile_bias = {}) {
  if constexpr (kPlainScale && !kMasked && !RowBits<kMasked>::kUsed) return;
  const ForwardArguments& a = kManyArguments ? again(map.arguments, first_key) : map.arguments;
  // Behind the last key the mask's bits are 0.
  constexpr bool kBitsEnd = RowBits<kMasked>::kUsed && !kBand && kHasAllKeys<KeyEnd>;
  const int left = at_most(key_end(a) - first_key, kScoreTile * kTiles);
  const TileBand band = TileBand::of(a, map.query(first_row), first_key);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const Int64 row = map.clamp(first_row + tile_row(slot));
    const Int64 i = map.query(row);
    const ScoreRow modifiers = ScoreRow::of(a, map.batch, map.head(row), i);
    const int distance = kAlibi ? modifiers.distance(first_key) : 0;
    const int later = static_cast<int>(i - map.query(first_row));
    const int low = band.first(later);
    const int high = band.last_plus_one(later, left);
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      if constexpr (kManyArguments) schedule_fence();
      unsigned bias[kElements], keep[kElements];
      if constexpr (kBias)
        tile_bias.template columns<kMasked>(modifiers, first_key, left, slot, f, bias);
      if constexpr (kMaskBytes)
        load_columns<kMasked, false>(modifiers.keep_mask + first_key + kScoreTile * f,
                                     left - kScoreTile * f, slot, keep);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (row_slot(e) != slot) continue;
        const int column = kScoreTile * f + tile_column(e);
        float& s = score[f][e];
        if constexpr (!kPlainScale)
          s = modifiers.finish(a, s, kBias ? kUnitsOfScore * of_bits<BiasElement>(bias[e]) : 0.0F,
                               distance - column, first_key + column);
        bool attended = true;
        if constexpr (kMasked && !kBitsEnd)
          attended = kBand ? column >= low && column < high : column < high;
        if constexpr (RowBits<kMasked>::kUsed) attended = attended && row_bits.row[slot].has(f, e);
        if constexpr (kMaskBytes) attended = attended && keep[e] != 0;
        s = attended ? s : -kInfinity;
      }
    }
  }
}

template <bool kMasked, int kTiles, class KeyEnd>
FULMEN_DEVICE void modify_scores(const RowMap& map, Int64 first_row, Int64 first_key,
                                 TileRow<kTiles>& score, const KeyEnd& key_end) {
  modify_scores(map, first_row, first_key, RowBits<kMasked>::of(map, first_row, first_key), score,
                key_end);
}
// The same for AllKeys.
template <bool kMasked, int kTiles>
FULMEN_DEVICE void modify_scores(const RowMap& map, Int64 first_row, Int64 first_key,
                                 const RowBits<kMasked>& row_bits, TileRow<kTiles>& score) {
  modify_scores(map, first_row, first_key, row_bits, score, AllKeys{});
}
template <bool kMasked, int kTiles>
FULMEN_DEVICE void modify_scores(const RowMap& map, Int64 first_row, Int64 first_key,
                                 TileRow<kTiles>& score) {
  modify_scores(map, first_row, first_key, RowBits<kMasked>::of(map, first_row, first_key), score);
}

}  // namespace fulmen::kernels
