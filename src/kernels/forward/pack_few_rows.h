// As pack_mask.h, of up to 32 queries: a lane has a key and goes over the queries, so that no lane
// is left without a pair. The bits are the same.
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kWords = kWorkgroup / 32;  // a lane a key
static_assert(kMaskOfFunction || kMaskOfBlocks, "pack_few_rows: each query has a row of the mask");

// Which keys a workgroup has, and of which plane.
struct MaskPlace {
  int batch, head;
  Int64 plane, first_key;

  // Numbers of workgroups have 32 bits.
  FULMEN_DEVICE static MaskPlace of(const ForwardArguments& call) {
    const MaskBits& bits = call.mask_bits;
    const auto groups = static_cast<unsigned>(bits.words) / kWords,
               heads = bits.head_planes == 0 ? 1U : static_cast<unsigned>(call.num_heads);
    const auto id = static_cast<unsigned>(workgroup_id());
    const unsigned plane = id / groups;
    return {static_cast<int>(plane / heads), static_cast<int>(plane % heads), plane,
            Int64{id - plane * groups} * kWorkgroup};
  }
};

// What the block mask says of the lane's key, whatever the query.
struct BlockColumn {
  const unsigned char* states = nullptr;  // of the first block of queries

  FULMEN_DEVICE static BlockColumn of(const ForwardArguments& a, const MaskPlace& place, int key) {
    if constexpr (!kMaskOfBlocks) return {};
    const BlockMask& blocks = a.block_mask;
    const Int64 plane = place.batch * blocks.batch_planes + place.head * blocks.head_planes;
    return {blocks.states + plane * blocks.query_blocks * blocks.key_blocks + key / blocks.block_k};
  }
  FULMEN_DEVICE int state(const BlockMask& blocks, int query) const {
    if constexpr (!kMaskOfBlocks) return kPartialBlock;
    return global_load(states + Int64{query / blocks.block_q} * blocks.key_blocks);
  }
};

FULMEN_DEVICE bool keeps(const ForwardArguments& a, const MaskPlace& place,
                         const BlockColumn& column, int query, int key) {
  const int state = column.state(a.block_mask, query);
  bool kept = state != kMaskedBlock;
  if (kMaskOfFunction && any_lane(state == kPartialBlock)) {
    const bool attended = mask_mod(a.functions, {0.0F, place.batch, place.head, query, key});
    kept = kept && (attended || state != kPartialBlock);
  }
  if constexpr (kMaskOfBytes) {
    kept = kept &&
           global_load(at<unsigned char>(a.keep_mask, place.batch, query, place.head) + key) != 0;
  }
  return kept;
}

// The 32 lanes' bits.
FULMEN_DEVICE unsigned word_of(bool bit) {
  return static_cast<unsigned>(ballot(bit) >> (static_cast<unsigned>(lane_id()) & 32U));
}

FULMEN_DEVICE void pack_few_rows(const ForwardArguments& call) {
  const MaskBits& bits = call.mask_bits;
  const MaskPlace place = MaskPlace::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  if (a.seqlen_q <= 0 || a.seqlen_k <= 0) return;  // no kernel reads the bits of an empty sequence
  const Int64 j = place.first_key + thread_id(), word = place.first_key / 32 + thread_id() / 32;
  const bool exists = j < a.seqlen_k, stores = thread_id() % 32 == 0;
  // Keys behind the last one repeat it.
  const int key = static_cast<int>(exists ? j : a.seqlen_k - 1);
  const BlockColumn column = BlockColumn::of(a, place, key);
  unsigned any = 0, all = ~0U, queries = 0;
  for (int i = 0; i < static_cast<int>(bits.rows); ++i) {
    const bool there = i < a.seqlen_q;  // the same in all lanes
    const bool kept = there && keeps(a, place, column, i, key) && exists;
    const unsigned row = word_of(kept);
    any |= word_of(kept && in_band(a, i, j));
    all &= there ? row : ~0U;
    queries |= (kept ? 1U : 0U) << static_cast<unsigned>(i);
    if (stores)
      global_store(bits.by_query + (place.plane * bits.rows + i) * bits.words + word, row);
  }
  if (stores) {
    global_store(bits.any + place.plane * bits.words + word, any);
    global_store(bits.all + place.plane * bits.words + word, all);
  }
  if (bits.by_key == nullptr || j >= bits.keys) return;
  auto* const to =
      reinterpret_cast<Words<2>*>(bits.by_key + (place.plane * bits.keys + j) * bits.query_words);
  global_store(to, Words<2>{{queries, 0}});
  for (int n = 1; n < bits.query_words / 2; ++n) global_store(to + n, Words<2>{});
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::pack_few_rows)
