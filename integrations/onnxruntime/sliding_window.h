// The cache of GroupQueryAttention's sliding_window_cache: it has `rows` rows, of a sequence's last
// positions alone, and at least as many as the window.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fulmen_ort {

// How many rows the cache holds of a sequence that has had `length` tokens. A full cache loses
// rows - window + 1 of its oldest ones at once, so that it need not be moved for each token.
inline int64_t kept_rows(int64_t length, int64_t rows, int64_t window) {
  if (length <= rows) return length;
  const int64_t block = rows - window + 1;
  return length - (length - rows + block - 1) / block * block;
}

}  // namespace fulmen_ort
