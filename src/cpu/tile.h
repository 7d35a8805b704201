// The tile algorithm of the CPU kernels, over an instruction set's vocabulary (cpu/isa/*.h): no intrinsics here.
//
// Queries lie in SIMD lanes: the score tile is S^T = K Q^T, [keys][block_m], so that a row's max and sum are lane-wise, K is read
// by broadcast in its natural layout, and only Q is transposed. The second product takes P^T by broadcast and V in its natural
// layout (16-bit pairs: key rows interleaved), so the output needs no transpose. A "word" is 32 bits: one fp32, or a pair of 16-bit
// elements.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"

// Always inlined: a copy compiled for one instruction set must never be linked into code that runs without it.
#define FULMEN_INLINE inline __attribute__((always_inline))

namespace fulmen::cpu {

constexpr int kBlockM = 64;      // query rows of a tile
constexpr int kMaxBlockN = 128;  // most key rows of a tile

constexpr __attribute__((always_inline)) int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// How a raw product becomes a score in base-2 units.
enum class ScoreKind {
  plain,     // stays raw; the softmax multiplies by scale * log2(e)
  additive,  // scale * log2(e) * raw + the additive tile, whose -inf wins over everything (a masked key may hold NaN)
  softcap,   // softcap * log2(e) * tanh(scale / softcap * raw) + the additive tile
};

struct ScoreScale {
  float log2_scale = 1;    // scale * log2(e)
  float tanh_scale = 0;    // 2 * log2(e) * scale / softcap
  float log2_softcap = 0;  // softcap * log2(e)
};

// tanh(y) = 1 - 2 / (1 + 2^(2 y log2(e))), from z = 2 y log2(e); clamped where it is 1 in fp32.
template <class Isa>
FULMEN_INLINE typename Isa::Vec tanh_from_log2(typename Isa::Vec z) {
  const auto limited = Isa::min(Isa::set1(60.0F), Isa::max(Isa::set1(-60.0F), z));
  return Isa::sub(Isa::set1(1.0F), Isa::div(Isa::set1(2.0F), Isa::add(Isa::set1(1.0F), Isa::template exp2<5>(limited))));
}

// A raw product and what is added to it -> the score, of a kind other than plain.
template <class Isa, ScoreKind kKind>
FULMEN_INLINE typename Isa::Vec finished_score(typename Isa::Vec raw, typename Isa::Vec extra, const ScoreScale& scale) {
  typename Isa::Vec score;
  if constexpr (kKind == ScoreKind::softcap) {
    const auto t = tanh_from_log2<Isa>(Isa::mul(raw, Isa::set1(scale.tanh_scale)));
    score = Isa::fused(t, Isa::set1(scale.log2_softcap), extra);
  } else {
    score = Isa::fused(raw, Isa::set1(scale.log2_scale), extra);
  }
  return Isa::select_minus_infinity(extra, extra, score);
}

// Rows of memory that will be used soon, fetched a row at a time from within a product's loop, which waits for arithmetic anyway.
struct RowPrefetch {
  const char* next = nullptr;
  int64_t stride = 0;  // bytes from row to row
  int lines = 0;       // cache lines of a row; 0: nothing to fetch
  int rows = 0;        // that are left

  // Short rows go kCount at a time, before a register block (at the end a few past the last, which does no harm); long ones one at
  // a time, after each of the block's rows: the processor drops prefetches that come in bursts.
  template <class Isa, int kCount>
  FULMEN_INLINE void short_rows() {
    if (rows <= 0 || lines > 2) return;
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i, next += stride) Isa::prefetch(next);
    if (lines == 2) {
      const char* second = next - kCount * stride + 64;
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i, second += stride) Isa::prefetch(second);
    }
    rows -= kCount;
  }
  template <class Isa>
  FULMEN_INLINE void long_row() {
    if (lines > 2) any_row<Isa>();
  }
  template <class Isa>
  FULMEN_INLINE void any_row() {
    if (rows <= 0) return;
    for (int64_t at = 0; at < static_cast<int64_t>(lines) * 64; at += 64) Isa::prefetch(next + at);
    next += stride;
    --rows;
  }
};

FULMEN_INLINE RowPrefetch fetch_rows(const void* first, int64_t stride_bytes, int64_t row_bytes, int64_t rows) {
  // Where in a line the rows begin: somewhere, unless all begin as the first one does.
  const int64_t offset = stride_bytes % 64 == 0 ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % 64) : 63;
  return {static_cast<const char*>(first), stride_bytes, static_cast<int>((offset + row_bytes + 63) / 64), static_cast<int>(rows)};
}

// One register block of a score product: kRows rows of words by broadcast x kVecs vectors of lanes; the sums go to the epilogue.
template <class Isa, int kVecs, int kRows, class Block>
FULMEN_INLINE void score_block(const float* lanes,  // [words][kBlockM]
                               const float* rows,   // kRows rows of words, stride floats apart
                               int64_t stride, int words, int first_row, Block& epilogue) {
  using Vec = typename Isa::Vec;
  epilogue.template begin<kRows>();
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Isa::zero();
  }
  for (int w = 0; w < words; ++w, lanes += kBlockM) {
    Vec lane[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) lane[v] = Isa::load(lanes + v * Isa::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec row = Isa::broadcast(rows + r * stride + w);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[r][v] = Isa::dot(sum[r][v], lane[v], row);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) epilogue.row(sum[r], first_row + r);
}

template <class Isa, int kVecs, class Epilogue>
FULMEN_INLINE void score_rows(const float* lanes, const float* rows, int64_t stride, int words, int count, const Epilogue& epilogue,
                              int at) {
  typename Epilogue::template Block<kVecs> block(epilogue, at);
  // Narrower blocks are the few last columns of few tiles: not worth the code of longer ones.
  constexpr int kShort = 4, kRows = kVecs == Isa::kQkVecs ? Isa::kQkKeys : kShort;
  int row = 0;
  // Blocks of 6: 64 rows end with one of 4, and 128 with two.
  for (; row + kRows <= count && (kRows == kShort || count - row != 2 * kShort); row += kRows) {
    score_block<Isa, kVecs, kRows>(lanes + at, rows + row * stride, stride, words, row, block);
  }
  if constexpr (kRows > kShort) {
    for (; row + kShort <= count; row += kShort) {
      score_block<Isa, kVecs, kShort>(lanes + at, rows + row * stride, stride, words, row, block);
    }
  }
  for (; row < count; ++row) score_block<Isa, kVecs, 1>(lanes + at, rows + row * stride, stride, words, row, block);
  block.end();
}

// The score product of a tile: `count` rows of words against `lanes` columns (rounded up to whole vectors) of a transposed panel.
template <class Isa, class Epilogue>
__attribute__((noinline)) void score_tile(const float* panel, int lanes, const float* rows, int64_t stride, int words, int count,
                                          const Epilogue& epilogue) {
  const int vecs = static_cast<int>(round_up(lanes, Isa::kLanes) / Isa::kLanes);
  for (int first = 0; first < vecs; first += Isa::kQkVecs) {
    const int at = first * Isa::kLanes;
    const int left = vecs - first;
    if (left >= Isa::kQkVecs) {
      score_rows<Isa, Isa::kQkVecs>(panel, rows, stride, words, count, epilogue, at);
    } else if (Isa::kQkVecs > 3 && left == 3) {
      score_rows<Isa, 3>(panel, rows, stride, words, count, epilogue, at);
    } else if (Isa::kQkVecs > 2 && left == 2) {
      score_rows<Isa, 2>(panel, rows, stride, words, count, epilogue, at);
    } else {
      score_rows<Isa, 1>(panel, rows, stride, words, count, epilogue, at);
    }
  }
}

// Epilogue of S^T = K Q^T, queries in lanes: scores [keys][kBlockM] and each query's maximum.
template <class Isa, ScoreKind kKind>
struct QueryLaneScores {
  ScoreScale scale;
  const float* additive;  // [keys][kBlockM], for other kinds than plain
  float* scores;          // [keys][kBlockM]
  float* tile_max;        // [kBlockM]
  RowPrefetch* ahead;     // two of them, the second after the first
  int ahead_rows;         // rows fetched at a register block

  template <int kVecs>
  struct Block {
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const QueryLaneScores& tile, int at) : tile_(tile), at_(at) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) max_[v] = Isa::set1(-__builtin_inff());
    }
    template <int kRows>
    FULMEN_INLINE void begin() {
      if (at_ > 0) return;
      RowPrefetch& rows = tile_.ahead[tile_.ahead[0].rows > 0 ? 0 : 1];
      for (int i = 0; i < tile_.ahead_rows; ++i) rows.template any_row<Isa>();
    }
    FULMEN_INLINE void row(const Vec (&sum)[kVecs], int key) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        Vec score = sum[v];
        const int to = key * kBlockM + at_ + v * Isa::kLanes;
        if constexpr (kKind != ScoreKind::plain)
          score = finished_score<Isa, kKind>(score, Isa::load(tile_.additive + to), tile_.scale);
        max_[v] = Isa::max(max_[v], score);
        Isa::store(tile_.scores + to, score);
      }
    }
    FULMEN_INLINE void end() {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) Isa::store(tile_.tile_max + at_ + v * Isa::kLanes, max_[v]);
    }
    const QueryLaneScores& tile_;
    int at_;
    Vec max_[kVecs];
  };
};

// Epilogue of S = Q K^T, keys in lanes: scores [rows][kBlockM] and, per row, the maximum of each lane. With a bias (null: none) the
// scores are scale * raw + bias, else they stay raw. kRagged: the keys end within a vector, whose other lanes become -inf.
template <class Isa, class BiasT, bool kRagged>
struct KeyLaneScores {
  int keys;
  float scale;
  const BiasT* bias;
  int64_t bias_stride;
  float* scores;       // [rows][kBlockM]
  float* lane_max;     // [rows][kLanes]
  RowPrefetch* ahead;  // two of them

  template <int kVecs>
  struct Block {
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const KeyLaneScores& tile, int at) : tile_(tile), at_(at) {}
    template <int kRows>
    FULMEN_INLINE void begin() {
      if (at_ > 0) return;
      tile_.ahead[0].template short_rows<Isa, kRows>();
      tile_.ahead[1].template short_rows<Isa, kRows>();
    }
    FULMEN_INLINE void row(Vec (&score)[kVecs], int row) {
      float* to = tile_.scores + row * kBlockM + at_;
      if (at_ == 0) {
        tile_.ahead[0].template long_row<Isa>();
        tile_.ahead[1].template long_row<Isa>();
      }
      if (tile_.bias != nullptr) {
        const BiasT* bias = tile_.bias + row * tile_.bias_stride + at_;
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          const int left = tile_.keys - at_ - v * Isa::kLanes;
          const bool part = kRagged && left < Isa::kLanes;
          score[v] =
              Isa::fused(score[v], Isa::set1(tile_.scale),
                         part ? Isa::load_as_float(bias + v * Isa::kLanes, left) : Isa::load_as_float(bias + v * Isa::kLanes));
        }
      }
      if constexpr (kRagged) {
        const Vec past = Isa::set1(static_cast<float>(tile_.keys - at_ - (kVecs - 1) * Isa::kLanes) - 0.5F);
        score[kVecs - 1] = Isa::select_less(past, Isa::iota(), Isa::set1(-__builtin_inff()), score[kVecs - 1]);
      }
      Vec max = at_ > 0 ? Isa::load(tile_.lane_max + row * Isa::kLanes) : score[0];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        Isa::store(to + v * Isa::kLanes, score[v]);
        max = Isa::max(max, score[v]);
      }
      Isa::store(tile_.lane_max + row * Isa::kLanes, max);
    }
    FULMEN_INLINE void end() {}
    const KeyLaneScores& tile_;
    int at_;
  };
};

// Per-row state of the online softmax, in lanes: base-2 units.
struct SoftmaxState {
  float max[kBlockM];
  float sum[kBlockM];
  float rescale[kBlockM];  // factor for the output of earlier tiles
};

// What dropout multiplies the probabilities with, after they went into the row's sum: nothing, or factors [keys][kBlockM].
struct NoDropout {
  static constexpr bool kAny = false;
  static constexpr const float* factors = nullptr;
};
struct DropoutFactors {
  static constexpr bool kAny = true;
  const float* factors;
};

// softmax_tile for kVecs vectors of queries; every pointer is at the first of them.
template <class Isa, int kDegree, int kVecs, class Dropout>
FULMEN_INLINE bool softmax_rows(float* scores, const float* tile_max, int keys, float factor, float* max, float* sum_out,
                                float* rescale_out, const float* dropout) {
  using Vec = typename Isa::Vec;
  constexpr int kLanes = Isa::kLanes;
  bool moved = false;
  Vec minus_offset[kVecs], sum[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    const Vec old_max = Isa::load(max + v * kLanes);
    const auto step = algorithm::softmax_step<Isa>(old_max, Isa::mul(Isa::load(tile_max + v * kLanes), Isa::set1(factor)));
    moved |= !Isa::all_equal(step.max, old_max);
    minus_offset[v] = Isa::sub(Isa::zero(), step.offset);
    Isa::store(max + v * kLanes, step.max);
    Isa::store(rescale_out + v * kLanes, step.rescale);
    sum[v] = Isa::zero();
  }
  const Vec f = Isa::set1(factor);
  for (int key = 0; key < keys; key += Isa::kGroup) {
    Vec p[Isa::kGroup][kVecs];
#pragma GCC unroll 2
    for (int i = 0; i < Isa::kGroup; ++i) {
      if (i > 0 && key + i == keys) {  // an odd key's partner
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) p[i][v] = Isa::zero();
        break;
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        p[i][v] = Isa::fused(Isa::load(scores + (key + i) * kBlockM + v * kLanes), f, minus_offset[v]);
      Isa::template exp2<kDegree>(p[i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[v] = Isa::add(sum[v], p[i][v]);
      if constexpr (Dropout::kAny) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) p[i][v] = Isa::mul(p[i][v], Isa::load(dropout + (key + i) * kBlockM + v * kLanes));
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* word = scores + key / Isa::kGroup * kBlockM + v * kLanes;
      if constexpr (Isa::kGroup == 1) {
        Isa::store(word, p[0][v]);
      } else {
        Isa::store(word, Isa::pack_pair(p[0][v], p[1][v]));
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    Isa::store(sum_out + v * kLanes, Isa::fma(Isa::load(sum_out + v * kLanes), Isa::load(rescale_out + v * kLanes), sum[v]));
  }
  return moved;
}

// Turns the score tile into P^T in place (pairs: [keys / 2][kBlockM] words) and updates the state. factor: what turns a stored
// score into base-2 units. Returns false when no row's maximum moved, so that earlier output needs no rescaling.
// kDegree: of the exponential's polynomial.
template <class Isa, int kDegree, class Dropout = NoDropout>
__attribute__((noinline)) bool softmax_tile(float* scores, const float* tile_max, int rows, int keys, float factor,
                                            SoftmaxState& state, Dropout dropout = {}) {
  const int padded_rows = static_cast<int>(round_up(rows, Isa::kLanes));
  bool moved = false;
  int row = 0;
  const auto factors_at = [&](int first)
                              __attribute__((always_inline)) { return Dropout::kAny ? dropout.factors + first : nullptr; };
  for (; row + Isa::kSoftmaxVecs * Isa::kLanes <= padded_rows; row += Isa::kSoftmaxVecs * Isa::kLanes) {
    moved |= softmax_rows<Isa, kDegree, Isa::kSoftmaxVecs, Dropout>(scores + row, tile_max + row, keys, factor, state.max + row,
                                                                    state.sum + row, state.rescale + row, factors_at(row));
  }
  for (; row < padded_rows; row += Isa::kLanes) {
    moved |= softmax_rows<Isa, kDegree, 1, Dropout>(scores + row, tile_max + row, keys, factor, state.max + row, state.sum + row,
                                                    state.rescale + row, factors_at(row));
  }
  return moved;
}

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
  float* out;
  int64_t stride;
  const float* rescale;  // [rows], for kind rescale

  template <int kRows>
  FULMEN_INLINE void begin(int /*column*/) const {}
  FULMEN_INLINE typename Isa::Vec start(int row, int column) const {
    if constexpr (kKind == OutputKind::first) return Isa::zero();
    const auto old = Isa::load(out + row * stride + column);
    if constexpr (kKind == OutputKind::rescale) return Isa::mul(old, Isa::broadcast(rescale + row));
    return old;
  }
  FULMEN_INLINE void end(int row, int column, typename Isa::Vec sum) const { Isa::store(out + row * stride + column, sum); }
};

// Normalised and rounded, straight into the caller's tensor, for rows whose keys all lie in this tile. kStreams: past the caches;
// then every row begins and ends at a cache line.
template <class Isa, class T, bool kStreams>
struct FinalOutput {
  T* out;
  int64_t stride;
  const float* factor;  // [rows]
  int rows;             // rows from here on are padding and not written
  int dim;              // columns likewise
  RowPrefetch* ahead;   // three of them

  template <int kRows>
  FULMEN_INLINE void begin(int column) const {
    if (column > 0) return;
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) ahead[i].template short_rows<Isa, kRows>();
  }
  FULMEN_INLINE typename Isa::Vec start(int /*row*/, int /*column*/) const { return Isa::zero(); }
  FULMEN_INLINE void end(int row, int column, typename Isa::Vec sum) const {
    if (row >= rows) return;
    if (column == 0) {
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) ahead[i].template long_row<Isa>();
    }
    const auto x = Isa::mul(sum, Isa::broadcast(factor + row));
    if constexpr (kStreams) {
      Isa::stream_from_float(out + row * stride + column, x);
    } else if (column + Isa::kLanes <= dim) {
      Isa::store_from_float(out + row * stride + column, x);
    } else {
      Isa::store_from_float(out + row * stride + column, x, dim - column);
    }
  }
};

// One register block of O: kRows query rows x kVecs vectors of V's head_dim.
template <class Isa, class P, int kVecs, int kRows, class Output>
FULMEN_INLINE void output_block(const float* p,  // P, at the first of the rows
                                const float* v,  // [words][v_stride], at the first of the columns
                                int64_t v_stride, int words, const Output& output, int row, int column) {
  using Vec = typename Isa::Vec;
  output.template begin<kRows>(column);
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) sum[r][c] = output.start(row + r, column + c * Isa::kLanes);
  }
  for (int w = 0; w < words; ++w, p += P::kWordStride, v += v_stride) {
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
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) output.end(row + r, column + c * Isa::kLanes, sum[r][c]);
  }
}

template <class Isa, class P, int kVecs, class Output>
FULMEN_INLINE void output_columns(const float* p, const float* v, int64_t v_stride, int words, int rows, const Output& output,
                                  int column) {
  constexpr int kRows = kVecs < 3 ? Isa::kPvRowsNarrow : Isa::kPvRows;
  // Sixes and fours make every multiple of 4: no row lies beyond the tile, whose rows are one.
  constexpr int kLastRows = kRows == 6 ? 4 : kRows;
  static_assert(kBlockM % kLastRows == 0, "rows of the last register block must divide the tile");
  int row = 0;
  if constexpr (kRows == 6) {
    for (int left = static_cast<int>(round_up(rows, kLastRows)); left >= kRows && left != 2 * kLastRows;
         left -= kRows, row += kRows) {
      output_block<Isa, P, kVecs, kRows>(p + row * P::kRowStride, v + column, v_stride, words, output, row, column);
    }
  }
  for (; row < rows; row += kLastRows) {
    output_block<Isa, P, kVecs, kLastRows>(p + row * P::kRowStride, v + column, v_stride, words, output, row, column);
  }
}

// O tile from P and the V panel [words][v_stride]; v_stride is head_dim_v rounded up to whole vectors. Rows are computed up to a
// whole register block.
template <class Isa, class P, class Output>
__attribute__((noinline)) void output_tile(const float* p, const float* v, int64_t v_stride, int words, int rows,
                                           const Output& output) {
  const int vecs = static_cast<int>(v_stride / Isa::kLanes);
  // Even blocks: 6 vectors go as 3 + 3, not 4 + 2, which keeps every block's ratio of products to loads high.
  const int blocks = (vecs + Isa::kPvVecs - 1) / Isa::kPvVecs;
  for (int block = 0, done = 0; block < blocks; ++block) {
    const int count = (vecs - done + (blocks - block) - 1) / (blocks - block);
    const int column = done * Isa::kLanes;
    if (Isa::kPvVecs >= 4 && count == 4) {
      output_columns<Isa, P, 4>(p, v, v_stride, words, rows, output, column);
    } else if (Isa::kPvVecs >= 3 && count == 3) {
      output_columns<Isa, P, 3>(p, v, v_stride, words, rows, output, column);
    } else if (count == 2) {
      output_columns<Isa, P, 2>(p, v, v_stride, words, rows, output, column);
    } else {
      output_columns<Isa, P, 1>(p, v, v_stride, words, rows, output, column);
    }
    done += count;
  }
}

}  // namespace fulmen::cpu
