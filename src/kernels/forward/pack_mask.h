// The launch before kernels that read masks as bits (core/arguments.h: MaskBits): of the
// keep-mask's bytes, of mask_mod, evaluated here once for each pair, and of a block mask
// (block_states.h). A workgroup has kMaskRows queries and kMaskKeys keys, a lane half of a
// query's.
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kMaskKeys = 128, kWords = kMaskKeys / 32;
static_assert(kWorkgroup == 2 * kMaskRows && kWorkgroup == kMaskKeys,
              "pack_mask: two lanes have a query, one a key");

struct MaskPlace {
  int batch, head;
  Int64 plane, block, first_key;

  // Numbers of workgroups have 32 bits; divisions of 64 would take longer than all else here.
  FULMEN_DEVICE static MaskPlace of(const ForwardArguments& call) {
    const MaskBits& bits = call.mask_bits;
    const auto by_query = static_cast<unsigned>(bits.blocks),
               by_key = bits.by_key == nullptr ? 0 : static_cast<unsigned>(bits.query_words) / 2,
               blocks = by_query > by_key ? by_query : by_key,
               groups = static_cast<unsigned>(bits.words) / kWords,
               heads = bits.head_planes == 0 ? 1U : static_cast<unsigned>(call.num_heads);
    const auto id = static_cast<unsigned>(workgroup_id());
    const unsigned row = id / groups, plane = row / blocks;
    return {static_cast<int>(plane / heads), static_cast<int>(plane % heads), plane,
            row - plane * blocks, Int64{id - row * groups} * kMaskKeys};
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
// Bits [begin, end) of a word, where both may lie outside.
FULMEN_DEVICE unsigned bit_range(int begin, int end) {
  const auto below = [](int n) {
    return n <= 0 ? 0U : n >= 32 ? ~0U : (1U << static_cast<unsigned>(n)) - 1;
  };
  return below(end) & ~below(begin);
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
// The bits of 32 rows and 32 columns, of which a lane has row lane % 32, transposed: it gets the
// column of that number.
FULMEN_DEVICE unsigned transpose_bits(unsigned x) {
  unsigned below = 0x0000FFFFU;  // bits whose number lacks `distance`
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const auto shift = static_cast<unsigned>(distance);
    const unsigned other = shuffle_xor(x, distance);
    x = (lane_id() & distance) == 0 ? (x & below) | (other & below) << shift
                                    : (x & ~below) | (other & ~below) >> shift;
    below ^= below << (shift / 2);
  }
  return x;
}
FULMEN_DEVICE int near(Int64 distance) {
  return static_cast<int>(algorithm::Band::clamp(distance, -kMaskKeys, kMaskKeys));
}

// LDS: the rows' bits, then what each wave's rows have in common.
constexpr int kPartsAt = kMaskRows * kWords * 4, kPartBytes = 4 * kWords;
static_assert(kLdsBytes == kPartsAt + 2 * kPartBytes * (kWorkgroup / 32),
              "pack_mask: the host reserves LDS for its rows and parts");
FULMEN_DEVICE int part_at(int wave, int kind) { return kPartsAt + (2 * wave + kind) * kPartBytes; }

FULMEN_DEVICE void pack_mask(const ForwardArguments& call) {
  const MaskBits& bits = call.mask_bits;
  const MaskPlace place = MaskPlace::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  if (a.seqlen_q <= 0 || a.seqlen_k <= 0) return;  // no kernel reads the bits of an empty sequence
  const int row = thread_id() / 2, half = thread_id() % 2;
  const Int64 i = place.block * kMaskRows + row, first_key = place.first_key + 64 * half;
  const bool exists = i < a.seqlen_q, there = bits.rows == 1 || exists;
  const Int64 query = bits.rows == 1 ? 0 : i;  // whose mask the row has
  HalfRow kept{}, attended{}, all{{~0U, ~0U}};
  if (there && first_key < a.seqlen_k) {
    const int count = at_most(a.seqlen_k - first_key, 64);
    if constexpr (kMaskOfBytes) {
      const auto* mask = at<unsigned char>(a.keep_mask, place.batch, query, place.head);
      kept = load_half_row(mask + first_key, count);
    }
    if constexpr (kMaskOfFunction || kMaskOfBlocks) {
      const HalfRow left = half_row_of_functions(a, place, query, first_key, count);
#pragma unroll
      for (int w = 0; w < 2; ++w)
        kept.word[w] = kMaskOfBytes ? kept.word[w] & left.word[w] : left.word[w];
    }
  }
  if (there) all = kept;
  if (exists) {
    const algorithm::Band band = band_of(a);
    const int begin = near(band.first(i) - first_key),
              end = near(band.last_plus_one(i) - first_key);
#pragma unroll
    for (int w = 0; w < 2; ++w)
      attended.word[w] = kept.word[w] & bit_range(begin - 32 * w, end - 32 * w);
  }
  if (i < bits.rows)
    global_store(reinterpret_cast<HalfRow*>(
                     bits.by_query + (place.plane * bits.rows + i) * bits.words + first_key / 32),
                 kept);
  lds_store(4 * (row * kWords + 2 * half), kept);

  // Reduces over the wave's rows, then over all rows of the block.
#pragma unroll
  for (int w = 0; w < 2; ++w) {
#pragma unroll
    for (int mask = 2; mask < kWaveSize; mask *= 2) {
      attended.word[w] |= shuffle_xor(attended.word[w], mask);
      all.word[w] &= shuffle_xor(all.word[w], mask);
    }
  }
  const int wave = wave_id();  // which all lanes of a wave ask for together
  if (lane_id() < 2) {
    lds_store(part_at(wave, 0) + 8 * half, attended);
    lds_store(part_at(wave, 1) + 8 * half, all);
  }
  barrier();
  if (thread_id() < kWords && place.block < bits.blocks) {
    unsigned any = 0, every = ~0U;
    for (int n = 0; n < kWorkgroup / kWaveSize; ++n) {
      any |= lds_load<unsigned>(part_at(n, 0) + 4 * thread_id());
      every &= lds_load<unsigned>(part_at(n, 1) + 4 * thread_id());
    }
    const Int64 to =
        (place.plane * bits.blocks + place.block) * bits.words + place.first_key / 32 + thread_id();
    global_store(bits.any + to, any);
    global_store(bits.all + to, every);
  }
  if (bits.by_key == nullptr || 2 * place.block >= bits.query_words) return;
  const Int64 key = place.first_key + thread_id();
  HalfRow queries;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const int of_row = 32 * w + thread_id() % 32;
    queries.word[w] = transpose_bits(lds_load<unsigned>(4 * (of_row * kWords + thread_id() / 32)));
  }
  if (key >= bits.keys) return;
  auto* to = bits.by_key + (place.plane * bits.keys + key) * bits.query_words + 2 * place.block;
  global_store(reinterpret_cast<HalfRow*>(to), queries);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::pack_mask)
