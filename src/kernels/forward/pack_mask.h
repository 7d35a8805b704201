// The launch before kernels that read masks as bits (core/arguments.h: MaskBits): of the
// keep-mask's bytes, of mask_mod, evaluated here once for each pair, and of a block mask
// (block_states.h). A workgroup has kMaskRows queries and kMaskKeys keys, a lane half of a
// query's (MaskPlace).
#include "forward/parts/half_row_bits.h"

namespace fulmen::kernels {

static_assert(kWorkgroup == 2 * kMaskRows && kWorkgroup == kMaskKeys,
              "pack_mask: two lanes have a query, one a key");

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

// What the block mask says of all of a workgroup's pairs; kPartialBlock where it says nothing of
// them together.
FULMEN_DEVICE int state_of_all(const ForwardArguments& a, const MaskPlace& place) {
  if constexpr (!kMaskOfBlocks) return kPartialBlock;
  const BlockMask& blocks = a.block_mask;
  const Int64 first_row = place.block * kMaskRows;
  if (place.first_key >= a.seqlen_k) return kMaskedBlock;
  if (blocks.block_q % kMaskRows != 0 || blocks.block_k % kMaskKeys != 0 || first_row >= a.seqlen_q)
    return kPartialBlock;
  const Int64 plane = place.batch * blocks.batch_planes + place.head * blocks.head_planes;
  const int state =
      global_load(blocks.states +
                  (plane * blocks.query_blocks + static_cast<int>(first_row) / blocks.block_q) *
                      blocks.key_blocks +
                  static_cast<int>(place.first_key) / blocks.block_k);
  if (state == kMaskedBlock) return kMaskedBlock;
  const bool is_whole = !kMaskOfBytes && !kBand && first_row + kMaskRows <= a.seqlen_q &&
                        place.first_key + kMaskKeys <= a.seqlen_k;
  return is_whole ? state : kPartialBlock;
}
// Stores the bits of those of kFilledBlocks blocks of keys that are all the same, by whole lines of
// memory, but for by_key's.
FULMEN_DEVICE void fill_blocks(const ForwardArguments& a, const MaskPlace& place) {
  constexpr int kBlocks = algorithm::kFilledBlocks;
  using Row = Words<kWords>;
  const MaskBits& bits = a.mask_bits;
  const int own = thread_id() % kBlocks;  // a lane's block
  MaskPlace of_own = place;
  of_own.first_key += Int64{own} * kMaskKeys;
  const bool exists = of_own.first_key < Int64{32} * bits.words;
  const int state = exists ? state_of_all(a, of_own) : kPartialBlock;
  const bool same = state != kPartialBlock;
  const unsigned word = state == kMaskedBlock ? 0 : ~0U;
  const Row row{{word, word, word, word}};
  const Int64 to = of_own.first_key / 32;
#pragma unroll
  for (int n = thread_id() / kBlocks; n < kMaskRows; n += kWorkgroup / kBlocks) {
    const Int64 i = place.block * kMaskRows + n;
    if (same && i < bits.rows)
      global_store(
          reinterpret_cast<Row*>(bits.by_query + (place.plane * bits.rows + i) * bits.words + to),
          row);
  }
  if (same && thread_id() < kBlocks && place.block < bits.blocks) {
    const Int64 at = (place.plane * bits.blocks + place.block) * bits.words + to;
    global_store(reinterpret_cast<Row*>(bits.any + at), row);
    global_store(reinterpret_cast<Row*>(bits.all + at), row);
  }
}
// The same of by_key, where a line of memory has a key's bits of kLineBlocks blocks of queries: the
// workgroup of the first of these blocks stores them.
constexpr int kLineBlocks = 16;
FULMEN_DEVICE void fill_keys(const ForwardArguments& a, const MaskPlace& place) {
  const MaskBits& bits = a.mask_bits;
  MaskPlace own = place;
  own.block += thread_id() % kLineBlocks;
  if (2 * own.block >= bits.query_words) return;
  const int state = state_of_all(a, own);
  if (state == kPartialBlock) return;
  const unsigned word = state == kMaskedBlock ? 0 : ~0U;
#pragma unroll
  for (int n = thread_id() / kLineBlocks; n < kMaskKeys; n += kWorkgroup / kLineBlocks) {
    const Int64 key = place.first_key + n;
    if (key < bits.keys)
      global_store(
          reinterpret_cast<HalfRow*>(
              bits.by_key + (place.plane * bits.keys + key) * bits.query_words + 2 * own.block),
          HalfRow{{word, word}});
  }
}

// What a workgroup looks at pair by pair.
FULMEN_DEVICE void pack_pairs(const ForwardArguments& a, const MaskPlace& place) {
  const MaskBits& bits = a.mask_bits;
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

FULMEN_DEVICE void pack_mask(const ForwardArguments& call) {
  grid_dependency_wait();  // what reads the bits is launched early
  const MaskPlace place = MaskPlace::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  if (a.seqlen_q <= 0 || a.seqlen_k <= 0) return;  // no kernel reads the bits of an empty sequence
  if (place.fills) {
    fill_blocks(a, place);
    return;
  }
  if (kMaskOfBlocks && a.mask_bits.by_key != nullptr && place.block % kLineBlocks == 0)
    fill_keys(a, place);
  if (!kMaskOfBlocks || state_of_all(a, place) == kPartialBlock) pack_pairs(a, place);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::pack_mask)
