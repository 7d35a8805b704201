// What pack_mask.h makes a lane's bits of: the keep-mask's bytes, mask_mod and a block mask.
#pragma once

#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kMaskKeys = 128, kWords = kMaskKeys / 32;
// What a workgroup has: kMaskRows queries and kMaskKeys keys or, of a block mask, also
// kFilledBlocks times as many that it fills where they are all the same.
struct MaskPlace {
  int batch, head;
  Int64 plane, block, first_key;
  bool fills;

  // Numbers of workgroups have 32 bits; divisions of 64 would take longer than all else here.
  FULMEN_DEVICE static MaskPlace of(const ForwardArguments& call) {
    constexpr unsigned kFilled = algorithm::kFilledBlocks;
    const MaskBits& bits = call.mask_bits;
    const auto by_query = static_cast<unsigned>(bits.blocks),
               by_key = bits.by_key == nullptr ? 0 : static_cast<unsigned>(bits.query_words) / 2,
               blocks = by_query > by_key ? by_query : by_key,
               groups = static_cast<unsigned>(bits.words) / kWords,
               fillers = kMaskOfBlocks ? (groups + kFilled - 1) / kFilled : 0,
               heads = bits.head_planes == 0 ? 1U : static_cast<unsigned>(call.num_heads);
    const auto id = static_cast<unsigned>(workgroup_id());
    const unsigned row = id / (groups + fillers), plane = row / blocks,
                   nth = id - row * (groups + fillers);
    const bool fills = nth >= groups;
    return {static_cast<int>(plane / heads),
            static_cast<int>(plane % heads),
            plane,
            row - plane * blocks,
            Int64{fills ? (nth - groups) * kFilled : nth} * kMaskKeys,
            fills};
  }
};

// The bits of 64 keys.
using HalfRow = Words<2>;

// Returns four bits, one for each byte: 1 if the byte is not 0.
FULMEN_DEVICE unsigned nonzero_bytes(unsigned x) {
  x |= x >> 4U;
  x |= x >> 2U;
  x |= x >> 1U;
  return (x & 0x01010101U) * 0x10204080U >> 28U;
}
// The mask's bytes [0, count) of 64; the others are 0.
FULMEN_DEVICE HalfRow load_half_row(const unsigned char* bytes, int count) {
  HalfRow bits{};
  if (count >= 64 && reinterpret_cast<unsigned long long>(bytes) % 16 == 0) {
    Words<4> pieces[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      pieces[n] = global_load(reinterpret_cast<const Words<4>*>(bytes) + n);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      bits.word[n / 8] |= nonzero_bytes(pieces[n / 4].word[n % 4])
                          << (4U * (static_cast<unsigned>(n) % 8));
    }
  } else {
    for (int n = 0; n < count && n < 64; ++n) {
      const unsigned bit = (global_load(bytes + n) != 0 ? 1U : 0U)
                           << (static_cast<unsigned>(n) % 32);
      bits.word[0] |= n < 32 ? bit : 0;
      bits.word[1] |= n < 32 ? 0 : bit;
    }
  }
  return bits;
}
// What mask_mod leaves of 16 keys, in the low bits. Those from last_key on repeat it.
FULMEN_DEVICE unsigned keys_of_function(const ForwardArguments& a, const MaskPlace& place, int i,
                                        int first_key, int last_key) {
  unsigned bits = 0;
  if constexpr (kMaskOfFunction) {
    // Loads of the function's tensors are in flight together.
#pragma unroll 8
    for (int n = 0; n < 16; ++n) {
      const int asked = first_key + n, j = asked < last_key ? asked : last_key;
      const bool attended = mask_mod(a.functions, {0.0F, place.batch, place.head, i, j});
      bits |= (attended ? 1U : 0U) << static_cast<unsigned>(n);
    }
  }
  return bits;
}
// What mask_mod and the block mask leave of keys [first_key, first_key + count) of query i.
FULMEN_DEVICE HalfRow half_row_of_functions(const ForwardArguments& a, const MaskPlace& place,
                                            Int64 i, Int64 first_key, int count) {
  const int query = static_cast<int>(i), first = static_cast<int>(first_key);
  const BlockMask& blocks = a.block_mask;
  const unsigned char* state_at = nullptr;  // of the block of 16 keys
  int in_block = 0;                         // their place in it
  if constexpr (kMaskOfBlocks) {
    const Int64 plane = place.batch * blocks.batch_planes + place.head * blocks.head_planes;
    const int block = first / blocks.block_k;
    in_block = first - block * blocks.block_k;
    state_at = blocks.states +
               (plane * blocks.query_blocks + query / blocks.block_q) * blocks.key_blocks + block;
  }
  HalfRow bits{};
  const auto add = [&](int begin, unsigned keys) {
    bits.word[0] |= begin < 32 ? keys << static_cast<unsigned>(begin) : 0;
    bits.word[1] |= begin < 32 ? 0 : keys << static_cast<unsigned>(begin - 32);
  };
#pragma unroll 1
  for (int begin = 0; begin < count; begin += 16) {
    const int state = kMaskOfBlocks ? global_load(state_at) : kPartialBlock;
    if (kMaskOfFunction && state == kPartialBlock) {
      add(begin, keys_of_function(a, place, query, first + begin, first + count - 1));
    } else if (state != kMaskedBlock) {
      add(begin, 0xFFFFU);
    }
    if constexpr (kMaskOfBlocks) {
      in_block += 16;
      state_at += in_block == blocks.block_k ? 1 : 0;
      in_block = in_block == blocks.block_k ? 0 : in_block;
    }
  }
#pragma unroll
  for (int w = 0; w < 2; ++w) bits.word[w] &= bit_range(0, count - 32 * w);
  return bits;
}
}  // namespace fulmen::kernels
