// AMD: rows of K and Q in flight to LDS, and read from there: elements of 16 bits, or codes of 8.
#pragma once

#include "tile/rows.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"
#include "tile/stored_pieces.h"

namespace fulmen::kernels {

// Codes of 16 rows.
struct CodeOperand {
  Words<kCodeWords> codes;
};
template <class T>
FULMEN_DEVICE void multiply_scores(float (&sums)[kElements], const CodeOperand& keys,
                                   const CodeOperand& queries) {
  if constexpr (kInt8Products) {
    multiply_codes(sums, keys.codes, queries.codes);
  } else {
    multiply_e4m3(sums, keys.codes, queries.codes);
  }
}

template <bool kCodes>
using RowsOf = Either<kCodes, CodeOperand, RowOperand>;
using StagedRows = RowsOf<kCodeKeys>;

// From LDS.
template <bool kCodes = kCodeKeys>
FULMEN_DEVICE RowsOf<kCodes> staged_rows(int at, int pitch) {
  if constexpr (kCodes) {
    return {lds_load<Words<kCodeWords> >(at + lane_id() % kScoreTile * pitch + code_dim())};
  } else {
    return lds_row_operand(at, pitch);
  }
}
// Queries [row, row + 16) of a workgroup's from memory, at the depth-th product.
template <bool kCodes = kCodeKeys>
FULMEN_DEVICE RowsOf<kCodes> row_operand_of(const QuerySource& source, int row, int depth) {
  if constexpr (kCodes) {
    const auto* const codes =
        reinterpret_cast<const unsigned char*>(source.row(row + lane_id() % kScoreTile));
    return {global_load(
        reinterpret_cast<const Words<kCodeWords>*>(codes + kStepDims * depth + code_dim()))};
  } else {
    return load_row_operand(source.rows, source.stride, source.first + row, source.end,
                            kMmaK * depth, source.dims);
  }
}

// Waits for rows that are loaded before a loop. Else the compiler waits where the loop reads them,
// in each of its turns: there for the loads of the next tile.
FULMEN_DEVICE void arrived(CodeOperand& rows) {
#pragma unroll
  for (int w = 0; w < kCodeWords; ++w) rows.codes.word[w] = evaluated(rows.codes.word[w]);
}
FULMEN_DEVICE void arrived(RowOperand& rows) {
#pragma unroll
  for (auto& piece : rows.piece) {
#pragma unroll
    for (unsigned& word : piece.word) word = evaluated(word);
  }
}
// 16 bytes of a row of K as it is stored, and as it lies in LDS.
using KeyPiece = StoredWords<false, kPieceDims>;
template <int kWords>
FULMEN_DEVICE Words<4> staged_piece(const Words<kWords>& stored) {
  if constexpr (kCodeKeys) {
    return stored;
  } else {
    return piece_of<false, Element>(stored);
  }
}
// 16 bytes of row `row` of a workgroup's queries.
FULMEN_DEVICE Words<4> query_piece(const QuerySource& source, int row, int piece) {
  if constexpr (kCodeKeys)
    return global_load(reinterpret_cast<const Words<4>*>(source.row(row)) + piece);
  return load_piece(source.row(row), 8 * piece, source.dims);
}

}  // namespace fulmen::kernels
