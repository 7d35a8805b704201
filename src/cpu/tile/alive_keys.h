// Which keys some query attends: what the others hold, a NaN even, must not reach a result.
#pragma once

#include <cstdint>
#include <type_traits>

#include "algorithm/key_range.h"
#include "cpu/tile/mask_summary.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// alive[i] becomes non-zero where one of the rows [row_begin, row_end) of a head attends key
// first + i. keep: the mask at row 0 and key 0, or null.
template <class Isa>
__attribute__((noinline)) void mark_alive_keys(const algorithm::Band& band, const uint8_t* keep,
                                               int64_t keep_stride, int64_t row_begin,
                                               int64_t row_end, int64_t first, int keys,
                                               uint8_t* alive) {
  const bool same_mask = keep == nullptr || keep_stride == 0;
  const int64_t rows = same_mask ? row_end - row_begin : 1;  // of one look at the mask
  for (int64_t row = row_begin; row < row_end; row += rows) {
    const auto seen = band.any(row, row + rows);
    const auto begin = static_cast<int>(algorithm::Band::clamp(seen.begin - first, 0, keys));
    const auto end = static_cast<int>(algorithm::Band::clamp(seen.end - first, 0, keys));
    if (keep == nullptr) {
      for (int i = begin; i < end; ++i) alive[i] = 1;
    } else {
      const uint8_t* mask = keep + row * keep_stride + first;
      for (int i = begin; i < end; ++i) alive[i] |= mask[i];
    }
  }
}

// The same of a head's query tiles; kept(row, key, count) says what the mask keeps of one and of
// keys of a summarised tile. Returns false where no key has to be left out. `first` is a multiple
// of kMaskKeys.
template <class Isa, class KeptOf>
FULMEN_INLINE bool mark_alive_tiles(const algorithm::Band& band, const uint8_t* keep,
                                    int64_t keep_stride, int64_t row_begin, int64_t row_end,
                                    int64_t first, int keys, uint8_t* alive, KeptOf kept) {
  bool some = band.left >= 0 || band.right >= 0;
  for (int64_t row = row_begin; row < row_end; row += kBlockM) {
    for (int key = 0; key < keys; key += kMaskKeys) {
      const int count = keys - key < kMaskKeys ? keys - key : kMaskKeys;
      const Kept of_tile = kept(row, first + key, count);
      some = some || of_tile != Kept::all;
      if (of_tile == Kept::none) continue;
      mark_alive_keys<Isa>(band, of_tile == Kept::all ? nullptr : keep, keep_stride, row,
                           row_end - row < kBlockM ? row_end : row + kBlockM, first + key, count,
                           alive + key);
    }
  }
  return some;
}

// Whether the elements of rows [keys][dim] are all finite.
template <class Isa, class Rows>
__attribute__((noinline)) bool all_finite(Rows rows, int keys, int64_t dim) {
  using T = typename Rows::Element;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  constexpr Bits kExponent = static_cast<Bits>(sizeof(T) == 4            ? 0x7F800000U
                                               : std::is_same_v<T, Bf16> ? 0x7F80U
                                                                         : 0x7C00U);
  Bits any = 0;
  for (int key = 0; key < keys; ++key) {
    const T* row = rows[key];
    for (int64_t i = 0; i < dim; ++i) {
      Bits bits;
      __builtin_memcpy(&bits, row + i, sizeof bits);
      any |= static_cast<Bits>((bits & kExponent) == kExponent ? 1 : 0);
    }
  }
  return any == 0;
}

}  // namespace fulmen::cpu
