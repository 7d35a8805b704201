// Prefetching of rows that are read once.
#pragma once

#include <cstdint>

#include "cpu/key_rows.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// How far ahead, and into which cache. Measured on Zen 5: 4 KiB leave bandwidth unused, 32 KiB fall out of L1, and L2 costs 10
// points of its reading rate. On a Xeon with AMX L2 gains 10 to 13 points: L1 has few lines in flight there, and its own prefetcher
// helps L2's.
struct IntoL1 {
  static constexpr int64_t kAheadBytes = 10 * 1024;
  template <class Isa>
  static FULMEN_INLINE void prefetch(const void* p) {
    Isa::prefetch(p);
  }
};
struct IntoL2 {
  static constexpr int64_t kAheadBytes = 4 * 1024;
  template <class Isa>
  static FULMEN_INLINE void prefetch(const void* p) {
    Isa::prefetch_l2(p);
  }
};

// Fetches rows of memory in the order of their addresses, a line or two at a time: the processor drops prefetches that come in
// bursts.
template <class Into>
class StreamPrefetch {
 public:
  static constexpr bool kPaged = false;
  static constexpr int64_t kAheadBytes = Into::kAheadBytes;

  FULMEN_INLINE StreamPrefetch(const void* base, int64_t stride, int64_t row_bytes, int64_t first, int64_t last)
      : at_(static_cast<const char*>(base) + first * stride), stride_(stride), row_bytes_(row_bytes), rows_left_(last - first) {}

  template <class Isa, int kLines>
  FULMEN_INLINE void lines() {
    if (rows_left_ <= 0) return;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) Into::template prefetch<Isa>(at_ + offset_ + i * 64);
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
template <class Into>
class PagePrefetch {
 public:
  static constexpr bool kPaged = true;
  static constexpr int64_t kAheadBytes = Into::kAheadBytes;

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
    for (int i = 0; i < kLines; ++i) Into::template prefetch<Isa>(at + offset_ + i * 64);
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
