// Work tiles that query heads of a KV head share (kSharesTiles): algorithm::SharedTiles.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

static_assert(!kSharesTiles || kVariable, "heads share tiles of sequences");

// How many heads share tiles.
FULMEN_DEVICE int shared_heads(const ForwardArguments& a) {
  return kSharesTiles ? a.work.heads : 1;
}
FULMEN_DEVICE algorithm::SharedTiles shared_tiles(const ForwardArguments& a) {
  if constexpr (!kSharesTiles) return algorithm::SharedTiles::of(1, kBlockM);
  return {a.work.heads, a.work.group_queries, kBlockM};
}
// A warpgroup's rows of a tile that heads share.
FULMEN_DEVICE int shared_rows(const ForwardArguments& a) {
  return a.work.group_queries * a.work.heads;
}
FULMEN_DEVICE bool shares_tile(const WorkTile& work) {
  return kSharesTiles && (work.marks & WorkTile::kShared) != 0;
}
FULMEN_DEVICE int group_rows(const ForwardArguments& a, const WorkTile& work) {
  return shares_tile(work) ? shared_rows(a) : 64;
}
// Returns true if heads share one tile of all the sequence's queries.
FULMEN_DEVICE bool has_sequence(const ForwardArguments& a, const WorkTile& work) {
  return kSharesTiles && work.q_len <= shared_tiles(a).queries();
}
// A row's query in such a tile, of few.
FULMEN_DEVICE unsigned shared_query(const ForwardArguments& a, Int64 row) {
  const unsigned long long product =
      static_cast<unsigned long long>(static_cast<unsigned>(row)) * a.work.head_reciprocal;
  return static_cast<unsigned>(product >> 32U);
}

// What a sequence's tile has.
struct TileQueries {
  Int64 begin, end;
  int head;  // the first one, of shared_heads()

  FULMEN_DEVICE static TileQueries of(const ForwardArguments& call, Int64 q_len, int tile,
                                      bool shared) {
    const int queries = shared ? shared_tiles(call).queries() : kBlockM;
    const auto number = static_cast<unsigned>(tile),
               heads = static_cast<unsigned>(shared_heads(call));
    const Int64 begin = Int64{shared ? number : number / heads} * queries;
    return {begin, begin + queries < q_len ? begin + queries : q_len,
            shared ? 0 : static_cast<int>(number % heads)};
  }
};

}  // namespace fulmen::kernels
