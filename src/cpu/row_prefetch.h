// Rows fetched ahead of their use.
#pragma once

#include <cstdint>

#include "cpu/tile.h"

namespace fulmen::cpu {

// Rows of memory that will be used soon, fetched a row at a time from within a product's loop, which waits for arithmetic anyway.
struct RowPrefetch {
  const char* next = nullptr;
  int64_t stride = 0;  // bytes from row to row
  int lines = 0;       // cache lines of a row; 0: nothing to fetch
  int rows = 0;        // that are left

  // Short rows go kCount at a time, before a register block (at the end a few past the last, which does no harm); long ones one at
  // a time, after each of the block's rows: the processor drops prefetches that come in bursts.
  template <class Isa, int kCount>
  FULMEN_INLINE void short_rows() {
    if (rows <= 0 || lines > 2) return;
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i, next += stride) Isa::prefetch(next);
    if (lines == 2) {
      const char* second = next - kCount * stride + 64;
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i, second += stride) Isa::prefetch(second);
    }
    rows -= kCount;
  }
  template <class Isa>
  FULMEN_INLINE void long_row() {
    if (lines > 2) any_row<Isa>();
  }
  template <class Isa>
  FULMEN_INLINE void any_row() {
    if (rows <= 0) return;
    for (int64_t at = 0; at < static_cast<int64_t>(lines) * 64; at += 64) Isa::prefetch(next + at);
    next += stride;
    --rows;
  }
};

// `count` more rows of the lists, one list after the other.
template <class Isa, int kLists>
FULMEN_INLINE void fetch_any_rows(RowPrefetch (&lists)[kLists], int count) {
  int list = 0;
  for (int i = 0; i < count; ++i) {
    while (lists[list].rows <= 0) {
      if (++list == kLists) return;
    }
    lists[list].template any_row<Isa>();
  }
}

FULMEN_INLINE RowPrefetch fetch_rows(const void* first, int64_t stride_bytes, int64_t row_bytes, int64_t rows) {
  // Where in a line the rows begin: somewhere, unless all begin as the first one does.
  const int64_t offset = stride_bytes % 64 == 0 ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % 64) : 63;
  return {static_cast<const char*>(first), stride_bytes, static_cast<int>((offset + row_bytes + 63) / 64), static_cast<int>(rows)};
}

}  // namespace fulmen::cpu
