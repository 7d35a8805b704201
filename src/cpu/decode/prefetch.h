// What decode's products fetch while they read rows of keys or values, a group of rows at a time.
#pragma once

#include <cstdint>

#include "cpu/decode/stream_prefetch.h"
#include "cpu/tile/row_prefetch.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// The rows that follow, in the order of their addresses, whatever rows are read.
template <class Walk>
class StreamAhead {
 public:
  FULMEN_INLINE explicit StreamAhead(const StreamPrefetch<Walk>& stream) : stream_(stream) {}
  FULMEN_INLINE void begin(int /*group*/) {}
  // The second four query rows of a KV head read what the first ones have read.
  FULMEN_INLINE void next_quad() { reads_again_ = true; }
  FULMEN_INLINE void next_head() { reads_again_ = false; }
  template <class Isa, int kKeys, int kBytes>
  FULMEN_INLINE void read(int /*row*/, int64_t /*element*/) {
    if (reads_again_) return;
    constexpr int kWholeLines = kKeys * kBytes / 64, kLines = kWholeLines > 0 ? kWholeLines : 1;
    stream_.template lines<Isa, kLines>();
  }

 private:
  StreamPrefetch<Walk> stream_;
  bool reads_again_ = false;
};

// For rows that lie in L1.
struct FetchNothing {
  FULMEN_INLINE void begin(int /*group*/) const {}
  FULMEN_INLINE void next_quad() const {}
  FULMEN_INLINE void next_head() const {}
  template <class Isa, int kKeys, int kBytes>
  FULMEN_INLINE void read(int /*row*/, int64_t /*element*/) const {}
};

// A block of keys or of values, at the task's first head.
template <class Rows>
struct BlockRows {
  Rows rows;
  int64_t head_stride;  // elements
};

enum class DecodeProduct { scores, values };

// The next block, into L2: for each row that is read a row of it, and of that the lines that are
// read of this one. So it comes evenly, without counting, and from four places at a time, as an
// Intel server's memory likes it (stream_prefetch.h). Where a KV head has two groups of four query
// rows, the second asks for the same lines once more: a test for that costs more than they do.
template <class T, class Rows, int kRows>
class BlockAhead {
  static constexpr int kStreams = 4;
  static constexpr int kOfStream = kRows / kStreams;  // rows of a group
  static_assert(kRows % kStreams == 0);

 public:
  // The next block, of count > 0 keys and no more than this one. alike: keys and values have rows
  // of one length; then each product fetches some from both halves of both, else four parts of what
  // it reads.
  FULMEN_INLINE BlockAhead(DecodeProduct product, const BlockRows<Rows>& keys,
                           const BlockRows<Rows>& values, int count, bool alike)
      : blocks_{alike || product == DecodeProduct::scores ? keys : values,
                alike || product == DecodeProduct::values ? values : keys},
        last_(count - 1) {
    const int half = (count + 1) / 2, part = (half + 1) / 2,
              begin = product == DecodeProduct::scores ? 0 : part;
#pragma GCC unroll 4
    for (int stream = 0; stream < kStreams; ++stream)
      first_[stream] = alike ? stream / 2 * half + begin : stream * part;
  }

  // For the group-th kRows rows of this block.
  FULMEN_INLINE void begin(int group) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const int row = first_[i % kStreams] + group * kOfStream + i / kStreams;
      at_[i] = blocks_[i % 2].rows[row < last_ ? row : last_];
    }
  }
  FULMEN_INLINE void next_quad() const {}
  FULMEN_INLINE void next_head() {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) at_[i] += blocks_[i % 2].head_stride;
  }
  // kBytes from an element on are about to be read of each of kKeys rows, from the row-th of the
  // group on.
  template <class Isa, int kKeys, int kBytes>
  FULMEN_INLINE void read(int row, int64_t element) const {
    constexpr int kLines = (kBytes + 63) / 64;
#pragma GCC unroll 8
    for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line)
        prefetch_into_l2<Isa>(reinterpret_cast<const char*>(at_[row + i] + element) + line * 64);
    }
  }

 private:
  BlockRows<Rows> blocks_[2];  // of even streams, of odd ones
  int last_;
  int first_[kStreams];
  const T* at_[kRows] = {};
};

}  // namespace fulmen::cpu
