// CDNA: operands of a tile come from LDS ahead of their products, keys kKeysAhead steps, the first
// values before the softmax. The compiler alone waits a latency of LDS for each few products.
#pragma once

#include "tile/stage.h"

namespace fulmen::kernels {

// Where registers have room for them. Wider heads and rows of other kinds are read as they are
// multiplied.
constexpr bool kReadsAhead = kWaveSize == 64 && kQueryMmaSteps > 0 && !kValuesFollow &&
                             kValueParts == 1 && !kQuantized && !kCodeKeys && !kManyArguments &&
                             kHeadDim <= 128 && kHeadDimV <= 128;
constexpr int kKeysAhead = 1;

// A lane's operands of a product's values, of all dims.
class ValuesAhead {
 public:
  FULMEN_DEVICE void read(int buffer, int step) {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d)
      operands_[step % kHeld][d] = value_operand(buffer, step, d, 0);
  }
  FULMEN_DEVICE void read_first(int buffer) {
#pragma unroll
    for (int step = 0; step < kHeld; ++step) read(buffer, step);
  }
  // O += P V, with the step-th products' keys; then reads those of a later one.
  FULMEN_DEVICE void multiply(OutputFragment& out, int buffer, int step,
                              const StagedProbabilities (&p)[kRowTiles]) {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        multiply_output<Element>(out[t][d], p[t], operands_[step % kHeld][d]);
      if (step + kHeld < kValueSteps)
        operands_[step % kHeld][d] = value_operand(buffer, step + kHeld, d, 0);
    }
  }

 private:
  // Neighbouring steps of 8 bytes a lane are one read.
  static constexpr int kHeld = sizeof(ValuePiece) == 8 && kValueSteps % 2 == 0 ? 2 : 1;
  decltype(value_operand(0, 0, 0, 0)) operands_[kHeld][kDimTiles];
};

}  // namespace fulmen::kernels
