// The products of a tile task on matrix tiles (AMX), beside tile.h's on vectors. Operands are those that the tile task has anyway:
// keys [key][words] and queries [words][kBlockM] give S^T, V^T [head_dim_v][words of keys] and P^T [words][kBlockM] give O^T, which
// is turned once at the end. Four accumulators (2 x 2 tiles) halve the loads a product needs.
#pragma once

#include <cstdint>

#include "cpu/tile.h"

namespace fulmen::cpu {

template <class Isa>
constexpr bool kMatrixTiles = requires { typename Isa::TileInstructions; };

constexpr int kTile = 16;  // rows, and words of a row

// 2 x 2 tiles of C += A B over `words` words, a multiple of kTile.
template <class Tiles>
FULMEN_INLINE void multiply_tiles(const float* a, int64_t a_stride, const float* b, int words) {
  for (int w = 0; w < words; w += kTile) {
    Tiles::template load<4>(a + w, a_stride);
    Tiles::template load<5>(a + kTile * a_stride + w, a_stride);
    Tiles::template load<6>(b + static_cast<int64_t>(w) * kBlockM, kBlockM);
    Tiles::template load<7>(b + static_cast<int64_t>(w) * kBlockM + kTile, kBlockM);
    Tiles::template dot<0, 4, 6>();
    Tiles::template dot<1, 4, 7>();
    Tiles::template dot<2, 5, 6>();
    Tiles::template dot<3, 5, 7>();
  }
}

template <class Tiles>
FULMEN_INLINE void store_tiles(float* c) {
  Tiles::template store<0>(c, kBlockM);
  Tiles::template store<1>(c + kTile, kBlockM);
  Tiles::template store<2>(c + kTile * kBlockM, kBlockM);
  Tiles::template store<3>(c + kTile * kBlockM + kTile, kBlockM);
}

// scores [keys][kBlockM] and what the epilogue makes of them. words is a multiple of kTile, its surplus zero in both operands; rows
// of keys are read up to a multiple of 32, and what they hold past the last does not matter.
template <class Isa, class Epilogue>
__attribute__((noinline)) void score_matrix(const float* queries, int rows, const float* keys, int64_t key_stride, int words,
                                            int count, float* scores, const Epilogue& epilogue) {
  using Tiles = typename Isa::TileInstructions;
  using Vec = typename Isa::Vec;
  constexpr int kVecs = kBlockM / Isa::kLanes;
  for (int key = 0; key < count; key += 2 * kTile) {
    for (int row = 0; row < rows; row += 2 * kTile) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
      multiply_tiles<Tiles>(keys + key * key_stride, key_stride, queries + row, words);
      store_tiles<Tiles>(scores + key * kBlockM + row);
    }
  }
  typename Epilogue::template Block<kVecs> block(epilogue, 0);
  for (int key = 0; key < count; ++key) {
    if (key % Isa::kQkKeys == 0) block.template begin<Isa::kQkKeys>();
    Vec sum[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[v] = Isa::load(scores + key * kBlockM + v * Isa::kLanes);
    block.row(sum, key);
  }
  block.end();
}

// Panel [words][value_stride] -> [value_stride][words_stride], zeros from `words` to the next multiple of kTile.
template <class Isa>
__attribute__((noinline)) void turn_values(const float* panel, int64_t value_stride, int words, float* out, int64_t words_stride) {
  for (int word = 0; word < words; word += kTile) {
    for (int64_t d = 0; d < value_stride; d += kTile) {
      typename Isa::Vec block[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) block[i] = word + i < words ? Isa::load(panel + (word + i) * value_stride + d) : Isa::zero();
      Isa::transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) Isa::store(out + (d + i) * words_stride + word, block[i]);
    }
  }
}

// O^T [value_stride, rounded up to 32][kBlockM] from V^T and P^T; P^T's words are zeroed up to a multiple of kTile first.
template <class Isa, OutputKind kKind>
__attribute__((noinline)) void output_matrix(const float* values, int64_t words_stride, int64_t value_stride, float* p, int words,
                                             int rows, const float* rescale, float* out) {
  using Tiles = typename Isa::TileInstructions;
  const int padded_words = static_cast<int>(round_up(words, kTile));
  for (int i = words * kBlockM; i < padded_words * kBlockM; i += Isa::kLanes) Isa::store(p + i, Isa::zero());
  if constexpr (kKind == OutputKind::rescale) {
    for (int row = 0; row < rows; row += Isa::kLanes) {
      const auto factor = Isa::load(rescale + row);
      for (int64_t d = 0; d < value_stride; ++d)
        Isa::store(out + d * kBlockM + row, Isa::mul(Isa::load(out + d * kBlockM + row), factor));
    }
  }
  for (int64_t d = 0; d < value_stride; d += 2 * kTile) {
    for (int row = 0; row < rows; row += 2 * kTile) {
      float* c = out + d * kBlockM + row;
      if constexpr (kKind == OutputKind::first) {
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        Tiles::template zero<2>();
        Tiles::template zero<3>();
      } else {
        Tiles::template load<0>(c, kBlockM);
        Tiles::template load<1>(c + kTile, kBlockM);
        Tiles::template load<2>(c + kTile * kBlockM, kBlockM);
        Tiles::template load<3>(c + kTile * kBlockM + kTile, kBlockM);
      }
      multiply_tiles<Tiles>(values + d * words_stride, words_stride, p + row, padded_words);
      store_tiles<Tiles>(c);
    }
  }
}

// O^T -> rows [kBlockM][value_stride].
template <class Isa>
__attribute__((noinline)) void turn_output(const float* turned, int64_t value_stride, int rows, float* out) {
  for (int row = 0; row < rows; row += kTile) {
    for (int64_t d = 0; d < value_stride; d += kTile) {
      typename Isa::Vec block[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) block[i] = Isa::load(turned + (d + i) * kBlockM + row);
      Isa::transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) Isa::store(out + (row + i) * value_stride + d, block[i]);
    }
  }
}

}  // namespace fulmen::cpu
