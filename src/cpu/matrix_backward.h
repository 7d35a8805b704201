// The products of the backward pass on matrix tiles (AMX). Operands lie as they do on vectors, and scores come to the epilogues by
// way of memory:
//   S^T, dP^T [keys][kBlockM]      = K, V [keys][words]        x  Q^T, dO^T [words][kBlockM]
//   dV, dK    [keys][stride]      += P, dS [keys][query words] x  dO, Q     [query words][stride]
//   dQ^T      [head_dim][kBlockM] += K^T [head_dim][key words] x  dS        [key words][kBlockM]
// so K^T is turned once for a block of held keys, and dQ^T once for a tile of queries. What the last tiles have in surplus is 0 in
// both operands: what lies there is multiplied, too.
#pragma once

#include <cstdint>

#include "cpu/backward_call.h"
#include "cpu/matrix_tiles.h"
#include "cpu/pack.h"

namespace fulmen::cpu {

template <class Isa>
constexpr bool kOnMatrixTiles = requires { typename Isa::TileInstructions; };

// The epilogue over rows [keys][words] x panel [words][kBlockM]. raw: [keys, whole blocks][kBlockM], of the sums; the epilogue may
// write there what it makes of a row, or of the rows before.
template <class Isa, class Epilogue>
void matrix_scores(const float* rows, int64_t stride, const float* panel, int words, int count, float* raw,
                   const Epilogue& epilogue) {
  using Product = TileProduct<typename Isa::TileInstructions>;
  const auto padded = static_cast<int>(round_up(words, kTile));
  if (padded == 0) {
    for (int i = 0; i < count * kBlockM; i += Isa::kLanes) Isa::store(raw + i, Isa::zero());
  }
  Product product({.a = rows,
                   .a_stride = stride,
                   .b = panel,
                   .c = raw,
                   .rows = padded > 0 ? count : 0,
                   .columns = kBlockM,
                   .words = padded,
                   .accumulate = false});
  product.finish();
  finish_scores<Isa>(raw, count, epilogue);
}

// P or dS of some tiles of queries, and what they are multiplied with.
struct MatrixRowTiles {
  const float* words[kMatrixRowTiles];  // [keys][kBlockM / 2 words], kBlockM apart
  const float* rows[kMatrixRowTiles];   // [kBlockM / 2][stride]: dO, or Q
  int count = 0;
};

// sums [count][stride] += the sum over tiles of words x rows: each 2 x 2 tiles of sums are loaded and stored once for all of them.
template <class Isa>
__attribute__((noinline)) void matrix_add_keys(const MatrixRowTiles& tiles, int64_t stride, int count, float* sums) {
  using Tiles = typename Isa::TileInstructions;
  for (int row = 0; row < count; row += kTileBlock) {
    for (int64_t column = 0; column < stride; column += kTileBlock) {
      const bool wide = stride - column > kTile;  // one tile's columns may be left
      float *c0 = sums + row * stride + column, *c1 = c0 + kTile * stride;
      Tiles::template load<0>(c0, stride);
      Tiles::template load<2>(c1, stride);
      if (wide) {
        Tiles::template load<1>(c0 + kTile, stride);
        Tiles::template load<3>(c1 + kTile, stride);
      }
      for (int t = 0; t < tiles.count; ++t) {
#pragma GCC unroll 2
        for (int word = 0; word < kBlockM / 2; word += kTile) {
          const float* a = tiles.words[t] + row * kBlockM + word;
          const float* b = tiles.rows[t] + word * stride + column;
          Tiles::template load<4>(a, kBlockM);
          Tiles::template load<6>(b, stride);
          Tiles::template dot<0, 4, 6>();
          Tiles::template load<5>(a + kTile * kBlockM, kBlockM);
          Tiles::template dot<2, 5, 6>();
          if (wide) {
            Tiles::template load<7>(b + kTile, stride);
            Tiles::template dot<1, 4, 7>();
            Tiles::template dot<3, 5, 7>();
          }
        }
      }
      Tiles::template store<0>(c0, stride);
      Tiles::template store<2>(c1, stride);
      if (wide) {
        Tiles::template store<1>(c0 + kTile, stride);
        Tiles::template store<3>(c1 + kTile, stride);
      }
    }
  }
}

// turned_sums [dims][kBlockM] = or += turned_keys [dims][key_words, turned_stride apart] x scores [key_words][kBlockM].
template <class Isa>
void matrix_add_queries(const float* turned_keys, int64_t turned_stride, const float* scores, int key_words, int64_t dims,
                        bool started, float* turned_sums) {
  TileProduct<typename Isa::TileInstructions> product({.a = turned_keys,
                                                       .a_stride = turned_stride,
                                                       .b = scores,
                                                       .c = turned_sums,
                                                       .rows = static_cast<int>(dims),
                                                       .columns = kBlockM,
                                                       .words = static_cast<int>(round_up(key_words, kTile)),
                                                       .accumulate = started});
  product.finish();
}

}  // namespace fulmen::cpu
