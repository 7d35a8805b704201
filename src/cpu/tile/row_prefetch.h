// Rows fetched ahead of their use.
#pragma once

#include <cstdint>

#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Words of a register block's products from one step of fetching to the next one.
constexpr int kFetchWords = 8;
// Short sequences: AMD drops prefetches in bursts of more than some ten lines, which is what eight
// words make (docs/lab/cpu_zen4.md).
constexpr int kShortStepWords = 4;
constexpr int kWholeBlock = 1 << 30;

// Into L2, where the instruction set tells it from L1.
template <class Isa>
FULMEN_INLINE void prefetch_into_l2(const void* p) {
  if constexpr (requires { Isa::prefetch_l2(p); }) {
    Isa::prefetch_l2(p);
  } else {
    Isa::prefetch(p);
  }
}

// Rows of memory that will be used soon, fetched a row at a time from within a product's loop,
// which waits for arithmetic anyway.
struct RowPrefetch {
  const char* next = nullptr;
  int64_t stride = 0;  // bytes from row to row
  int lines = 0;       // cache lines of a row; 0: nothing to fetch
  int rows = 0;        // that are left

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

FULMEN_INLINE RowPrefetch fetch_rows(const void* first, int64_t stride_bytes, int64_t row_bytes,
                                     int64_t rows) {
  // Where in a line the rows begin: somewhere, unless all begin as the first one does.
  const int64_t offset =
      stride_bytes % 64 == 0 ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % 64) : 63;
  return {static_cast<const char*>(first), stride_bytes,
          static_cast<int>((offset + row_bytes + 63) / 64), static_cast<int>(rows)};
}

}  // namespace fulmen::cpu
