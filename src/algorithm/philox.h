// Dropout's random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
// numbers: as easy as 1, 2, 3"), a function of (seed, offset) and the element alone. Freestanding:
// host and device share it.
//
// One call decides 8 elements of the softmax: those of rows 2 r, 2 r + 1 and columns 4 c .. 4 c + 3
// of a head, 16 bits each. It is
//   counter  c, r, batch * num_heads + head, offset's low half
//   key      seed's low half, seed's high half ^ offset's high half
//   word w   column 4 c + w: the low 16 bits row 2 r, the high 16 bits row 2 r + 1
// An element is dropped when its number is below `dropout`, a probability in units of 1 / 65536.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::algorithm {

using Word = unsigned;
using DoubleWord = unsigned long long;

// The keys of the rounds, two words each.
struct PhiloxKeys {
  static constexpr int kRounds = 10;
  Word first[kRounds], second[kRounds];

  FULMEN_ALGORITHM static PhiloxKeys of(Word key0, Word key1) {
    PhiloxKeys keys{};
    for (int round = 0; round < kRounds; ++round) {
      keys.first[round] = key0 + 0x9E3779B9U * static_cast<Word>(round);
      keys.second[round] = key1 + 0xBB67AE85U * static_cast<Word>(round);
    }
    return keys;
  }
};

struct Philox {
  Word word[4];

  FULMEN_ALGORITHM static Philox of(Word c0, Word c1, Word c2, Word c3, const PhiloxKeys& keys) {
    for (int round = 0; round < PhiloxKeys::kRounds; ++round) {
      const DoubleWord a = DoubleWord{0xD2511F53U} * c0, b = DoubleWord{0xCD9E8D57U} * c2;
      const Word high_a = static_cast<Word>(a >> 32U), high_b = static_cast<Word>(b >> 32U);
      c0 = high_b ^ c1 ^ keys.first[round];
      c1 = static_cast<Word>(b);
      c2 = high_a ^ c3 ^ keys.second[round];
      c3 = static_cast<Word>(a);
    }
    return {{c0, c1, c2, c3}};
  }
};

// The keys of a call.
FULMEN_ALGORITHM inline PhiloxKeys dropout_keys(DoubleWord seed, DoubleWord offset) {
  return PhiloxKeys::of(static_cast<Word>(seed),
                        static_cast<Word>(seed >> 32U) ^ static_cast<Word>(offset >> 32U));
}

// The numbers of one head. Keys: PhiloxKeys, or a reference to them.
template <class Keys>
struct DropoutNumbers {
  Keys keys;
  Word head, offset;

  // The block of rows 2 row_pair, + 1 and columns 4 column_quad .. + 3.
  FULMEN_ALGORITHM Philox block(Index row_pair, Index column_quad) const {
    return Philox::of(static_cast<Word>(column_quad), static_cast<Word>(row_pair), head, offset,
                      keys);
  }
  FULMEN_ALGORITHM static int number(const Philox& block, Index row, Index column) {
    // An index would put the words into a GPU's scratch memory.
    const Word even = column % 4 < 2 ? block.word[0] : block.word[2],
               odd = column % 4 < 2 ? block.word[1] : block.word[3];
    const Word word = column % 2 == 0 ? even : odd;
    return static_cast<int>((word >> (16U * static_cast<Word>(row % 2))) & 0xFFFFU);
  }
  FULMEN_ALGORITHM bool keeps(Index row, Index column, int dropout) const {
    return number(block(row / 2, column / 4), row, column) >= dropout;
  }
};

struct DropoutHead : DropoutNumbers<PhiloxKeys> {
  FULMEN_ALGORITHM static DropoutHead of(DoubleWord seed, DoubleWord offset, Index batch_head) {
    return {{dropout_keys(seed, offset), static_cast<Word>(batch_head), static_cast<Word>(offset)}};
  }
};

}  // namespace fulmen::algorithm
