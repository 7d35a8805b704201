// Rows of several tensors that will be used soon, fetched evenly over the steps of a product's
// loops.
#pragma once

#include <cstdint>

#include "cpu/tile/row_prefetch.h"

namespace fulmen::cpu {

// A few lines at each step, by turns of the tensors: a processor drops prefetches that come in
// bursts, or waits for them, and its memory is the busier the more streams it has
// (docs/lab/cpu_xeon.md). The same number at each turn until the longest tensor has ended, with the
// others up to a line a turn behind their ends: branches that are foreseen wrongly cost more than
// these. Only step() is inlined: the rest runs once a task, from many places.
template <class Isa>
class StepPrefetch {
 public:
  // into_l2: not into L1, where the instruction set tells them apart.
  FULMEN_INLINE explicit StepPrefetch(bool into_l2) : into_l2_(into_l2) {}

  // Adds these rows; nothing where there are none.
  __attribute__((noinline)) void add(const RowPrefetch& rows) {
    add_lines(rows, 0, 0, static_cast<int64_t>(rows.lines) * rows.rows);
  }
  // Adds the part-th of `parts` equal shares of all lines of these rows.
  __attribute__((noinline)) void add(const RowPrefetch& rows, int64_t part, int64_t parts) {
    const int64_t lines = static_cast<int64_t>(rows.lines) * rows.rows;
    const int64_t begin = lines * part / parts, count = lines * (part + 1) / parts - begin;
    if (count > 0) add_lines(rows, begin / rows.lines, begin % rows.lines, count);
  }
  // Spreads all of it over so many steps, or over as many as there are tensors.
  __attribute__((noinline)) void spread(int64_t steps) {
    const auto most = static_cast<int>(streams_ > 0 && steps > streams_ ? steps / streams_ : 1);
    int shortest = most;
    for (int i = 0; i < streams_; ++i)
      shortest = stream_[i].lines < shortest ? stream_[i].lines : shortest;
    // A stream of fewer lines than turns would run past its end for the rest of them.
    const int turns = shortest > most / 2 ? shortest : (most + 1) / 2;
    int longest = 0;
    for (int i = 0; i < streams_; ++i) {
      Stream& s = stream_[i];
      s.a_turn = (s.lines + turns - 1) / turns;
      const int needed = (s.lines + s.a_turn - 1) / s.a_turn;
      longest = needed > longest ? needed : longest;
    }
    steps_left_ = longest * streams_;
  }

  FULMEN_INLINE void step() {
    if (steps_left_ == 0) return;
    --steps_left_;
    Stream& s = stream_[turn_];
    turn_ = turn_ + 1 == streams_ ? 0 : turn_ + 1;
    const char* next = s.next;
    int at = s.at;
    for (int i = 0; i < s.a_turn; ++i) {
      fetch(next);
      const bool ends = ++at == s.row_lines;
      next += ends ? s.to_next_row : 64;
      at = ends ? 0 : at;
    }
    s.next = next;
    s.at = at;
  }

 private:
  static constexpr int kStreams = 8;
  struct Stream {
    const char* next = nullptr;
    int64_t to_next_row = 0;  // bytes from a row's last line
    int row_lines = 0;
    int at = 0;  // the next line in its row
    int lines = 0;
    int a_turn = 0;
  };

  // `count` lines from a row's at-th on.
  FULMEN_INLINE void add_lines(const RowPrefetch& rows, int64_t row, int64_t at, int64_t count) {
    if (count <= 0 || streams_ == kStreams) return;
    stream_[streams_++] = {rows.next + row * rows.stride + at * 64,
                           rows.stride - (static_cast<int64_t>(rows.lines) - 1) * 64,
                           rows.lines,
                           static_cast<int>(at),
                           static_cast<int>(count),
                           0};
  }
  FULMEN_INLINE void fetch(const void* p) const {
    if (into_l2_) return prefetch_into_l2<Isa>(p);
    Isa::prefetch(p);
  }

  Stream stream_[kStreams];
  int streams_ = 0;
  int turn_ = 0;
  int steps_left_ = 0;
  bool into_l2_;
};

}  // namespace fulmen::cpu
