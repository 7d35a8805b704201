#include "gpu/launch/tail_wave.h"

#include <algorithm>
#include <limits>

namespace fulmen::gpu {
namespace {

// Cost of the split merge, in equivalent FLOPs of one workgroup: another kernel's start, and
// partial results that are written to memory and read back.
double split_merge_flops(const Problem& p, const PrefillTmaShape& shape, const TailWave& tail,
                         int64_t slots) {
  constexpr double kBegin = 24 << 20, kOfByte = 220;
  const int64_t rows = tail.tiles * tail.splits * kWarpgroupRows * shape.warpgroups;
  const double bytes =
      static_cast<double>(sizeof(float)) * 2 * static_cast<double>(rows * p.head_dim_v);
  return kBegin + kOfByte * bytes / static_cast<double>(slots);
}

}  // namespace

int64_t tiles_of_queries(const Problem& p, int warpgroups) {
  return tiles_of(p.seqlen_q, int64_t{kWarpgroupRows} * warpgroups) * p.batch * p.num_heads;
}

TailWave tail_wave(const Problem& p, const PrefillTmaShape& shape, int64_t slots) {
  constexpr int64_t kMostSplits = 8;
  constexpr int64_t kLeastTiles = 4;    // of keys, of a split
  constexpr double kBeginAndEnd = 1.5;  // of a workgroup's tile, in tiles of keys
  constexpr double kWorthwhile = 0.95;
  // Outputs of wider heads go from registers: another way for splits costs moves in each step.
  constexpr int64_t kMostDims = 128;
  const int64_t key_tiles = tiles_of(p.seqlen_k, shape.block_n),
                rest = tiles_of_queries(p, shape.warpgroups) % slots;
  TailWave best{rest, 1, 0, rest > 0 ? 1.0 : 0.0};
  const bool has_few_rows = p.batch * p.num_heads * p.seqlen_q < std::numeric_limits<int>::max();
  // Parts of outputs are stored by pairs of floats.
  if (rest == 0 || has_band(p) || has_masks(p) || std::max(p.head_dim, p.head_dim_v) > kMostDims ||
      p.head_dim_v % 2 != 0 || !has_few_rows)
    return best;
  const double step = 2.0 * kWarpgroupRows * shape.warpgroups * shape.block_n *
                      static_cast<double>(p.head_dim + p.head_dim_v);
  const double wave = static_cast<double>(key_tiles) + kBeginAndEnd;
  for (int64_t n = 2; n <= kMostSplits; ++n) {
    const int64_t tiles = tiles_of(key_tiles, n);
    if (tiles < kLeastTiles) break;
    TailWave split{rest, static_cast<int>(tiles_of(key_tiles, tiles)), tiles * shape.block_n, 0};
    const double products = static_cast<double>(tiles_of(rest * split.splits, slots)) *
                            (static_cast<double>(tiles) + kBeginAndEnd);
    split.waves = (products + split_merge_flops(p, shape, split, slots) / step) / wave;
    if (split.waves < best.waves * (best.splits == 1 ? kWorthwhile : 1)) best = split;
  }
  return best;
}

bool small_tiles_take_less_time(const Problem& p, const PrefillTmaShape& shape, int compute_units) {
  constexpr int64_t kManyWaves = 4;
  const PrefillTmaShape small{.warpgroups = 2, .block_n = 128, .buffers = 2, .ping_pong = true};
  const int64_t units = std::max(1, compute_units);
  const bool even = has_band(p) && tiles_of_queries(p, shape.warpgroups) >= kManyWaves * units;
  const auto rows = [&](const PrefillTmaShape& one) {
    const int64_t tiles = tiles_of_queries(p, one.warpgroups), whole_waves = tiles / units;
    if (even) return static_cast<double>(tiles * one.warpgroups);
    return (static_cast<double>(whole_waves) + tail_wave(p, one, units).waves) * one.warpgroups;
  };
  const double dim = static_cast<double>(std::max(p.head_dim, p.head_dim_v)), part = 32.0 / dim;
  return rows(shape) > rows(small) * (1 + part * part);
}

}  // namespace fulmen::gpu
