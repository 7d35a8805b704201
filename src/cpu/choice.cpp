#include "cpu/choice.h"

#include <limits>

#include "cpu/tile/tile.h"

namespace fulmen::cpu {
namespace {

bool always(const IsaTable& /*set*/, const Problem& /*problem*/) { return true; }

// Few rows do not fill the tiles of prefill and short.
bool has_few_rows(const Problem& p) {
  constexpr int64_t kTileRows = 16, kFewQueries = 8;
  return shared_rows(p) <= kTileRows || p.seqlen_q <= kFewQueries;
}

// One quad of rows, and keys that come from memory: products in vectors hide behind it, and read it
// more evenly than matrix tiles.
bool has_one_quad_from_memory(const IsaTable& set, const Problem& p) {
  constexpr int64_t kQuad = 4;
  constexpr double kCachedBytes = 64e6;
  return set.amx_tiles && shared_rows(p) <= kQuad && p.bytes() > kCachedBytes;
}

// Matrix tiles read many keys a query at the speed of memory, however many rows there are.
bool is_bound_by_memory(const IsaTable& set, const Problem& p) {
  constexpr int64_t kFewKeysPerQuery = 8;
  if (has_few_rows(p)) return !has_one_quad_from_memory(set, p);
  return set.amx_tiles && p.seqlen_k > kFewKeysPerQuery * p.seqlen_q;
}

// Vectors of prefill and short read keys and values once for each query head. Decode reads them
// once for the heads of a group; without a group it gains up to half a tile of rows, of more than a
// tile of keys.
bool reads_keys_less_often(const IsaTable& set, const Problem& p) {
  constexpr int64_t kHalfTile = 32;
  if (set.amx_tiles) return false;
  return p.group_size() != 1 || (p.seqlen_k > kMaxBlockN && shared_rows(p) <= kHalfTile);
}
bool reads_a_tile_of_keys_less_often(const IsaTable& set, const Problem& p) {
  return p.seqlen_k <= kMaxBlockN && reads_keys_less_often(set, p);
}

// As measured: docs/lab/cpu_decode.md, "Many rows a KV head". Matrix tiles are faster than vectors
// all the same, so the ranks between two families stay below the next set's preference.
constexpr Preference kPreferences[]{
    // Reads K and V once, at the speed of memory.
    {"decode", 30, is_bound_by_memory},
    // Below the vectors of the same family.
    {"decode", 27.5, has_one_quad_from_memory},
    // Above short of the same set.
    {"decode", 20.5, reads_a_tile_of_keys_less_often},
    // Whole score rows: nothing is rescaled.
    {"short", 20, always},
    // Above prefill of the same set.
    {"decode", 10.5, reads_keys_less_often},
    {"prefill", 10, always},
    // The tiles of prefill are filled, and their arithmetic is faster: below all of its sets.
    {"decode", 9, always, true},
    // The only one with products in int8, where they are asked for: a problem without products
    // leaves it behind the others.
    {"prefill_int8", 1, always},

    // Gradients.
    {"backward", 10, always},
};

}  // namespace

std::span<const Preference> preferences() { return kPreferences; }

double rank(std::string_view family, const InstructionSet& isa, const Problem& problem) {
  for (const Preference& row : kPreferences) {
    if (row.family != family || !row.when(*isa.table, problem)) continue;
    return row.rank + (row.same_for_all_sets ? 0 : isa.preference);
  }
  return 0;
}

int64_t shared_rows(const Problem& problem) {
  int64_t rows = 0;
  return __builtin_mul_overflow(problem.group_size(), problem.seqlen_q, &rows)
             ? std::numeric_limits<int64_t>::max()
             : rows;
}

}  // namespace fulmen::cpu
