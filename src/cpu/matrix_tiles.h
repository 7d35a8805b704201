// Products on matrix tiles (AMX) and the turning of operands around them, over an instruction set's vocabulary.
#pragma once

#include <cstdint>

#include "cpu/matrix_operands.h"

namespace fulmen::cpu {

constexpr int kTileBlock = 2 * kTile;  // four sums, 2 x 2 tiles, halve the loads that a product needs

// C = A B or C += A B, a step at a time, so that the tiles' work can be spread among other work. Rows are rounded up to kTileBlock,
// columns to kTile: the operands' memory has them, and what they hold in the surplus reaches the surplus of C only. words is a
// multiple of kTile, the surplus 0 in both operands.
template <class Tiles>
class TileProduct {
 public:
  struct Operands {
    const float* a;  // [rows][words], a_stride floats apart
    int64_t a_stride;
    const float* b;  // [words][columns], b_stride floats apart
    float* c;        // [rows][columns], c_stride floats apart
    int rows;
    int columns;
    int words;
    bool accumulate;
    int64_t b_stride = kBlockM;
    int64_t c_stride = kBlockM;
  };
  TileProduct() = default;  // of nothing
  explicit TileProduct(const Operands& operands) : o_(operands) {}

  FULMEN_INLINE bool done() const { return row_ >= o_.rows; }
  void finish() {
    while (!done()) step();
  }
  FULMEN_INLINE void step() {
    // One tile's columns may be left.
    const bool wide = o_.columns - column_ > kTile;
    float* c = o_.c + row_ * o_.c_stride + column_;
    if (word_ == 0) begin(c, wide);
    const float* a = o_.a + row_ * o_.a_stride + word_;
    const float* b = o_.b + word_ * o_.b_stride + column_;
    Tiles::template load<4>(a, o_.a_stride);
    Tiles::template load<6>(b, o_.b_stride);
    Tiles::template load<5>(a + kTile * o_.a_stride, o_.a_stride);
    if (wide) Tiles::template load<7>(b + kTile, o_.b_stride);
    Tiles::template dot<0, 4, 6>();
    Tiles::template dot<2, 5, 6>();
    if (wide) {
      Tiles::template dot<1, 4, 7>();
      Tiles::template dot<3, 5, 7>();
    }
    word_ += kTile;
    if (word_ < o_.words) return;
    Tiles::template store<0>(c, o_.c_stride);
    Tiles::template store<2>(c + kTile * o_.c_stride, o_.c_stride);
    if (wide) {
      Tiles::template store<1>(c + kTile, o_.c_stride);
      Tiles::template store<3>(c + kTile * o_.c_stride + kTile, o_.c_stride);
    }
    word_ = 0;
    column_ += kTileBlock;
    if (column_ < o_.columns) return;
    column_ = 0;
    row_ += kTileBlock;
  }

 private:
  FULMEN_INLINE void begin(const float* c, bool wide) const {
    if (o_.accumulate) {
      Tiles::template load<0>(c, o_.c_stride);
      Tiles::template load<2>(c + kTile * o_.c_stride, o_.c_stride);
      if (!wide) return;
      Tiles::template load<1>(c + kTile, o_.c_stride);
      Tiles::template load<3>(c + kTile * o_.c_stride + kTile, o_.c_stride);
    } else {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
  }

  Operands o_{};
  int row_ = 0, column_ = 0, word_ = 0;  // of the next step
};

// The epilogue over scores that lie in memory already, [keys][kBlockM].
template <class Isa, class Epilogue>
__attribute__((noinline)) void finish_scores(const float* scores, int count, const Epilogue& epilogue) {
  constexpr int kVecs = kBlockM / Isa::kLanes;
  typename Epilogue::template Block<kVecs> block(epilogue, 0);
  for (int key = 0; key < count; ++key) {
    if (key % Isa::kQkKeys == 0) block.template begin<Isa::kQkKeys>();
    typename Isa::Vec sum[kVecs];
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
