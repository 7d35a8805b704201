// What kernels/forward/prefill_tma.h needs to know of a target.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace fulmen::gpu {

struct PrefillTmaShape {
  int warpgroups, block_n;  // of 64 rows each
  int buffers, min_workgroups = 1;
  bool ping_pong = false;
};
// Tile scheduler of a workgroup: a single tile; static persistent, by a grid stride; dynamic
// persistent, by an atomic tile counter that another launch clears. Values of
// Configuration::persistent.
enum class TileScheduler { single_tile, static_persistent, dynamic_persistent };
// Tiles for head dims of q and v up to max_head_dim. The first row counts whose other bounds hold;
// the last row of a head dim has none.
struct PrefillTmaRow {
  int max_head_dim;
  int max_head_dim_v = std::numeric_limits<int>::max();  // of v alone
  std::optional<bool> band = {};                         // only with one, or only without
  int64_t min_keys = 0, max_keys = std::numeric_limits<int64_t>::max();
  // Only under a window that lets a query attend at most so many keys.
  int64_t max_window = std::numeric_limits<int64_t>::max();
  // Left to tiles of 128 rows where these take less time: fewer empty rows or a shorter tail wave.
  bool skip_if_tail_wave = false;
  bool sequences = false;           // only of different lengths; these bounds are of their mean
  bool one_wave = false;            // only where all tiles run at once
  bool no_spare_registers = false;  // none for a bias, ALiBi, a mask or dropout
  // Where one is true: only with one of these, of one length.
  bool with_bias = false, with_mask = false, with_dropout = false;
  PrefillTmaShape shape;
  TileScheduler scheduler = TileScheduler::static_persistent;
};
struct PrefillTmaTiles {
  std::span<const PrefillTmaRow> rows;
  // Where tiles of these would leave half of the multiprocessors without work.
  std::span<const PrefillTmaRow> few;
};

}  // namespace fulmen::gpu
