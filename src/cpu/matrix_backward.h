// The products of the backward pass on matrix tiles (AMX). Operands lie as they do on vectors, and scores come to the epilogues by
// way of memory:
//   S^T, dP^T [keys][kBlockM]      = K, V [keys][words]        x  Q^T, dO^T [words][kBlockM]
//   dV, dK    [keys][stride]      += P, dS [keys][query words] x  dO, Q     [query words][stride]
//   dQ^T      [head_dim][kBlockM] += K^T [head_dim][key words] x  dS        [key words][kBlockM]
// so K^T is turned once for a block of held keys, and dQ^T once for a tile of queries. What the last tiles have in surplus is 0 in
// both operands: what lies there is multiplied, too.
#pragma once

#include <cstdint>

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

// sums [count][stride] += words [count][kBlockM / 2 words, kBlockM apart] x rows [kBlockM / 2][stride].
template <class Isa>
void matrix_add_keys(const float* words, const float* rows, int64_t stride, int count, float* sums) {
  TileProduct<typename Isa::TileInstructions> product({.a = words,
                                                       .a_stride = kBlockM,
                                                       .b = rows,
                                                       .c = sums,
                                                       .rows = count,
                                                       .columns = static_cast<int>(stride),
                                                       .words = kBlockM / 2,
                                                       .accumulate = true,
                                                       .b_stride = stride,
                                                       .c_stride = stride});
  product.finish();
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
