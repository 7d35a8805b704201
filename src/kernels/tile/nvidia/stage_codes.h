// NVIDIA: operands of codes of 8 bits, and a tile of transposed values that are such codes.
#pragma once

#include "tile/nvidia/swizzle.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"

namespace fulmen::kernels {

// Codes of 16 keys, or queries, in the words that elements of 16 bits lie in.
struct KeyCodes {
  Words<4> words;
};
struct QueryCodes {
  Words<4> words;
};
template <class T>
FULMEN_DEVICE void multiply_scores(float (&sums)[kElements], const KeyCodes& keys,
                                   const QueryCodes& queries) {
  if constexpr (kInt8Products) {
    multiply_codes(sums, keys.words, queries.words);
  } else {
    multiply_e4m3(sums, keys.words, queries.words);
  }
}

// Codes of kCodeDepth keys: of 16 queries' probabilities, and of 16 dims of values.
struct ProbabilityCodes {
  Words<4> words;
};
struct ValueCodes {
  Words<4> words;
};
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const ProbabilityCodes& p,
                                   const ValueCodes& v) {
  multiply_e4m3(out, v.words, p.words);
}
// A tile's scores of one slot's row, 16 keys: four neighbours in the order of code_key().
FULMEN_DEVICE unsigned code_probabilities(const float (&p)[kElements], int slot) {
  const int e = 2 * slot;
  return pack_e4m3(p[e], p[e + 1], p[e + 4], p[e + 5]);
}
// The operand of the step-th product P V.
template <int kColumns>
FULMEN_DEVICE ProbabilityCodes code_probabilities(const TileRow<kColumns>& p, int step) {
  ProbabilityCodes operand;
#pragma unroll
  for (int w = 0; w < 4; ++w)
    operand.words.word[w] = code_probabilities(p[kValueStepTiles * step + w / 2], w % 2);
  return operand;
}

// A tile's panel [kHeadDimV, kBlockN] of codes, one row a dim, in memory one behind the other: a
// lane copies 16 bytes of a row at a time.
using PanelRows = SwizzledRows<kCodeValues ? kBlockN / 2 : 16>;
class PanelCopies {
 public:
  FULMEN_DEVICE PanelCopies(const TileRows<true>& rows, int at)
      : from_(reinterpret_cast<const unsigned char*>(rows.head) +
              rows.first_key * rows.arguments.head_dim_v + 16 * thread_id()),
        dims_(rows.arguments.head_dim_v),
        to_(at + PanelRows::place(first_row(), first_byte())) {}
  // The n-th of kRounds. Rows past the last dim are zeros.
  FULMEN_DEVICE void copy(int n) const {
    const int row = n * kRowsAtOnce + first_row();
    if (kHeadDimV % kRowsAtOnce != 0 && row >= kHeadDimV) return;
    copy_async_16(to_ + n * kRowsAtOnce * PanelRows::kPitch, from_ + n * kWorkgroup * 16,
                  kExactDims || row < dims_);
  }

  static constexpr int kRowPieces = kBlockN / 16, kRowsAtOnce = kWorkgroup / kRowPieces,
                       kRounds = (kHeadDimV + kRowsAtOnce - 1) / kRowsAtOnce;
  static_assert(!kCodeValues || (kWorkgroup % kRowPieces == 0 && kRowsAtOnce % 8 == 0),
                "stage: one swizzle serves all of a lane's rows");

 private:
  FULMEN_DEVICE static int first_row() {
    return static_cast<int>(static_cast<unsigned>(thread_id()) / kRowPieces);
  }
  FULMEN_DEVICE static int first_byte() {
    return static_cast<int>(static_cast<unsigned>(thread_id()) % kRowPieces * 16);
  }
  const unsigned char* from_;
  int dims_, to_;
};

}  // namespace fulmen::kernels
