// What the host knows of a target, a family of matrix instructions that several chips share: how operands lie, and every tile
// shape and limit of its kernels. Data alone: a file of this folder a target, listed in list.cpp.
//
// A family whose tiles a target does not have does not run there, and `fulmen explain` says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

namespace fulmen::gpu {

enum class Vendor { amd, nvidia };

// For each family below, "head dims up to max_head_dim" means the larger of q's and v's.

// forward/decode.h. A workgroup has 16 rows, and its waves take key tiles round-robin.
struct DecodeTiles {
  int waves = 4;
  int block_n = 16;  // keys of a wave's step: with more the operands in flight would spill
  int64_t min_split_keys;
  // Where workgroups with all keys of their rows fill the chip once, they need no second kernel: their waves, 0 where they always
  // split; for head_dim_v up to that, rounded up; up to paired_head_dim two of them run on a multiprocessor at once.
  int unsplit_waves = 0;
  int unsplit_head_dim_v = 0;
  int paired_head_dim = 0;
  // Dims of v that a wave's registers have room for; above, two waves share their keys.
  int wave_head_dim_v = std::numeric_limits<int>::max();
  // Most head dim with a bias where rows are not at multiples of 16 bytes: the addresses of both take registers.
  int most_far_bias_dim = std::numeric_limits<int>::max();
};

// forward/decode_tma.h. For head dims, of two heads where these are read as one, up to max_head_dim the first counts.
struct DecodeTmaShape {
  int max_head_dim;
  int block_n, buffers, min_workgroups;
};
struct DecodeTmaTiles {
  std::span<const DecodeTmaShape> shapes;
  int64_t min_split_keys;
};

// forward/short.h. Scores, outputs and a step's operands are in registers at once.
struct ShortTiles {
  int max_head_dim;
  // Elements of V, keys times dims, that have registers before they are needed; whether they have them beside a keep mask, and
  // where rows are loaded element by element.
  int early_values = std::numeric_limits<int>::max();
  bool early_beside_mask = true;
  bool early_odd_dims = true;
  bool early_is_tuned = true;  // the tuner may ask for V early, whatever the three above say
  // Limits for head dims that are no multiples of 8.
  int most_odd_dim = std::numeric_limits<int>::max(), most_odd_keys = std::numeric_limits<int>::max();
};

// forward/prefill.h, for head dims up to max_head_dim. Of several for the same the first counts whose workgroups (min_workgroups
// of them; one, of boards) the chip's LDS holds.
struct PrefillShape {
  int max_head_dim;
  int block_m, block_n;
  int waves;
  int buffers;
  bool queries_in_lds;
  int min_waves, min_workgroups;
  bool persistent = false;  // where there are few tiles of keys: launch/prefill.cpp
};
struct PrefillTiles {
  int value_dims;  // head_dim_v is rounded up to a multiple of them
  std::span<const PrefillShape> shapes;
  // Chess boards, with all their rows in one tile. None: boards are left to forward/short.h.
  std::span<const PrefillShape> board_shapes{};
};

// forward/prefill_wgmma.h, for head dims up to max_head_dim and min_keys at least. Of several the first counts.
struct PrefillWgmmaShape {
  int max_head_dim;
  int64_t min_keys;
  int warpgroups, block_n;  // of 64 rows each
  int min_workgroups;
};
struct PrefillWgmmaTiles {
  std::span<const PrefillWgmmaShape> shapes;

  const PrefillWgmmaShape& shape_for(int64_t head_dim, int64_t seqlen_k) const {
    return *std::find_if(shapes.begin(), shapes.end() - 1,
                         [&](const PrefillWgmmaShape& s) { return head_dim <= s.max_head_dim && seqlen_k >= s.min_keys; });
  }
};

// forward/prefill_tma.h.
struct PrefillTmaShape {
  int warpgroups, block_n;  // of 64 rows each
  int buffers, min_workgroups;
  bool ping_pong;
};
// Tile scheduler of a workgroup: a single tile; static persistent, by a grid stride; dynamic persistent, by an atomic tile counter
// that another launch clears. Values of Configuration::persistent.
enum class TileScheduler { single_tile, static_persistent, dynamic_persistent };
// Tiles for head dims up to max_head_dim. Of the rows whose other bounds hold the first counts; the last row of a head dim has
// none.
struct PrefillTmaRow {
  int max_head_dim;
  std::optional<bool> band = {};  // only with one, or only without
  int64_t min_keys = 0, max_keys = std::numeric_limits<int64_t>::max();
  bool skip_if_tail_wave = false;   // left to tiles of 128 rows where these take less time: fewer empty rows or a shorter tail wave
  bool no_spare_registers = false;  // none for a bias, ALiBi, a mask or dropout
  PrefillTmaShape shape;
  TileScheduler scheduler = TileScheduler::static_persistent;
};
struct PrefillTmaTiles {
  std::span<const PrefillTmaRow> rows;
  std::span<const PrefillTmaRow> few;  // where tiles of these would leave half of the multiprocessors without work
};

// forward/boards.h.
struct BoardShape {
  int head_dim;
  int workgroups;  // of a multiprocessor
  bool runs;       // of boards, where there are more than run at once
};
struct BoardTiles {
  std::span<const BoardShape> shapes;
};

// backward/backward.h. The rows are queries, or keys.
struct BackwardShape {
  int block_m, block_n, waves;
  int buffers;
  bool rows_in_lds;
  int min_waves, min_workgroups;
  bool late = false;  // the columns' next tile is fetched only when it is needed: a few registers less
};
// For head dims up to max_head_dim.
struct BackwardShapes {
  int max_head_dim;
  BackwardShape queries, keys;
  bool split_keys;  // dk and dv by a launch each: together their sums would not fit in registers
  // Above this head_dim keys meet 16 queries at a time where there is a bias or a mask: its addresses need registers.
  int narrow_above = 256;
  // From this on, of score_registers() in launch/backward.cpp, dk and dv come by a launch each, too.
  int split_from = 100;
  // From this on, dq's next columns are fetched only when they are needed.
  int late_from = 100;
  // Keys whose scores nothing but the band modifies, where q and v have as many dims: registers hold the rows, too. Not where these
  // fill less than half of block_m.
  std::optional<BackwardShape> plain_keys{};
};
struct BackwardTiles {
  int max_bias_dim;  // most head_dim with which dbias beside dq fits in registers
  std::span<const BackwardShapes> shapes;
};

// backward/backward_atomic.h: block_m keys, block_n queries. The first for the head dims that fits in the chip's LDS.
struct AtomicShape {
  int max_head_dim;
  int block_m, block_n, waves;
  int buffers;
  int dim_groups;  // waves that share their keys, which stay in LDS then
  int min_workgroups;
};
struct AtomicTiles {
  std::span<const AtomicShape> shapes;
};

// backward/backward_wgmma.h.
struct BackwardWgmmaShape {
  int block_m;  // 64 rows a warpgroup
  int buffers;  // of tiles of columns
  int min_workgroups = 1;
  bool second_early = true;
};
// For head dims up to max_head_dim.
struct BackwardWgmmaShapes {
  int64_t max_head_dim;
  BackwardWgmmaShape queries, keys;
  // Tiles with registers left for addresses: for scores that more than the band modifies, or rows that move by element.
  BackwardWgmmaShape modified_keys;
  bool split_keys = false;      // dk and dv by a launch each: together their sums would not fit in registers
  BackwardWgmmaShape values{};  // of dv then
};
struct BackwardWgmmaTiles {
  int block_n;
  std::span<const BackwardWgmmaShapes> shapes;
};

// backward/backward_tma.h: two warpgroups; backward_tma_wide.h: two workgroups.
struct BackwardTmaTiles {
  int64_t own_dims;             // above, two workgroups share a block of keys
  int block_m, block_n;         // keys of a block, queries
  int buffers, narrow_buffers;  // of tiles of queries; of heads of one panel
  bool ping_pong;
};

// backward/backward_wgmma_atomic.h: two warpgroups.
struct WgmmaAtomicTiles {
  int block_m, block_n;  // keys of both warpgroups, or of each where they share them; queries
  int64_t own_dims;      // above, the sums of a warpgroup's keys take the registers of two, which share them
  // Buffers for tiles of queries; for heads of one panel; with a band, where warpgroups have keys of their own.
  int buffers, narrow_buffers, band_buffers;
};

// backward/short_backward.h, for head dims up to max_head_dim.
struct ShortBackwardShape {
  int max_head_dim;
  int buffers;
  int min_workgroups;
  bool whole = false;  // serves lengths and dims that fill their tiles, and rows in 16-byte pieces: others would spill registers
};
struct ShortBackwardTiles {
  std::span<const ShortBackwardShape> shapes;
};

// forward/prefill_portable.h and backward/backward_portable.h.
struct PortableTiles {
  int block_m, block_n;
  int chunk;  // dims that are in LDS at once
  int workgroup;
};

// forward/decode_portable.h.
struct DecodePortableTiles {
  int waves;
  int block_n;  // keys of a wave's step, which are in flight at once
  int block_m;  // rows of a workgroup, whose queries and outputs registers hold; half of them above narrow_above dims
  int narrow_above;
  int most_rows;  // that share a KV head: each workgroup reads all of K and V
  int64_t min_split_keys;
};

// What main loops of 128 dims may cost: tests/compile/budget_test.cpp.
struct LoopBudget {
  int vector;     // of prefill: vector instructions for 512 products of 16 x 16 x 16
  int occupancy;  // of prefill: waves a SIMD, at least
  int keys_lds;   // of dk and dv: LDS instructions for 512 products
};

struct Target {
  std::string_view name;            // of kernels/targets/<name>/, and in public names of kernels
  std::optional<Vendor> vendor;     // none: chips of either
  const Target* extends = nullptr;  // whose kernels run on this one's chips, too
  int mma_k = 0;                    // dims that an operand of q.k covers; 0: no matrix instructions
  bool transposed_values = false;   // V^T in LDS
  int operand_copies = 1;           // lanes of a wave that hold the same elements of an operand
  int panel_columns = 0;  // of the panels in which operands of warpgroup products lie in LDS; 0: there are no such products

  std::optional<DecodeTiles> decode{};
  std::optional<ShortTiles> short_sequences{};
  std::optional<PrefillTiles> prefill{};
  std::optional<PrefillWgmmaTiles> prefill_wgmma{};
  std::optional<DecodeTmaTiles> decode_tma{};
  std::optional<PrefillTmaTiles> prefill_tma{};
  std::optional<BoardTiles> boards{};
  std::optional<BackwardTiles> backward{};
  std::optional<AtomicTiles> backward_atomic{};
  std::optional<BackwardWgmmaTiles> backward_wgmma{};
  std::optional<BackwardTmaTiles> backward_tma{};
  std::optional<WgmmaAtomicTiles> backward_wgmma_atomic{};
  std::optional<ShortBackwardTiles> short_backward{};
  std::optional<PortableTiles> portable{};
  std::optional<DecodePortableTiles> decode_portable{};

  std::span<const std::string_view> test_chips{};  // that tests run on; the first where one is enough
  std::optional<LoopBudget> loop_budget{};         // AMD

  bool is_portable() const { return mma_k == 0; }
};

// Every target with matrix instructions.
std::span<const Target* const> targets();

}  // namespace fulmen::gpu
