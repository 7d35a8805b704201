// The launch behind forward/pack_mask.h that lists, for each block of keys of backward_tma.h, the
// tiles of queries that attend some of it (algorithm/mask_tiles.h). A workgroup has a block, a lane
// a tile.
#include "backward/parts/mask_tile_list.h"

namespace fulmen::kernels {

constexpr int kMaskTileWaves = kWorkgroup / kWaveSize;
static_assert(kLdsBytes == 16 * kMaskTileWaves, "mask_tiles: the host reserves LDS for its waves");

FULMEN_DEVICE int bits_of(unsigned x) {
  x -= x >> 1U & 0x55555555U;
  x = (x & 0x33333333U) + (x >> 2U & 0x33333333U);
  return static_cast<int>(((x + (x >> 4U)) & 0x0F0F0F0FU) * 0x01010101U >> 24U);
}

// What the heads that share a KV head's keys attend, of all tiles and blocks.
class AttendedTiles {
 public:
  FULMEN_DEVICE AttendedTiles(const ForwardArguments& a, Int64 batch, Int64 kv_head)
      : arguments_(a),
        first_row_(mask_plane(a, batch, kv_head * a.group_size) * a.mask_bits.blocks),
        heads_(a.mask_bits.head_planes == 0 ? 1 : a.group_size) {}
  // The block's keys that some query of the tile attends.
  FULMEN_DEVICE Words<4> keys(int tile, Int64 block) const {
    Words<4> keys{};
    for (int n = 0; n < heads_; ++n) {
      const Words<4> x = load(arguments_.mask_bits.any, n, tile, block);
#pragma unroll
      for (int w = 0; w < 4; ++w) keys.word[w] |= x.word[w];
    }
    return keys;
  }
  FULMEN_DEVICE bool some(int tile, Int64 block) const { return is_some(keys(tile, block)); }
  // How many of blocks [begin, end) have the tile.
  FULMEN_DEVICE int blocks(int tile, Int64 begin, Int64 end) const {
    int count = 0;
    if (heads_ == 1) {
      const unsigned* const any = arguments_.mask_bits.any;
      // Loads of eight blocks are in flight together.
#pragma unroll 8
      for (Int64 block = begin; block < end; ++block)
        count += is_some(load(any, 0, tile, block)) ? 1 : 0;
    } else {
      for (Int64 block = begin; block < end; ++block) count += some(tile, block) ? 1 : 0;
    }
    return count;
  }

 private:
  FULMEN_DEVICE static bool is_some(const Words<4>& x) {
    return (x.word[0] | x.word[1] | x.word[2] | x.word[3]) != 0;
  }
  FULMEN_DEVICE Words<4> load(const unsigned* bits, int head, int tile, Int64 block) const {
    const MaskBits& m = arguments_.mask_bits;
    const Int64 row = first_row_ + head * m.blocks + (m.blocks == 1 ? 0 : tile);
    return global_load(
        reinterpret_cast<const Words<4>*>(bits + row * m.words + block * (kMaskTileKeys / 32)));
  }

  const ForwardArguments& arguments_;
  Int64 first_row_;  // of `any` and `all`
  int heads_;
};

// The sum over a workgroup's lanes.
FULMEN_DEVICE int sum_of_lanes(int x) {
#pragma unroll
  for (int mask = 1; mask < kWaveSize; mask *= 2)
    x += static_cast<int>(shuffle_xor(static_cast<unsigned>(x), mask));
  const int wave = wave_id();  // which all lanes of a wave ask for together
  barrier();
  if (lane_id() == 0) lds_store(4 * wave, x);
  barrier();
  int sum = 0;
  for (int n = 0; n < kMaskTileWaves; ++n) sum += lds_load<int>(4 * n);
  return sum;
}

// Where dq has an order, a block waits at each tile for those that were taken before. Under a
// triangle below the diagonal, blocks of later keys begin with later queries: taken first, with
// tiles from the first to the last, they are ahead of all others. Above the diagonal it is the
// other way round. Which one a mask is like its first and last rows and columns say. Blocks whose
// heads share keys are taken in the opposite order: they read so much that it matters more that all
// of them read the same tiles (docs/lab/nvidia_backward.md).
FULMEN_DEVICE bool is_upwards(const ForwardArguments& a, const AttendedTiles& attended,
                              const MaskTiles& table) {
  const auto tiles = static_cast<int>(table.tiles), blocks = static_cast<int>(table.blocks);
  int below = 0;
  for (int n = thread_id(); n < tiles; n += kWorkgroup)
    below += (attended.some(n, 0) ? 1 : 0) - (attended.some(n, blocks - 1) ? 1 : 0);
  for (int n = thread_id(); n < blocks; n += kWorkgroup)
    below += (attended.some(tiles - 1, n) ? 1 : 0) - (attended.some(0, n) ? 1 : 0);
  const int sum = sum_of_lanes(below);
  return a.group_size > 1 ? sum >= 0 : sum < 0;
}

FULMEN_DEVICE void mask_tiles(const ForwardArguments& a) {
  const MaskTiles table = MaskTiles::of(a.seqlen_q, a.seqlen_k);
  const auto blocks = static_cast<unsigned>(table.blocks),
             id = static_cast<unsigned>(workgroup_id()), plane = id / blocks, block = id % blocks;
  const unsigned heads = a.mask_bits.head_planes == 0 ? 1U : static_cast<unsigned>(a.num_kv_heads);
  const AttendedTiles attended(a, plane / heads, plane % heads);
  unsigned* const list = a.mask_bits.lists + table.list(plane, block);
  const bool upwards = is_upwards(a, attended, table);
  // Blocks [begin, end) are taken before this one.
  const Int64 begin = upwards ? 0 : block + 1, end = upwards ? block : table.blocks;
  const int wave = wave_id();
  const auto tiles = static_cast<int>(table.tiles);
  Words<4> keys{};  // that a lane's tiles attend
  int written = 0;
  for (int first = 0; first < tiles; first += kWorkgroup) {
    const int nth = first + thread_id(), tile = upwards ? tiles - 1 - nth : nth;
    bool some = false;
    if (nth < tiles) {
      const Words<4> own = attended.keys(tile, block);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        some = some || own.word[w] != 0;
        keys.word[w] |= own.word[w];
      }
      // What no query has a key of is stored as 0 by the block that is taken first.
      if (begin == end && !some) some = attended.blocks(tile, 0, table.blocks) == 0;
    }
    const auto found = static_cast<unsigned>(ballot(some));
    barrier();
    if (lane_id() == 0) lds_store(4 * wave, bits_of(found));
    barrier();
    int at = written + bits_of(found & ((1U << static_cast<unsigned>(lane_id())) - 1));
    for (int n = 0; n < kMaskTileWaves; ++n) {
      const int count = lds_load<int>(4 * n);
      at += n < wave ? count : 0;
      written += count;
    }
    if (some) {
      const MaskTile entry = MaskTile::of(tile, attended.blocks(tile, begin, end));
      global_store(list + MaskTiles::kHeadWords + at, entry.word);
    }
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int mask = 1; mask < kWaveSize; mask *= 2) keys.word[w] |= shuffle_xor(keys.word[w], mask);
  }
  barrier();
  if (lane_id() == 0) lds_store(16 * wave, keys);
  barrier();
  if (thread_id() != 0) return;
  for (int n = 1; n < kMaskTileWaves; ++n) {
    const auto part = lds_load<Words<4>>(16 * n);
#pragma unroll
    for (int w = 0; w < 4; ++w) keys.word[w] |= part.word[w];
  }
  global_store(reinterpret_cast<Words<2>*>(list),
               Words<2>{{static_cast<unsigned>(written), upwards ? 1U : 0U}});
  global_store(reinterpret_cast<Words<4>*>(list + MaskTiles::kKeysAt), keys);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::mask_tiles)
