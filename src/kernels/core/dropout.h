// Dropout's mask in kernels: algorithm/philox.h, a block of numbers at a time.
#pragma once

#include "algorithm/philox.h"
#include "core/config.h"

namespace fulmen::kernels {

// The mask of one head.
class DropoutMask {
 public:
  FULMEN_DEVICE DropoutMask(const ForwardArguments& a, Int64 batch, Int64 head)
      : head_{a.dropout_keys, static_cast<unsigned>(batch * a.num_heads + head), a.dropout_offset},
        dropout_(a.dropout) {}
  // Returns true if element (query, key) of the softmax stays. Keeps the last block of numbers,
  // which neighbours share: ask for them one after the other.
  FULMEN_DEVICE bool keeps(Int64 query, Int64 key) {
    if constexpr (!kDropout) return true;
    if (query / 2 != row_pair_ || key / 4 != column_quad_) {
      row_pair_ = query / 2;
      column_quad_ = key / 4;
      block_ = head_.block(row_pair_, column_quad_);
    }
    return head_.number(block_, query, key) >= dropout_;
  }
  // The mask of a whole block: bit 16 r + c is 1 if the element of query 2 row_pair + r and key 4
  // column_quad + c stays.
  FULMEN_DEVICE unsigned kept_of_block(Int64 row_pair, Int64 column_quad) const {
    const Signs stays = stays_of_block(row_pair, column_quad);
    unsigned kept = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) kept |= stays.word[c] >> (15 - c) & 0x10001U << c;
    return kept;
  }
  // Of key 4 column_quad + c: bit 15 of word c is 1 if query 2 row_pair's element stays, bit 31 if
  // the next query's does. The other bits say nothing.
  struct Signs {
    unsigned word[4];
  };
  FULMEN_DEVICE Signs stays_of_block(Int64 row_pair, Int64 column_quad) const {
    const algorithm::Philox block = head_.block(row_pair, column_quad);
    const unsigned least = static_cast<unsigned>(dropout_) * 0x10001U;
    Signs stays;
#pragma unroll
    for (int c = 0; c < 4; ++c) stays.word[c] = halves_at_least(block.word[c], least);
    return stays;
  }

 private:
  // Bits 15 and 31: whether x's low and high half are at least y's, as numbers of 16 bits; the
  // others say nothing. The halves without their highest bits are compared by one subtraction, in
  // which neither borrows from the other.
  FULMEN_DEVICE static unsigned halves_at_least(unsigned x, unsigned y) {
    constexpr unsigned kHighest = 0x80008000U;
    const unsigned difference = (x | kHighest) - (y & ~kHighest);
    return (x & ~y) | (~(x ^ y) & difference);
  }

  algorithm::DropoutNumbers<const algorithm::PhiloxKeys&> head_;
  int dropout_;
  Int64 row_pair_ = -1, column_quad_ = -1;
  algorithm::Philox block_{};
};

}  // namespace fulmen::kernels
