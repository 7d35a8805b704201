#include "gpu/launch/work_tiles.h"

#include <algorithm>
#include <limits>

namespace fulmen::gpu {
namespace {

constexpr int64_t kCounterFloats = 16;  // the tile counter, and how many tiles there are
constexpr int64_t kTileFloats = sizeof(kernels::WorkTile) / sizeof(float);
constexpr int64_t kLeastRunTiles = 64;

}  // namespace

Problem with_mean_lengths(const Problem& p) {
  Problem mean = p;
  const int64_t batch = std::max<int64_t>(1, p.batch);
  if (p.packed_q()) mean.seqlen_q = std::min(p.seqlen_q, tiles_of(p.total_q, batch));
  if (p.packed_k()) mean.seqlen_k = std::min(p.seqlen_k, tiles_of(p.total_k, batch));
  return mean;
}

int64_t most_query_tiles(const Problem& p, int64_t rows) {
  return p.packed_q() ? p.total_q / rows + p.batch : p.batch * tiles_of(p.seqlen_q, rows);
}
int64_t most_key_tiles(const Problem& p, int64_t rows) {
  return p.packed_k() ? p.total_k / rows + p.batch : p.batch * tiles_of(p.seqlen_k, rows);
}

int shared_heads(const Problem& p, int block_m) {
  constexpr int64_t kMostHeads = 64;  // a warpgroup has a row for each
  if (!p.variable_lengths() || p.dropout > 0) return 1;
  int64_t heads = std::clamp(p.group_size(), int64_t{1}, kMostHeads);
  while (p.group_size() % heads != 0) --heads;
  const auto tiles = algorithm::SharedTiles::of(static_cast<int>(heads), block_m);
  return p.packed_q() || tiles.is_shared(p.seqlen_q) ? tiles.heads : 1;
}

void add_work_tiles(const Problem& p, LaunchPlan& plan) {
  const Specialisation& s = plan.launches.front().specialisation;
  const int64_t tiles = most_query_tiles(p, s.block_m);
  // A run's keys and values, and the heads that share these, stay in the L2.
  const int64_t keys = p.packed_k() ? p.total_k : p.batch * p.seqlen_k;
  const int64_t tile_bytes =
      std::max<int64_t>(1, keys * key_bytes(p) / std::max<int64_t>(1, tiles));
  const int64_t run =
      std::clamp(kL2Bytes / tile_bytes, kLeastRunTiles, int64_t{kernels::kMostRunTiles});
  const int64_t kv_heads = std::clamp(kL2Bytes / (tile_bytes * std::min(run, tiles)), int64_t{1},
                                      std::max<int64_t>(1, p.num_kv_heads));
  kernels::ForwardArguments& a = plan.arguments;
  const int heads = s.shares_tiles ? shared_heads(p, s.block_m) : 1;
  const int64_t listed = tiles * heads;
  a.work.capacity = static_cast<int>(listed);
  a.work.run_tiles = static_cast<int>(run * heads);
  a.work.heads = heads;
  a.work.group_queries = algorithm::SharedTiles::of(heads, s.block_m).group_queries;
  a.work.head_reciprocal = std::numeric_limits<uint32_t>::max() / static_cast<uint32_t>(heads) + 1;
  a.section_heads = static_cast<int>(kv_heads * p.group_size() / heads);
  plan.tile_counter_floats = kCounterFloats + kTileFloats * listed * (heads > 1 ? 2 : 1);

  Specialisation list = helper_kernel(s, "sequences/work_tiles.h", kernels::kMostRunTiles);
  list.dtype = list.kv_dtype = list.v_dtype =
      static_cast<int>(DType::fp16);  // nothing depends on it
  list.head_dim = list.head_dim_v = 0;
  list.sinks = list.splits = 0;
  list.shares_tiles = s.shares_tiles;
  list.lds_bytes = 2 * static_cast<int>(sizeof(int)) * kernels::kMostRunTiles;
  plan.launches.front().programmatic_launch = true;
  plan.launches.insert(plan.launches.begin(), {list, 1});
}

void set_work_table(const LaunchPlan& plan, float* at, kernels::WorkTable& work) {
  if (plan.arguments.work.capacity == 0) return;
  work.count = reinterpret_cast<int*>(at) + 1;
  work.tiles = reinterpret_cast<kernels::WorkTile*>(at + kCounterFloats);
}

}  // namespace fulmen::gpu
