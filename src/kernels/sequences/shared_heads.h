// Work tiles that query heads of a KV head share (kSharesTiles): algorithm::SharedTiles.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

static_assert(!kSharesTiles || (kVariable && kSharedHeads <= 64 && !kDropout),
              "a warpgroup's 64 rows have whole queries");
constexpr algorithm::SharedTiles kSharing{kSharedHeads, kBlockM};
constexpr int kSharedRows = kSharing.queries_of_group() * kSharedHeads;  // of a warpgroup

// What a sequence's tile has.
struct TileQueries {
  Int64 begin, end;
  int head;  // the first one, of kSharedHeads

  FULMEN_DEVICE static TileQueries of(Int64 q_len, int tile) {
    const bool shared = kSharing.is_shared(q_len);
    const int queries = shared ? kSharing.queries() : kBlockM;
    const Int64 begin = Int64{shared ? tile : tile / kSharedHeads} * queries;
    return {begin, begin + queries < q_len ? begin + queries : q_len,
            shared ? 0 : tile % kSharedHeads};
  }
};

}  // namespace fulmen::kernels
