// What kernels/backward/backward.h needs to know of a target.
#pragma once

#include <optional>
#include <span>

namespace fulmen::gpu {

// Tiles of one launch. The rows are queries, or keys.
struct BackwardShape {
  int block_m, block_n, waves;
  int buffers;
  bool rows_in_lds = false;
  int min_waves = 1;       // AMD: of a SIMD
  int min_workgroups = 1;  // NVIDIA: of a multiprocessor
  // The columns' next tile is fetched only when it is needed: a few registers less.
  bool late = false;
  // Neighbouring waves that share their rows, which are in LDS then, and have a part of the dims
  // each.
  int dim_groups = 1;
  // The workgroup's own rows do not pass LDS, which would take more of it than the tiles do.
  bool direct_rows = false;
};
// Tiles for head dims of q and v up to max_head_dim. Chips with less LDS take the next shapes with
// the same max_head_dim.
struct BackwardShapes {
  int max_head_dim;
  BackwardShape queries, keys;
  // dk and dv by a launch each: together their sums would not fit in registers.
  bool split_keys = false;
  // The next shape, of the same max_head_dim and fewer rows, where blocks of this one would leave
  // half of the chip without work. Wide heads are often one or two (a VAE's block).
  bool next_where_few = false;
  // Above this head_dim keys meet 16 queries at a time where there is a bias or a mask: its
  // addresses need registers.
  int narrow_above = 256;
  // From this on, of score_registers() in launch/backward.cpp, dk and dv come by a launch each.
  int split_from = 100;
  // From this on, dq's next columns are fetched only when they are needed.
  int late_from = 100;
  // Rows whose scores nothing but the band modifies, where q and v have as many dims: registers
  // have room for more of them, or hold them where LDS does else. Not where rows fill less than
  // half of block_m.
  std::optional<BackwardShape> plain_queries{}, plain_keys{};
};
struct BackwardTiles {
  int max_bias_dim;         // most head_dim with which dbias beside dq fits in registers
  bool stores_bias = true;  // so does a dbias that is no sum, which takes its address alone
  std::span<const BackwardShapes> shapes;
};

}  // namespace fulmen::gpu
