// Tiles of the kernels without matrix instructions on their way to LDS, as tile/square.h lays them
// out: a lane moves pieces of 8 dims.
#pragma once

#include "tile/square.h"

namespace fulmen::kernels {

template <int kCount>
FULMEN_DEVICE void store_words(int at, const unsigned (&word)[kCount]) {
#pragma unroll
  for (int w = 0; w < kCount; w += 4)
    lds_store(at + 4 * w, Words<4>{{word[w], word[w + 1], word[w + 2], word[w + 3]}});
}

// Dims [dim, dim + kChunk) of a tile's kCount rows as rows.
template <bool kClamped, int kCount, class Source>
FULMEN_DEVICE void stage_rows(const Source& source, int dim, int dims, int at, int pitch) {
  constexpr int kPieces = kChunk / kPieceDims;
  const int piece = thread_id() % kPieces;
#pragma unroll
  for (int n = 0; n < kCount * kPieces; n += kWorkgroup) {
    const int row = (thread_id() + n) / kPieces;
    if (kCount * kPieces % kWorkgroup != 0 && row >= kCount) continue;
    PieceOfWords word;
    load_words(source.template row<kClamped>(row), dim + kPieceDims * piece, dims, word);
    store_words(at + row * pitch + 4 * kPieceWords * piece, word);
  }
}

// Dims [dim, dim + kChunk) of a tile of columns as values. Columns that `alive` says no to, and
// those past the last one, are 0.
template <bool kClamped, class Source, class Alive>
FULMEN_DEVICE void stage_values(const Source& source, int dim, int dims, int at,
                                const Alive& alive) {
  constexpr int kPieces = kChunk / kPieceDims, kCount = kBlockN / kInWord;
  const int piece = thread_id() % kPieces;
  const auto load = [&](int row, PieceOfWords& word) {
    load_words(source.template row<kClamped>(row), dim + kPieceDims * piece, dims, word);
    if (alive(row)) return;
#pragma unroll
    for (unsigned& w : word) w = 0;
  };
#pragma unroll
  for (int n = 0; n < kCount * kPieces; n += kWorkgroup) {
    const int row = (thread_id() + n) / kPieces;
    if (kCount * kPieces % kWorkgroup != 0 && row >= kCount) continue;
    const int to = at + row * kValuePitch + 4 * kPieceDims * piece;
    if constexpr (kPairs) {
      const int column = row / kSide * 2 * kSide + row % kSide;
      PieceOfWords low, high;
      load(column, low);
      load(column + kSide, high);
      unsigned word[kPieceDims];
#pragma unroll
      for (int w = 0; w < kPieceWords; ++w) {
        word[2 * w] = halves(low[w], high[w], false);
        word[2 * w + 1] = halves(low[w], high[w], true);
      }
      store_words(to, word);
    } else {
      PieceOfWords word;
      load(row, word);
      store_words(to, word);
    }
  }
}

template <class T, int kCount>
using WordsOf = Words<kCount* static_cast<int>(sizeof(T)) / 4>;

// Numbers as they lie in memory, rounded to T. A template: elsewhere NVRTC wants pack<float>()
// defined, though its branch is not taken.
template <class T, int kCount>
FULMEN_DEVICE WordsOf<T, kCount> rounded_words(const float (&x)[kCount]) {
  WordsOf<T, kCount> words;
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(words)) / 4; ++w) {
    if constexpr (sizeof(T) == 4) {
      words.word[w] = float_bits(x[w]);
    } else {
      words.word[w] = pack<T>(x[2 * w], x[2 * w + 1]);
    }
  }
  return words;
}

// A lane's dims of a row of results, from `dim` on.
FULMEN_DEVICE void store_dims(Element* row, int dim, int dims, const float (&x)[kChunkDims]) {
  if constexpr (kWholeRows) {
    if (!kExactDims && dim >= dims) return;
    global_store(reinterpret_cast<WordsOf<Element, kChunkDims>*>(row + dim),
                 rounded_words<Element>(x));
  } else {
#pragma unroll
    for (int e = 0; e < kChunkDims; ++e) {
      if (dim + e < dims) global_store(row + dim + e, from_float<Element>(x[e]));
    }
  }
}

}  // namespace fulmen::kernels
