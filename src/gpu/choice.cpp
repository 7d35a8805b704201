#include "gpu/choice.h"

#include <algorithm>

#include "gpu/launch/backward_tma_shapes.h"
#include "gpu/launch/board_shapes.h"
#include "gpu/launch/prefill_tma_shapes.h"

namespace fulmen::gpu {
namespace {

int64_t larger_dim(const Problem& p) { return std::max(p.head_dim, p.head_dim_v); }
int64_t tiles_of_64_queries(const Problem& p) {
  return tiles_of(p.seqlen_q, 64) * p.batch * p.num_heads;
}

bool always(const Target& /*target*/, const Problem& /*problem*/) { return true; }
bool has_matrix_instructions(const Target& target, const Problem& /*problem*/) {
  return !target.is_portable();
}
// Those that multiply the dtype, where some do: fp32 has none.
bool has_its_products(const Target& target, const Problem& p) {
  return !target.is_portable() || p.dtype == DType::fp32;
}

// `short` holds whole rows of scores, which takes registers: where keys times dims are many, and
// workgroups enough to fill the chip, prefill's larger tiles are faster on an H200
// (docs/lab/nvidia_forward.md). Not for few rows of queries, which leave these half empty.
bool short_is_slower_than_tiles(const Target& target, const Problem& p) {
  constexpr int64_t kFewKeys = 64, kFewKeysTimesDims = 96 * 32, kFewWorkgroups = 128;
  const int64_t few_queries = p.seqlen_k > kFewKeys ? 32 : 64;
  if (target.vendor != Vendor::nvidia || p.seqlen_q <= few_queries) return false;
  const int64_t keys = std::max<int64_t>(32, round_up(p.seqlen_k, 32));
  return keys * larger_dim(p) > kFewKeysTimesDims && tiles_of_64_queries(p) > kFewWorkgroups;
}

// Few queries or keys, and dims that fill half of a panel's columns, are better served by narrower
// products.
bool fills_panels(const Target& target, const Problem& p) {
  return larger_dim(p) > target.panel_columns / 2;
}
bool fills_warpgroup_tiles(const Target& target, const Problem& p) {
  constexpr int64_t kFew = 64;
  if (!target.prefill_wgmma || p.seqlen_q <= kFew || p.seqlen_k <= kFew || !fills_panels(target, p))
    return false;
  // So are lengths that leave a third of the largest tiles' rows empty: 128 and 256.
  const int64_t rows =
      int64_t{64} * target.prefill_wgmma->shape_for(larger_dim(p), p.seqlen_k).warpgroups;
  return rows <= 128 || 3 * p.seqlen_q > 2 * rows * tiles_of(p.seqlen_q, rows);
}
// Its tiles go by the rows that there are. For few rows quantized keys are not worth the launch
// that writes them as numbers.
bool fills_tma_tiles(const Target& target, const Problem& p) {
  constexpr int64_t kFewKeys = 64, kDecodeRows = 32;
  return p.seqlen_k > kFewKeys && (fills_panels(target, p) || narrow_heads_take_tma(p)) &&
         !(p.quantized_kv() && packed_rows(p) <= kDecodeRows);
}
// All tiles run at once, and each has so few keys that it ends before keys that were split would be
// merged.
bool has_few_short_tiles(const Target& target, const Problem& p) {
  constexpr int64_t kFewTiles = 128, kFewKeys = 512, kFewOfAll = 64 * 512;
  const int64_t tiles = tiles_of_64_queries(p);
  return !p.variable_lengths() && fills_tma_tiles(target, p) && tiles <= kFewTiles &&
         p.seqlen_k <= kFewKeys && tiles * p.seqlen_k <= kFewOfAll;
}
// Packed sequences that fill most of a tile of 64 rows: 102 to 82 us of vision models' windows, 256
// of 64 tokens, 16 heads of 80.
bool packs_short_rows(const Target& target, const Problem& p) {
  constexpr int64_t kTile = 64, kMostOfATile = 48;
  return p.packed_q() && p.seqlen_q <= kTile && p.total_q > kMostOfATile * p.batch &&
         larger_dim(p) > target.panel_columns;
}
// Squares of one tile are better served by narrower products, too, and so is dbias beside dq.
bool fills_backward_warpgroup_tiles(const Target& target, const Problem& p) {
  constexpr int64_t kTile = 64, kWide = 192;
  const bool few = p.seqlen_k <= kTile && (p.dbias.present || p.seqlen_q <= kTile);
  return fills_panels(target, p) && !(few && larger_dim(p) <= kWide);
}

// One tile of keys: dq's sums in memory save nothing.
constexpr int64_t kTileKeys = 64;
bool has_many_keys(const Target& /*target*/, const Problem& p) { return p.seqlen_k > kTileKeys; }

// Blocks of keys that leave half of the chip without work: backward_wgmma splits the queries.
bool has_few_key_blocks(const Problem& p) {
  constexpr int64_t kBlock = 128, kFewBlocks = 64, kManyQueries = 1024;
  return !p.variable_lengths() && p.seqlen_q >= kManyQueries &&
         tiles_of(p.seqlen_k, kBlock) * p.batch * p.num_kv_heads <= kFewBlocks;
}

bool fills_persistent_workgroups(const Target& target, const Problem& p) {
  return has_many_keys(target, p) && fills_panels(target, p) &&
         fills_backward_tma(*target.backward_tma, p);
}

// Few queries whose keys are worth a pipeline's start. Where heads that share keys fill fewer tiles
// together, keys are read less often; else there have to be many, so that no family of tiles has
// enough of them. Of lengths that differ no such family runs.
bool has_long_rows_of_keys(const Target& target, const Problem& p) {
  constexpr int64_t kTile = 64, kMostQueries = 64, kFewQueries = 32, kFewTiles = 128;
  constexpr int64_t kSharedKeys = 128, kSomeKeys = 512, kManyKeys = 2048;
  // decode reads a mask's bytes, decode_tma bits, which a launch makes first.
  constexpr int64_t kBytesBesideMask = int64_t{48} << 20;
  if (p.seqlen_q > kMostQueries) return false;
  if (p.keep_mask.present && !has_mask_parts(p) &&
      p.batch * p.num_kv_heads * p.seqlen_k * key_bytes(p) < kBytesBesideMask)
    return false;
  const bool packs = tiles_of(packed_rows(p), kTile) < tiles_of(p.seqlen_q, kTile) * p.group_size();
  if (packs && fills_panels(target, p)) return p.seqlen_k >= kSharedKeys;
  if (packs || p.variable_lengths()) return p.seqlen_k >= kSomeKeys;
  return p.seqlen_k >= kManyKeys &&
         (p.seqlen_q <= kFewQueries || tiles_of_64_queries(p) <= kFewTiles);
}

constexpr Preference kPreferences[]{
    // Forward. Latent attention, whose tiles of keys are the values, too.
    {"decode_latent", 43, always},
    // Little work, which ends soonest in tiles that the TMA brings.
    {"prefill_tma", 42, has_few_short_tiles},
    // Few queries and many keys, split to fill the chip. The TMA has more of them in flight.
    {"decode_tma", 41, has_long_rows_of_keys},
    {"decode", 40,
     [](const Target& target, const Problem& p) {
       return p.seqlen_k > 128 && has_its_products(target, p);
     }},
    // Chess boards: whole boards are copied asynchronously, at the speed of memory. Where `boards`
    // does not run: prefill, in tiles of 64 x 64.
    {"boards", 33, always},
    {"prefill", 32, prefers_board_shapes},
    {"prefill_tma", 31, packs_short_rows},
    // Short sequences: whole rows of scores in registers. It has its second place below.
    {"short", 30,
     [](const Target& target, const Problem& p) { return !short_is_slower_than_tiles(target, p); }},
    // Hopper's warpgroup products, whose tiles the TMA brings, where it reads the tensors.
    {"prefill_tma", 26, fills_tma_tiles},
    {"decode", 25, has_its_products},
    // Tiles: Hopper's warpgroup products, where they are filled; mma and AMD's; the others.
    {"prefill_wgmma", 24, fills_warpgroup_tiles},
    {"prefill", 20, has_matrix_instructions},
    {"prefill_fp32", 20, always},
    {"prefill_wgmma", 19, always},
    {"short", 18, always},
    {"prefill_tma", 17, always},
    {"decode_tma", 16, always},
    // Products in 8 bits, where they are asked for.
    {"prefill_fp8", 15, always},
    {"prefill_e4m3", 15, always},
    {"prefill_int8", 15, always},
    // 16 bits without matrix instructions, on chips that have none.
    {"decode", 12, always},
    {"prefill", 10, always},

    // Backward. Boards: all gradients in one launch.
    {"short_backward", 30, always},
    // 5 products in order, by the TMA, where it reads the tensors. Then 5 with atomics before 7
    // without: those are asked only where results may differ from run to run. Where tiles are
    // filled, warpgroup products come first.
    {"backward_tma", 25, fills_persistent_workgroups},
    {"backward_wgmma_atomic", 24,
     [](const Target& target, const Problem& p) {
       return has_many_keys(target, p) && fills_panels(target, p) && !has_few_key_blocks(p);
     }},
    {"backward_wgmma", 23, fills_backward_warpgroup_tiles},
    {"backward_atomic", 22, has_many_keys},
    {"backward_wgmma_atomic", 21, has_many_keys},
    {"backward", 20, has_matrix_instructions},
    {"backward_fp32", 20, always},
    {"backward_atomic", 18, always},
    {"backward_wgmma_atomic", 17, always},
    {"backward_wgmma", 16, always},
    {"backward_tma", 15, always},
    {"backward", 10, always},
};

}  // namespace

std::span<const Preference> preferences() { return kPreferences; }

double rank(const Family& family, const Problem& problem) {
  for (const Preference& row : kPreferences) {
    if (row.family == family.name() && row.when(family.target(), problem)) return row.rank;
  }
  return 0;
}

}  // namespace fulmen::gpu
