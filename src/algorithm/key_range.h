// Which keys a query row, or a tile of rows, attends under causal and window masks. Freestanding:
// host and device share it.
#pragma once

namespace fulmen::algorithm {

using Index = long long;

#if defined(__CUDACC__)
#define FULMEN_ALGORITHM __host__ __device__ constexpr
#elif defined(__HIP__)
#define FULMEN_ALGORITHM __attribute__((host, device, always_inline)) constexpr
#else
// Always inlined: a copy compiled for one instruction set must never be linked into code that runs
// without it. AMD's kernels are to be one function, and clang 22 made calls in large ones.
#define FULMEN_ALGORITHM constexpr __attribute__((always_inline))
#endif

// Half-open range of keys.
struct KeyRange {
  Index begin = 0;
  Index end = 0;
};

// The band of keys around the diagonal: row i attends j with
// i + diagonal - left <= j <= i + diagonal + right; negative is unlimited.
struct Band {
  Index seqlen_k = 0;
  Index diagonal = 0;
  Index left = -1;
  Index right = -1;

  FULMEN_ALGORITHM static Index clamp(Index value, Index low, Index high) {
    return value < low ? low : (value > high ? high : value);
  }
  FULMEN_ALGORITHM Index first(Index row) const {
    return left < 0 ? 0 : clamp(row + diagonal - left, 0, seqlen_k);
  }
  FULMEN_ALGORITHM Index last_plus_one(Index row) const {
    return right < 0 ? seqlen_k : clamp(row + diagonal + right + 1, 0, seqlen_k);
  }
  // Keys that at least one of the rows [row_begin, row_end) may attend.
  FULMEN_ALGORITHM KeyRange any(Index row_begin, Index row_end) const {
    if (row_begin >= row_end) return {0, 0};
    const Index begin = first(row_begin);
    const Index end = last_plus_one(row_end - 1);
    return {begin, end < begin ? begin : end};
  }
  // Keys that every one of the rows attends: tiles inside need no mask.
  FULMEN_ALGORITHM KeyRange all(Index row_begin, Index row_end) const {
    if (row_begin >= row_end) return {0, 0};
    const Index begin = first(row_end - 1);
    const Index end = last_plus_one(row_begin);
    return {begin, end < begin ? begin : end};
  }
};

}  // namespace fulmen::algorithm
