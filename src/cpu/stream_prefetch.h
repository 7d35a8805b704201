// Prefetching of rows that are read once.
#pragma once

#include <cstdint>

#include "cpu/key_rows.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// Rows `stride` bytes apart.
class StridedWalk {
 public:
  static constexpr bool kPaged = false;
  FULMEN_INLINE StridedWalk(const void* first, int64_t stride) : at_(static_cast<const char*>(first)), stride_(stride) {}
  FULMEN_INLINE const char* at() const { return at_; }
  FULMEN_INLINE void next() { at_ += stride_; }

 private:
  const char* at_;
  int64_t stride_;
};

// The same through pages. base: of the first head in the tensor, whose elements have element_bytes.
class PagedWalk {
 public:
  static constexpr bool kPaged = true;
  FULMEN_INLINE PagedWalk(const void* base, int64_t element_bytes, const PageWalk& rows)
      : base_(static_cast<const char*>(base)), element_bytes_(element_bytes), rows_(rows) {}
  FULMEN_INLINE const char* at() const { return base_ + rows_.offset() * element_bytes_; }
  FULMEN_INLINE void next() { rows_.next(); }

 private:
  const char* base_;
  int64_t element_bytes_;
  PageWalk rows_;
};

// Fetches rows in the order of their addresses into L1, a line or two at a time: the processor drops prefetches that come in
// bursts. Measured on Zen 5: 4 KiB ahead leave bandwidth unused, 32 KiB fall out of L1, and L2 costs 10 points of its reading rate.
template <class Walk>
class StreamPrefetch {
 public:
  static constexpr bool kPaged = Walk::kPaged;
  static constexpr int64_t kAheadBytes = 10 * 1024;

  FULMEN_INLINE StreamPrefetch(const Walk& walk, int64_t row_bytes, int64_t rows)
      : walk_(walk), row_bytes_(row_bytes), rows_left_(rows) {}

  template <class Isa, int kLines>
  FULMEN_INLINE void lines() {
    if (rows_left_ <= 0) return;
    const char* at = walk_.at() + offset_;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) Isa::prefetch(at + i * 64);
    offset_ += kLines * 64;
    if (offset_ >= row_bytes_) {
      offset_ = 0;
      if (--rows_left_ > 0) walk_.next();
    }
  }

 private:
  Walk walk_;
  int64_t row_bytes_;
  int64_t rows_left_;
  int64_t offset_ = 0;
};

// Fetches both halves of a block's keys and both of its values into L2, lines of the four by turns. An Intel server's core has its
// memory only half busy with one stream while products are computed, and nearly always with four (docs/performance/cpu.md).
template <class Walk>
class BlockPrefetch {
 public:
  static constexpr bool kPaged = Walk::kPaged;
  static constexpr int kStreams = 4;

  // rows: of a half. row_bytes: of the longer of keys' and values' rows.
  FULMEN_INLINE BlockPrefetch(const Walk (&walks)[kStreams], int64_t row_bytes, int64_t rows)
      : walks_{walks[0], walks[1], walks[2], walks[3]}, row_bytes_(row_bytes), rows_left_(rows) {
    find();
  }

  template <class Isa, int kLines>
  FULMEN_INLINE void lines() {
    if (rows_left_ <= 0) return;
    if constexpr (kLines < kStreams) {  // a line of each every few calls
      lines_due_ += kLines;
      if (lines_due_ < kStreams) return;
      lines_due_ = 0;
    }
    constexpr int kEach = kLines < kStreams ? 1 : kLines / kStreams;
#pragma GCC unroll 4
    for (int stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 4
      for (int i = 0; i < kEach; ++i) Isa::prefetch_l2(at_[stream] + offset_ + i * 64);
    }
    advance(kEach * 64);
  }

 private:
  FULMEN_INLINE void advance(int64_t bytes) {
    offset_ += bytes;
    if (offset_ < row_bytes_) return;
    offset_ = 0;
    if (--rows_left_ <= 0) return;
    for (Walk& walk : walks_) walk.next();
    find();
  }
  FULMEN_INLINE void find() {
    for (int stream = 0; stream < kStreams; ++stream) at_[stream] = walks_[stream].at();
  }

  Walk walks_[kStreams];
  const char* at_[kStreams];
  int64_t row_bytes_;
  int64_t rows_left_;
  int64_t offset_ = 0;
  int lines_due_ = 0;
};

}  // namespace fulmen::cpu
