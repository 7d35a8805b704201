// kernels/sequences/work_tiles.h: the list of work tiles of sequences of different lengths, which
// persistent kernels take by a tile counter.
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// The problem as if all sequences had their mean length, where packed tensors tell it.
Problem with_mean_lengths(const Problem& problem);
// How many tiles of so many queries, or keys, a head's sequences have together at most: each of
// those that are packed begins with a tile of its own.
int64_t most_query_tiles(const Problem& problem, int64_t rows);
int64_t most_key_tiles(const Problem& problem, int64_t rows);
// Heads of a KV head that share tiles of block_m rows where a sequence has few queries
// (algorithm::SharedTiles): 1 where no sequence's tiles would be fewer.
int shared_heads(const Problem& problem, int block_m);
// Puts the launch that makes the list, and clears the tile counter, before the plan's, and reserves
// the workspace that the list takes. Sets section_heads.
void add_work_tiles(const Problem& problem, LaunchPlan& plan);
// Where the list is, in the plan's room at `at`.
void set_work_table(const LaunchPlan& plan, float* at, kernels::WorkTable& work);

}  // namespace fulmen::gpu
