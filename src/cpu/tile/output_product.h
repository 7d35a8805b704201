// The second product of the tile algorithm, and where its sums go.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu/tile/row_spans.h"
#include "cpu/tile/step_prefetch.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// How P lies in memory: the distance in words between query rows, and between words of keys.
struct QueriesInLanes {
  static constexpr int kRowStride = 1;
  static constexpr int kWordStride = kBlockM;
};
struct KeysInLanes {
  static constexpr int kRowStride = kBlockM;
  static constexpr int kWordStride = 1;
};

// Where the second product goes: what a block's sums start from, and what is done with them.
enum class OutputKind {
  first,       // output = P V
  accumulate,  // output += P V
  rescale,     // output = rescale * output + P V
};

// Into the scratch tile [rows][stride], for later tiles of keys.
template <class Isa, OutputKind kKind>
struct ScratchOutput {
  static constexpr int kStepWords = kWholeBlock;
  float* out;
  int64_t stride;
  const float* rescale;  // [rows], for kind rescale

  FULMEN_INLINE void step() const {}
  FULMEN_INLINE typename Isa::Vec start(int row, int column) const {
    if constexpr (kKind == OutputKind::first) return Isa::zero();
    const auto old = Isa::load(out + row * stride + column);
    if constexpr (kKind == OutputKind::rescale) return Isa::mul(old, Isa::broadcast(rescale + row));
    return old;
  }
  FULMEN_INLINE bool writes(int /*row*/) const { return true; }
  FULMEN_INLINE void end(int row, int column, typename Isa::Vec sum, bool /*whole*/) const {
    Isa::store(out + row * stride + column, sum);
  }
};

// Body(a type whose value says whether stores go past the caches): never where the instruction set
// has no such stores.
template <class Isa, class Body>
FULMEN_INLINE void with_streams(bool streams, const Body& body) {
  if constexpr (requires { Isa::end_streams(); }) {
    if (streams) return body(std::true_type{});
  }
  body(std::false_type{});
}

// Waits until all that went past the caches has reached memory.
template <class Isa>
FULMEN_INLINE void end_streams() {
  if constexpr (requires { Isa::end_streams(); }) Isa::end_streams();
}

// Normalised and rounded, straight into the caller's tensor, for rows whose keys all lie in this
// tile. kStreams: past the caches; then every row begins and ends at a cache line.
template <class Isa, class T, bool kStreams>
struct FinalOutput {
  static constexpr int kStepWords = kShortStepWords;
  T* out;
  int64_t stride;
  const float* factor;  // [rows]
  int rows;             // rows from here on are padding and not written
  int dim;              // columns likewise
  StepPrefetch<Isa>* ahead;

  FULMEN_INLINE void step() const { ahead->step(); }
  FULMEN_INLINE typename Isa::Vec start(int /*row*/, int /*column*/) const { return Isa::zero(); }
  FULMEN_INLINE bool writes(int row) const { return row < rows; }
  FULMEN_INLINE void end(int row, int column, typename Isa::Vec sum, bool whole) const {
    const auto x = Isa::mul(sum, Isa::broadcast(factor + row));
    if constexpr (kStreams) {
      Isa::stream_from_float(out + row * stride + column, x);
    } else if (whole || column + Isa::kLanes <= dim) {
      Isa::store_from_float(out + row * stride + column, x);
    } else {
      Isa::store_from_float(out + row * stride + column, x, dim - column);
    }
  }
};

// One register block of O: kRows query rows x kVecs vectors of V's head_dim. Only the last vector
// may reach beyond the last column. step() as in score_block.
template <class Isa, class P, int kVecs, int kRows, class Output>
FULMEN_INLINE void output_block(const float* p,  // P, at the first of the rows
                                const float* v,  // [words][v_stride], at the first of the columns
                                int64_t v_stride, int words, const Output& output, int row,
                                int column) {
  using Vec = typename Isa::Vec;
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) sum[r][c] = output.start(row + r, column + c * Isa::kLanes);
  }
  int w = 0;
  do {
    output.step();
    const int end = words - w > Output::kStepWords ? w + Output::kStepWords : words;
    for (; w < end; ++w, p += P::kWordStride, v += v_stride) {
      Vec value[kVecs];
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) value[c] = Isa::load(v + c * Isa::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec probability = Isa::broadcast(p + r * P::kRowStride);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::dot(sum[r][c], value[c], probability);
      }
    }
  } while (w < words);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (!output.writes(row + r)) continue;
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c)
      output.end(row + r, column + c * Isa::kLanes, sum[r][c], c + 1 < kVecs);
  }
}

template <class Isa, class P, int kVecs, class Spans, class Output>
FULMEN_INLINE void output_columns(const float* p, const float* v, int64_t v_stride,
                                  const Spans& spans, int rows, const Output& output, int column) {
  constexpr int kRows = kVecs < 3 ? Isa::kPvRowsNarrow : Isa::kPvRows;
  // Sixes or eights, and fours, make every multiple of 4: no row lies beyond the tile, whose rows
  // are one.
  constexpr int kLastRows = 4;
  static_assert(kRows >= kLastRows && kBlockM % kLastRows == 0,
                "rows of the last register block must divide the tile");
  const auto block = [&]<int kBlockRows>(int row) __attribute__((always_inline)) {
    const KeySpan words = spans.of(row, kBlockRows);
    output_block<Isa, P, kVecs, kBlockRows>(
        p + row * P::kRowStride + static_cast<int64_t>(words.begin) * P::kWordStride,
        v + column + words.begin * v_stride, v_stride, words.count(), output, row, column);
  };
  int row = 0;
  if constexpr (kRows > kLastRows) {
    for (int left = static_cast<int>(round_up(rows, kLastRows));
         left >= kRows && (kRows == 8 || left != 2 * kLastRows); left -= kRows, row += kRows) {
      block.template operator()<kRows>(row);
    }
  }
  for (; row < rows; row += kLastRows) {
    block.template operator()<kLastRows>(row);
  }
}

// Vectors of the next block of columns where `left` are left. Even blocks: 6 go as 3 + 3, not
// 4 + 2, which keeps every block's ratio of products to loads high.
template <class Isa>
FULMEN_INLINE int output_block_vecs(int left) {
  const int blocks = (left + Isa::kPvVecs - 1) / Isa::kPvVecs;
  return (left + blocks - 1) / blocks;
}

// Whether each block of columns is whole cache lines of elements of `size` bytes, in rows that are
// (rows_are_lines).
template <class Isa>
FULMEN_INLINE bool output_blocks_are_lines(int64_t dim, int64_t size) {
  for (int left = static_cast<int>(round_up(dim, Isa::kLanes) / Isa::kLanes), count = 0; left > 0;
       left -= count) {
    count = output_block_vecs<Isa>(left);
    if (count * Isa::kLanes * size % 64 != 0) return false;
  }
  return true;
}

// O tile from P and so many columns, whole vectors, of the V panel [words][v_stride]. Rows are
// computed up to a multiple of 4. spans: the words that each register block's rows need.
template <class Isa, class P, class Spans, class Output>
__attribute__((noinline)) void output_tile(const float* p, const float* v, int64_t v_stride,
                                           int64_t columns, const Spans& spans, int rows,
                                           const Output& output) {
  const int vecs = static_cast<int>(columns / Isa::kLanes);
  for (int done = 0, count = 0; done < vecs; done += count) {
    count = output_block_vecs<Isa>(vecs - done);
    const int column = done * Isa::kLanes;
    if (Isa::kPvVecs >= 4 && count == 4) {
      output_columns<Isa, P, 4>(p, v, v_stride, spans, rows, output, column);
    } else if (Isa::kPvVecs >= 3 && count == 3) {
      output_columns<Isa, P, 3>(p, v, v_stride, spans, rows, output, column);
    } else if (count == 2) {
      output_columns<Isa, P, 2>(p, v, v_stride, spans, rows, output, column);
    } else {
      output_columns<Isa, P, 1>(p, v, v_stride, spans, rows, output, column);
    }
  }
}

// `words` for all rows.
template <class Isa, class P, class Output>
FULMEN_INLINE void output_tile(const float* p, const float* v, int64_t v_stride, int64_t columns,
                               int words, int rows, const Output& output) {
  output_tile<Isa, P>(p, v, v_stride, columns, SameSpan{{0, words}}, rows, output);
}

// Steps of output_tile's output, as score_steps.
template <class Isa, int kStepWords = kFetchWords>
FULMEN_INLINE int64_t output_steps(int64_t columns, int words, int rows) {
  const int64_t vecs = columns / Isa::kLanes;
  const int64_t blocks = (vecs + Isa::kPvVecs - 1) / Isa::kPvVecs;
  const int64_t block_rows = vecs < 3 * blocks ? Isa::kPvRowsNarrow : Isa::kPvRows;
  const int64_t steps = blocks * (rows / block_rows) * ((words + kStepWords - 1) / kStepWords);
  return steps > 0 ? steps : 1;
}

}  // namespace fulmen::cpu
