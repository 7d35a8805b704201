// Prefetching of rows that are read once.
#pragma once

#include <climits>
#include <cstdint>

#include "cpu/tile/key_rows.h"
#include "cpu/tile/row_prefetch.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Rows `stride` bytes apart.
class StridedWalk {
 public:
  static constexpr bool kPaged = false;
  FULMEN_INLINE StridedWalk(const void* first, int64_t stride)
      : at_(static_cast<const char*>(first)), stride_(stride) {}
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

// Fetches rows in the order of their addresses into L1, a line or two at a time: the processor
// drops prefetches that come in bursts. Measured on Zen 5: 4 KiB ahead leave bandwidth unused, 32
// KiB fall out of L1, and L2 costs 10 points of its reading rate.
template <class Walk>
class StreamPrefetch {
 public:
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

// Fetches both halves of a block's keys and both of its values into L2, a line of each by turns.
// While products are computed, an Intel server's core reads one stream at 60 to 90 % of its
// memory's rate and four at 85 to 95 % (docs/lab/cpu_decode.md).
template <class Walk>
class BlockPrefetch {
 public:
  static constexpr int kStreams = 4;  // keys, values, keys, values
  static constexpr bool kPaged = Walk::kPaged;

  // Bytes of keys' rows and of values', and rows of a half.
  FULMEN_INLINE BlockPrefetch(const Walk (&walks)[kStreams], int64_t key_bytes, int64_t value_bytes,
                              int64_t rows)
      : walks_{walks[0], walks[1], walks[2], walks[3]},
        shorter_(key_bytes < value_bytes ? key_bytes : value_bytes),
        longer_(key_bytes < value_bytes ? value_bytes : key_bytes),
        longer_stream_(key_bytes < value_bytes ? 1 : 0),
        rows_left_(rows) {
    find();
  }

  // A first block, which has none before it.
  template <class Isa>
  __attribute__((noinline)) void all() {
    lines<Isa>(INT_MAX);
  }
  template <class Isa>
  FULMEN_INLINE void lines(int count) {
    if (rows_left_ <= 0) return;
    due_ += count;
    for (;;) {
      const bool all = offset_ < shorter_;
      const int step = all ? kStreams : 2;
      if (due_ < step) return;
      due_ -= step;
      if (all) {
#pragma GCC unroll 4
        for (int stream = 0; stream < kStreams; ++stream)
          prefetch_into_l2<Isa>(at_[stream] + offset_);
      } else {
        prefetch_into_l2<Isa>(at_[longer_stream_] + offset_);
        prefetch_into_l2<Isa>(at_[longer_stream_ + 2] + offset_);
      }
      offset_ += 64;
      if (offset_ >= longer_ && !next_rows()) return;
    }
  }

 private:
  // Whether there are any.
  FULMEN_INLINE bool next_rows() {
    offset_ = 0;
    if (--rows_left_ <= 0) return false;
    for (Walk& walk : walks_) walk.next();
    find();
    return true;
  }
  FULMEN_INLINE void find() {
    for (int stream = 0; stream < kStreams; ++stream) at_[stream] = walks_[stream].at();
  }

  Walk walks_[kStreams];
  const char* at_[kStreams];
  int64_t shorter_, longer_;
  int longer_stream_;
  int due_ = 0;  // lines that calls have asked for
  int64_t rows_left_;
  int64_t offset_ = 0;
};

}  // namespace fulmen::cpu
