// Pieces of 16 bytes (8 elements of 16 bits) from rows of memory, and rows back.
#pragma once

#include "core/config.h"
#include "core/matrix.h"

namespace fulmen::kernels {

// All bits or none of them, by a mask that does not become a choice: a choice of a load becomes a
// branch around it, and loads one after the other.
template <bool kUniform = false, int kWords>
FULMEN_DEVICE Words<kWords> masked(const Words<kWords>& x, unsigned mask) {
  Words<kWords> y;
  mask = kUniform ? evaluated_uniform(mask) : evaluated(mask);
#pragma unroll
  for (int w = 0; w < kWords; ++w) y.word[w] = x.word[w] & mask;
  return y;
}

// Elements [dim, dim + 8) of a row of `dims` elements, zeros beyond its end.
template <class T>
FULMEN_DEVICE Words<4> load_piece(const T* row, int dim, int dims) {
  Words<4> piece{};
  if constexpr (kWholeRows) {
    if (kExactDims || dim < dims) piece = global_load(reinterpret_cast<const Words<4>*>(row + dim));
  } else if constexpr (kWholeDims && kAnyAlignment) {
    // Loaded in any case: with a branch around each load they would come one after the other.
    const bool there = kExactDims || dim < dims;
    piece = global_load_unaligned<Words<4>>(row + (there ? dim : 0));
    if constexpr (!kExactDims) piece = masked(piece, there ? ~0U : 0U);
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (dim + e < dims)
        piece.word[e / 2] |= static_cast<unsigned>(global_load(row + dim + e).bits)
                             << (16U * (e % 2));
    }
  }
  return piece;
}

// Its first `count` elements to memory, one by one.
template <class T>
FULMEN_DEVICE void store_elements(T* to, const Words<4>& piece, int count) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (e < count)
      global_store(to + e, T{static_cast<unsigned short>(piece.word[e / 2] >> (16U * (e % 2)))});
  }
}

// 16 rows of q as an operand. Rows from row_end on repeat the last one: what they give is not
// stored.
template <class T>
FULMEN_DEVICE RowOperand load_row_operand(const T* rows, Int64 stride, Int64 first, Int64 row_end,
                                          int dim, int dims) {
  RowOperand operand;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const Int64 row = first + piece_row(p) < row_end ? first + piece_row(p) : row_end - 1;
    operand.piece[p] = load_piece(rows + row * stride, dim + piece_dim(p), dims);
  }
  return operand;
}

FULMEN_DEVICE RowOperand lds_row_operand(int at, int pitch) {
  RowOperand operand;
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    operand.piece[p] = lds_load<Words<4>>(at + piece_row(p) * pitch + 2 * piece_dim(p));
  return operand;
}

// 8 outputs of one row, from dim on.
template <class T>
FULMEN_DEVICE void store_piece(T* row, int dim, int dims, const Words<4>& piece) {
  if constexpr (kWholeRows) {
    if (kExactDims || dim < dims) global_store(reinterpret_cast<Words<4>*>(row + dim), piece);
  } else {
    store_elements(row + dim, piece, dims - dim);
  }
}

// A run of kCount outputs of one row, from dim on, rounded.
template <int kCount>
FULMEN_DEVICE void store_run(Element* row, int dim, int dims, const float (&value)[kCount]) {
  if constexpr (kWholeRows || (kWholeDims && kAnyAlignment)) {
    Words<kCount / 2> words;
#pragma unroll
    for (int m = 0; m < kCount / 2; ++m)
      words.word[m] = pack<Element>(value[2 * m], value[2 * m + 1]);
    if (!kExactDims && dim >= dims) return;
    if constexpr (kWholeRows) {
      global_store(reinterpret_cast<Words<kCount / 2>*>(row + dim), words);
    } else {
      global_store_unaligned(row + dim, words);
    }
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (dim + e < dims) global_store(row + dim + e, from_float<Element>(value[e]));
    }
  }
}

}  // namespace fulmen::kernels
