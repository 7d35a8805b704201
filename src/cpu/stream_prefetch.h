// Prefetching of rows that are read once.
#pragma once

#include <cstdint>

#include "cpu/key_rows.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// Fetches rows of memory in the order of their addresses, a line or two at a time: the processor drops prefetches that come in
// bursts.
class StreamPrefetch {
 public:
  FULMEN_INLINE StreamPrefetch(const void* base, int64_t stride, int64_t row_bytes, int64_t first, int64_t last)
      : at_(static_cast<const char*>(base) + first * stride), stride_(stride), row_bytes_(row_bytes), rows_left_(last - first) {}

  template <class Isa, int kLines>
  FULMEN_INLINE void lines() {
    if (rows_left_ <= 0) return;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) Isa::prefetch(at_ + offset_ + i * 64);
    offset_ += kLines * 64;
    if (offset_ >= row_bytes_) {
      offset_ = 0;
      at_ += stride_;
      --rows_left_;
    }
  }

 private:
  const char* at_;
  int64_t stride_;
  int64_t row_bytes_;
  int64_t rows_left_;
  int64_t offset_ = 0;
};

// The same through pages. base: of the first head in the tensor, whose elements have element_bytes.
class PagePrefetch {
 public:
  FULMEN_INLINE PagePrefetch(const void* base, const PageTable& pages, const TensorSpec& spec, int64_t element_bytes,
                             int64_t row_bytes, int64_t first, int64_t last)
      : base_(static_cast<const char*>(base)),
        walk_(pages, spec, first < last ? first : 0),
        element_bytes_(element_bytes),
        row_bytes_(row_bytes),
        rows_left_(last - first) {}

  template <class Isa, int kLines>
  FULMEN_INLINE void lines() {
    if (rows_left_ <= 0) return;
    const char* at = base_ + walk_.offset() * element_bytes_;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) Isa::prefetch(at + offset_ + i * 64);
    offset_ += kLines * 64;
    if (offset_ >= row_bytes_) {
      offset_ = 0;
      if (--rows_left_ > 0) walk_.next();
    }
  }

 private:
  const char* base_;
  PageWalk walk_;
  int64_t element_bytes_;
  int64_t row_bytes_;
  int64_t rows_left_;
  int64_t offset_ = 0;
};

}  // namespace fulmen::cpu
