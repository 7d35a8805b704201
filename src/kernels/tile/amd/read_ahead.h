// CDNA: operands of a tile come from LDS ahead of their products, the first values before the
// softmax. The compiler alone waits for the latency of LDS every few products.
#pragma once

#include "tile/wave_step.h"

namespace fulmen::kernels {

// Of stores by some lanes alone that are not just before a barrier clang 22 makes code in which the
// barrier may come first, by the rules of machine code.
constexpr bool kAllLanesStore =
    kKeyPieces % kWorkgroup == 0 && kBlockN * kRowPiecesV % kWorkgroup == 0;
// Where registers have room for them. Wider heads and rows of other kinds are read as they are
// multiplied.
constexpr bool kReadsAhead = kWaveSize == 64 && kQueryMmaSteps > 0 && !kValuesFollow &&
                             kValueParts == 1 && kWholeRows && !kQuantized && !kCodeKeys &&
                             !kManyArguments && kHeadDim <= 128 && kHeadDimV <= 128 &&
                             (kBuffers == 1 || kAllLanesStore);
// Operands of keys, of 4 registers. With 8 gfx942 is slower; beside scores of 64 keys 6 spill.
constexpr int kKeysHeld = kBlockN >= 64 ? 4 : 6;
// Operands of values in prefill_pipeline.h, of 8 to 32 bytes.
constexpr int kValuesHeld = 64 / sizeof(ValueOperand);

// Instructions of S = Q K^T for an operand of keys, and the n-th of them.
FULMEN_DEVICE constexpr int score_parts() { return sizeof(RowOperand) / sizeof(ValuePiece); }
// Codes are never read ahead.
template <class T, class Keys>
FULMEN_DEVICE void multiply_score_part(T (&scores)[kElements], const Keys& keys,
                                       const StagedRows& queries, int n) {
  if constexpr (kReadsAhead && !kCodeKeys) multiply_scores_part<Element>(scores, keys, queries, n);
}
// Instructions of O += P V for an operand of values, and the n-th of them.
FULMEN_DEVICE constexpr int value_parts() { return sizeof(ValueOperand) / sizeof(ValuePiece); }
template <class T, class Values>
FULMEN_DEVICE void multiply_value_part(T (&out)[kElements], const StagedProbabilities& p,
                                       const Values& values, int n) {
  if constexpr (kReadsAhead && !kCodeValues) multiply_output_part<Element>(out, p, values, n);
}

// A lane's operands of values, in the order of products: as many as are read ahead.
class ValuesAhead {
 public:
  FULMEN_DEVICE void read_first(int buffer) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) read(buffer, n);
  }
  // O += P V for the step-th products' keys. Reads later values.
  FULMEN_DEVICE void multiply(OutputFragment& out, int buffer, int step,
                              const StagedProbabilities (&p)[kRowTiles]) {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      const int n = step * kDimTiles + d;
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        multiply_output<Element>(out[t][d], p[t], operands_[n % kHeld]);
      if (n + kHeld < kAll) read(buffer, n + kHeld);
    }
  }

 private:
  FULMEN_DEVICE void read(int buffer, int n) {
    operands_[n % kHeld] = value_operand(buffer, n / kDimTiles, n % kDimTiles, 0);
  }
  static constexpr int kAll = kValueSteps * kDimTiles;
  // 8 bytes each: all of a tile of 32 keys, as those of neighbouring steps are one read. Of 16
  // bytes 8 would spill on gfx950.
  static constexpr int kHeld = sizeof(ValuePiece) == 8 && kValueSteps == 2 ? kAll
                               : sizeof(ValueOperand) == 32                ? 2
                                                                           : 4;
  decltype(value_operand(0, 0, 0, 0)) operands_[kHeld];
};

}  // namespace fulmen::kernels
