// Forward for many queries by Hopper's warpgroup products: forward/prefill.h's algorithm, with
// products in flight while waves compute exponentials. A workgroup owns kBlockM query rows of one
// head, a warpgroup 64 of them, a wave 16; one more warpgroup, the producer, brings keys and values
// to LDS. A warpgroup's steps, one for each tile of kBlockN keys:
//
//   multiply n:      S = Q K^T of tile n begins, then O += P V of tile n - 1
//   exponentiate n: P = 2^(S - max), online as in forward/prefill.h, when S is there;
//       O = rescale * O
//
// All waves meet once a tile, when tile n's keys and tile n - 1's values are there. Then every
// second warpgroup multiplies n and exponentiates n, the others exponentiate n - 1 and multiply n:
// so that the matrix units have work all the time. Meanwhile the producer fetches what the next
// barrier waits for, to where keys and values of two tiles before were.
#include "forward/prefill_wgmma_layout.h"
#include "tile/nvidia/register_shares.h"
#include "tile/nvidia/warpgroup_rows.h"
#include "tile/order.h"
#include "tile/sources.h"

namespace fulmen::kernels {

constexpr WarpgroupPrefillLayout kLdsLayout =
    WarpgroupPrefillLayout::of(kHeadDim, kHeadDimV, kBlockM, kBlockN);
static_assert(kLdsLayout.total == kLdsBytes,
              "prefill_wgmma: the host reserves the LDS that the tiles need");
constexpr int kWarpgroups = kBlockM / 64;  // that multiply
static_assert(kBlockM % 64 == 0 && kWorkgroup == 128 * (kWarpgroups + 1),
              "prefill_wgmma: a warpgroup has 64 rows, one has none");
static_assert(kHeadDim % kPanelColumns == 0 && kHeadDimV % kPanelColumns == 0,
              "prefill_wgmma: tiles are whole panels");

constexpr RegisterShares kRegisters =
    RegisterShares::of(kWarpgroups, kMinWorkgroups, kCopyingRegisters);

FULMEN_DEVICE int keys_at(int buffer) { return kLdsLayout.keys_at + buffer * kLdsLayout.key_bytes; }
FULMEN_DEVICE int values_at(int buffer) {
  return kLdsLayout.values_at + buffer * kLdsLayout.value_bytes;
}

// All waves, wherever each of them comes from.
FULMEN_DEVICE void meet() { barrier(); }

// Rows of memory to panels: 8 neighbouring lanes copy a panel's row, of 128 bytes.
constexpr int kCopiedRows = 128 / 8;  // at once
FULMEN_DEVICE int copied_row() {
  return static_cast<int>(static_cast<unsigned>(thread_id()) % 128 / 8);
}
FULMEN_DEVICE int copied_dim() {
  return static_cast<int>(static_cast<unsigned>(thread_id()) % 8) * 8;
}

class PanelStage {
 public:
  FULMEN_DEVICE explicit PanelStage(const StageSource& source) : source_(source) {}

  FULMEN_DEVICE static void queries(const QuerySource& source) {
#pragma unroll
    for (int n = 0; n < kBlockM; n += kCopiedRows) {
      const int row = n + copied_row();
      copy_row<kHeadDim, kBlockM>(kLdsLayout.queries_at + panel_place(row, copied_dim(), kBlockM),
                                  source.row(row), source.dims, true);
    }
  }
  template <bool kClamped>
  FULMEN_DEVICE void keys(Int64 first_key, int buffer) const {
    const ForwardArguments& a = source_.arguments;
    tile<kClamped, false, kHeadDim>(TileRows<false>::of(a, source_, first_key), a.head_dim,
                                    keys_at(buffer));
  }
  template <bool kClamped>
  FULMEN_DEVICE void values(Int64 first_key, int buffer) const {
    const ForwardArguments& a = source_.arguments;
    tile<kClamped, true, kHeadDimV>(TileRows<true>::of(a, source_, first_key), a.head_dim_v,
                                    values_at(buffer));
  }

 private:
  template <bool kClamped, bool kValues, int kDims>
  FULMEN_DEVICE void tile(const TileRows<kValues>& rows, int dims, int at) const {
    constexpr bool kEachRow = kClamped || kScattered;
    const int to = at + panel_place(copied_row(), copied_dim(), kBlockN);
    const KvElement* first = kEachRow ? nullptr : rows.row(copied_row());
#pragma unroll
    for (int n = 0; n < kBlockN; n += kCopiedRows) {
      const int row = n + copied_row();
      const int from = rows.clamp(row);
      const bool valid = !(kMayHide<kClamped> && kValues) ||
                         source_.alive(source_.arguments, rows.first_key + from);
      copy_row<kDims, kBlockN>(to + n * kPanelRowBytes,
                               kEachRow ? rows.row(kClamped ? from : row) : first + n * rows.stride,
                               dims, valid);
    }
  }
  // Invalid rows, and dims beyond the last, are zeros.
  template <int kDims, int kRows, class T>
  FULMEN_DEVICE static void copy_row(int to, const T* row, int dims, bool valid) {
#pragma unroll
    for (int p = 0; p < kDims / kPanelColumns; ++p) {
      const int dim = p * kPanelColumns + copied_dim(), at = to + p * kRows * kPanelRowBytes;
      const bool there = valid && (kExactDims || dim < dims);
      if constexpr (kWholeRows) {
        copy_async_16(at, row + dim, there);
      } else {
        lds_store(at, there ? load_piece(row, dim, dims) : Words<4>{});
      }
    }
  }

  const StageSource& source_;
};

struct PrefillTask {
  const ForwardArguments& arguments;  // of the sequence
  const RowMap& map;
  Int64 wave_row;  // the first of the wave's rows
  int first_row;   // the same, of the workgroup's

  // The warpgroup's 64 rows.
  FULMEN_DEVICE LdsMatrix own_queries() const {
    return LdsMatrix::of(kLdsLayout.queries_at, kBlockM).rows_further(first_row / 64 * 64);
  }
  // The warpgroup's way over the tiles. late: it exponentiates before it multiplies.
  FULMEN_DEVICE void walk(WaveRows& rows, const TileOrder& order, bool late) const {
    meet();
    first(rows, order.first_key(0), late);
    int n = 1;
    for (; n < order.masked; ++n) step<true>(rows, order.first_key(n), n, late);
    for (; n < order.count; ++n) step<false>(rows, order.first_key(n), n, late);
    end(rows, n, late);
  }
  // After n tiles.
  FULMEN_DEVICE void end(WaveRows& rows, int n, bool late) const {
    if (!late) meet();
    wgmma_fence();
    begin_outputs(rows, LdsMatrix::of(values_at((n - 1) % 2), kBlockN));
    end_outputs(rows);
  }
  // kMaskBits: the tiles that some of the workgroup's rows attend, at least one.
  FULMEN_DEVICE void walk_kept(WaveRows& rows, KeptWalk<TileOrder>& tile, bool late) const {
    meet();
    first(rows, tile.first_key(), late);
    int n = 1;
#pragma unroll 1
    for (tile.advance(); tile.there(); tile.advance(), ++n) {
      if (tile.is_whole()) {
        step<false>(rows, tile.first_key(), n, late);
      } else {
        step<true>(rows, tile.first_key(), n, late);
      }
    }
    end(rows, n, late);
  }
  FULMEN_DEVICE void first(WaveRows& rows, Int64 first_key, bool late) const {
    TileRow<kKeyTiles> score;
    float factor[kRowsPerLane];
    wgmma_fence();
    begin_scores(own_queries(), LdsMatrix::of(keys_at(0), kBlockN), score);
    wgmma_wait<0>();
    wgmma_hold(score);
    if (late) meet();
    exponentiate_tile<true>(map, wave_row, rows.state, first_key,
                            RowBits<true>::of(map, wave_row, first_key), score, factor);
    keep_probabilities(rows, score);
  }
  template <bool kMasked>
  FULMEN_DEVICE void step(WaveRows& rows, Int64 first_key, int n, bool late) const {
    TileRow<kKeyTiles> score;
    // In flight beside the products.
    const auto row_bits = RowBits<kMasked>::of(map, wave_row, first_key);
    if (!late) meet();
    wgmma_fence();
    begin_scores(own_queries(), LdsMatrix::of(keys_at(n % 2), kBlockN), score);
    begin_outputs(rows, LdsMatrix::of(values_at(1 - n % 2), kBlockN));
    if (late) {
      wgmma_wait<0>();
      meet();
    } else {
      wgmma_wait<1>();
    }
    wgmma_hold(score);
    exponentiate_and_end_outputs<kMasked>(map, wave_row, rows, first_key, row_bits, score);
    keep_probabilities(rows, score);
  }

  FULMEN_DEVICE void finish(const WaveRows& rows) const {
    const ForwardArguments& a = arguments;
    float factor[kRowsPerLane];
    end_rows(map, wave_row, rows.state, factor);
    // By way of LDS, where the wave's queries were: no product reads them any more.
#pragma unroll
    for (int g = 0; g < kProducts; ++g) {
#pragma unroll
      for (int d = 0; d < kProductTiles; ++d) {
        float tile[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) tile[e] = rows.out[g][d][e] * factor[row_slot(e)];
        const int lane = lane_id(), dim = kScoreTile * (g * kProductTiles + d) + lane / 16 * 8;
        stmatrix_x4(kLdsLayout.queries_at + panel_place(first_row + lane % 16, dim, kBlockM),
                    to_operand<Element>(tile).words);
      }
    }
    meet();
    // In signed numbers: with others the compiler stores words.
    constexpr int kRow = kHeadDimV / 8;
#pragma unroll
    for (int n = 0; n < kScoreTile * kRow; n += kWaveSize) {
      const int row = (n + lane_id()) / kRow, dim = (n + lane_id()) % kRow * 8;
      const auto piece =
          lds_load<Words<4> >(kLdsLayout.queries_at + panel_place(first_row + row, dim, kBlockM));
      if (wave_row + row < a.seqlen_q)
        store_piece(out_row(a, map.batch, map.first_head, wave_row + row), dim, a.head_dim_v,
                    piece);
    }
  }
};

// The producer's way over the tiles.
struct Producer {
  const PanelStage& stage;
  const TileOrder& order;

  FULMEN_DEVICE void walk() const {
    fetch<true>(0);
    fetch<true>(1);
    arrive<1>();
    arrive<0>();
    int n = 2;
    for (; n <= order.masked; ++n) {
      fetch<true>(n);
      arrive<0>();
    }
    for (; n <= order.count; ++n) {
      fetch<false>(n);
      arrive<0>();
    }
  }
  // kMaskBits: the tiles that some of the workgroup's rows attend, at least one.
  FULMEN_DEVICE void walk_kept(KeptWalk<TileOrder>& tile) const {
    fetch_keys(tile, 0);
    copy_commit();
#pragma unroll 1
    for (int n = 1;; ++n) {
      const Int64 before = tile.first_key();
      const bool has_all_keys = tile.has_all_keys();
      tile.advance();
      if (tile.there()) fetch_keys(tile, n % 2);
      if (has_all_keys) {
        stage.values<false>(before, (n - 1) % 2);
      } else {
        stage.values<true>(before, (n - 1) % 2);
      }
      copy_commit();
      if (n == 1) arrive<1>();
      arrive<0>();
      if (!tile.there()) return;
    }
  }

 private:
  FULMEN_DEVICE void fetch_keys(KeptWalk<TileOrder>& tile, int buffer) const {
    if (tile.has_all_keys()) {
      stage.keys<false>(tile.first_key(), buffer);
    } else {
      stage.keys<true>(tile.first_key(), buffer);
    }
  }
  // What a barrier waits for; kClamped: tile n - 1 may need masks, and n then, too.
  template <bool kClamped>
  FULMEN_DEVICE void fetch(int n) const {
    if (n < order.count) stage.keys<kClamped>(order.first_key(n), n % 2);
    if (n > 0) stage.values<kClamped>(order.first_key(n - 1), (n - 1) % 2);
    copy_commit();
  }
  template <int kGroups>
  FULMEN_DEVICE static void arrive() {
    copy_wait<kGroups>();
    lds_fence_for_matrices();
    meet();
  }
};

FULMEN_DEVICE void forward_wgmma(const ForwardArguments& call) {
  const QueryBlock block = QueryBlock::of(call);
  const int batch = block.batch, head = block.head;
  const Int64 row_begin = block.row_begin;
  const ForwardArguments& a = sequence_of(call, batch);
  if (kVariable && row_begin >= a.seqlen_q) return;
  const Int64 row_end = row_begin + kBlockM < a.seqlen_q ? row_begin + kBlockM : a.seqlen_q;
  const algorithm::Band band = band_of(a);
  const algorithm::KeyRange keys = band.any(row_begin, row_end),
                            whole = band.all(row_begin, row_end);
  const RowMap map{a, batch, head, a.seqlen_q};
  const int kv_head = head / a.group_size, first_row = wave_id() * kScoreTile;
  const StageSource source{a,
                           batch,
                           head,
                           row_begin,
                           row_end,
                           head_rows(a.k, batch, kv_head),
                           head_rows(a.v, batch, kv_head),
                           keys.begin,
                           keys.end};
  const PanelStage stage(source);
  const PrefillTask task{a, map, row_begin + first_row, first_row};
  const TileOrder order = TileOrder::of(tile_range(keys), whole);

  const QuerySource queries{at<Element>(a.q, batch, 0, head), a.q.row, row_begin, a.seqlen_q,
                            a.head_dim};

  if (first_row >= kBlockM) {
    setmaxnreg_dec<kRegisters.loader>();
    if constexpr (kMaskBits) {
      KeptWalk tile(source.masked_rows(), order);
      if (tile.there()) {
        PanelStage::queries(queries);
        Producer{stage, order}.walk_kept(tile);
      }
    } else if (order.count > 0) {
      PanelStage::queries(queries);
      Producer{stage, order}.walk();
    }
    meet();  // as the others do in finish()
  } else {
    setmaxnreg_inc<kRegisters.consumer>();
    WaveRows rows = {};
    rows.state.clear();
    const bool late = first_row / 64 % 2 != 0;
    if constexpr (kMaskBits) {
      KeptWalk tile(source.masked_rows(), order);
      if (tile.there()) task.walk_kept(rows, tile, late);
    } else if (order.count > 0) {
      task.walk(rows, order, late);
    }
    task.finish(rows);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::forward_wgmma)
