// Forward for few queries on Hopper: reading K and V is the work, and the tensor memory accelerator
// (TMA) does it.
//
//   S[64, kBlockN] = Q[64, d] K[kBlockN, d]^T,  P = 2^(S - max),  O[64, d_v] += P V[kBlockN, d_v]
//                                               a step
//
// A workgroup has 64 rows - the query heads of a KV head are packed into them - and a split of the
// keys. One warpgroup multiplies, a wave 16 rows. A wave of another one, the loader, keeps kBuffers
// tiles of keys and values in flight: so many bytes that their latency does not matter, whatever
// the registers are. With one split the result is final, else forward/decode_combine.h merges the
// splits.
//
// kHeadsInRow: a row of 128 bytes is too short a read, so that two KV heads of 64 dims which are
// neighbours in memory come as one. Waves 0 and 1 have rows of the first, 2 and 3 of the second. A
// product is the whole warpgroup's: it multiplies with both heads, and a wave keeps what is its
// own.
//
// A mask: tiles of keys that none of the rows attends are not brought. All heads have one.
//
// LDS: Q, kBuffers x K, kBuffers x V, mbarriers, whether a page does not exist. Registers of a
// lane, with one head: S kBlockN / 2, P kBlockN / 4, O d_v / 2; with two S and O twice.
#include "forward/decode_tma_layout.h"
#include "forward/parts/key_boxes.h"
#include "forward/parts/packed_rows.h"
#include "tile/nvidia/register_shares.h"
#include "tile/rings.h"

namespace fulmen::kernels {

constexpr int kPanelsV = (kHeadDimV + kPanelColumns - 1) / kPanelColumns;
constexpr int kKeyPanels = kPanels * kHeadsInRow, kWavesOfHead = 4 / kHeadsInRow;
constexpr TmaDecodeLayout kLdsLayout = TmaDecodeLayout::of(
    kPanels * kPanelColumns, kKeyPanels* kPanelColumns, kPanelsV* kPanelColumns, kBlockN, kBuffers);
static_assert(kLdsLayout.total == kLdsBytes,
              "decode_tma: the host reserves the LDS that the tiles need");
static_assert(kBlockM == 64 && kWorkgroup == 256 && kPackedRows,
              "decode_tma: a warpgroup has 64 rows, one has none");
static_assert(kHeadsInRow == 1 || (kHeadsInRow == 2 && kHeadDim == kPanelColumns &&
                                   kHeadDimV == 2 * kPanelColumns && !kExactDims),
              "decode_tma: two heads of a panel each, of which a wave stores the dims of one");
static_assert(kBlockN % kScoreTile == 0 && kWholeRows && kMaskBits == kKeepMask && !kDropout,
              "decode_tma: what the TMA can read, a mask as bits");
// One workgroup a multiprocessor begins with as many registers as a lane can have.
constexpr RegisterShares kRegisters = RegisterShares::of(1, kMinWorkgroups, kTmaRegisters);
constexpr bool kSharesRegisters = kMinWorkgroups > 1;

// mbarriers.
constexpr int kQueriesFull = kLdsLayout.barriers_at, kPatch = kQueriesFull + 8,
              kKeysFull = kPatch + 8;
constexpr int kKeysEmpty = kKeysFull + 8 * kBuffers, kValuesFull = kKeysEmpty + 8 * kBuffers;
constexpr int kValuesEmpty = kValuesFull + 8 * kBuffers;
using TileRing = Ring<kBuffers>;

// What the loader does.
struct Loader {
  const TmaForwardArguments& call;
  const ForwardArguments& a;  // of the sequence
  const Place& place;
  const SplitKeys& split;
  const MaskedRows& rows;
  L2Policy once = L2Policy::evict_first();
  TileRing ring;
  int patch_parity = 0;

  FULMEN_DEVICE void run() {
    for_each_tile(split, rows, [&](Int64 key, bool, bool has_all_keys) {
      // The table is read while the buffer is not empty yet.
      const KeyBox box = KeyBox::of(a, place, split, key, rows);
      mbarrier_wait(kKeysEmpty + 8 * ring.buffer, ring.parity ^ 1);
      // Consumers see it: they wait for the same tile's values, for which lane 0 arrives later.
      if (kPaged && any_lane(box.is_missed) && lane_id() == 0) lds_store(kLdsLayout.missing_at, 1);
      load_panels<0, kKeyPanels>(kLdsLayout.keys_at + ring.buffer * kLdsLayout.key_bytes,
                                 call.k_map, place, box, kKeysFull + 8 * ring.buffer, once);
      values(key, box, !has_all_keys || split.has_foreign_keys(key));
      ring.advance();
    });
  }

 private:
  // patched: some of them are to become 0.
  FULMEN_DEVICE void values(Int64 key, const KeyBox& box, bool patched) {
    const int to = kLdsLayout.values_at + ring.buffer * kLdsLayout.value_bytes,
              full = kValuesFull + 8 * ring.buffer;
    mbarrier_wait(kValuesEmpty + 8 * ring.buffer, ring.parity ^ 1);
    load_panels<0, kPanelsV>(to, call.v_map, place, box, patched ? kPatch : full, once);
    if (!patched) return;
    mbarrier_wait(kPatch, patch_parity);
    patch_parity ^= 1;
    clear_foreign_rows<0, kPanelsV>(to, split, key, rows);
    if (lane_id() == 0) mbarrier_arrive(full);
  }
};

// What a wave of the other warpgroup does.
struct Consumer {
  const RowMap& map;
  int head_in_row, first_row;  // the wave's
  TileRing ring;
  WaveRows rows = {};

  FULMEN_DEVICE void run(const SplitKeys& split, const MaskedRows& kept) {
    rows.state.clear();
    bring_queries();
    for_each_tile(split, kept, [&](Int64 key, bool is_whole, bool) {
      if (!is_whole || split.is_masked(key)) {
        step<true>(key);
      } else {
        step<false>(key);
      }
    });
  }

 private:
  // The wave's 16 rows to LDS.
  FULMEN_DEVICE void bring_queries() const {
    queries_to_lds<kScoreTile>(map, first_row, kLdsLayout.queries_at, wave_id() * kScoreTile);
    if (lane_id() == 0) mbarrier_arrive(kQueriesFull);
    mbarrier_wait(kQueriesFull, 0);
  }
  template <bool kMasked>
  FULMEN_DEVICE void step(Int64 key) {
    TileRow<kKeyTiles> score;
    float factor[kRowsPerLane];
    const LdsMatrix queries = LdsMatrix::of(kLdsLayout.queries_at, kBlockM);
    const LdsMatrix keys =
        LdsMatrix::of(kLdsLayout.keys_at + ring.buffer * kLdsLayout.key_bytes, kBlockN);
    const auto row_bits = RowBits<kMasked>::of(map, first_row, key);
    mbarrier_wait(kKeysFull + 8 * ring.buffer, ring.parity);
    wgmma_fence();
    begin_scores(queries, keys, score);
    if constexpr (kHeadsInRow > 1) {
      TileRow<kKeyTiles> second;
      begin_scores(queries, keys.columns_further(kHeadDim, kBlockN), second);
      wgmma_wait<0>();
      wgmma_hold(second);
      wgmma_hold(score);
      choose(head_in_row, second, score);
    } else {
      wgmma_wait<0>();
      wgmma_hold(score);
    }
    release(kKeysEmpty);
    if (first_row < map.end) {
      if (exponentiate_tile<kMasked>(map, first_row, rows.state, key, row_bits, score, factor))
        rescale(rows, factor);
    } else {
      clear(score);  // the warpgroup multiplies 64 rows, these are none
    }
    keep_probabilities(rows, score);
    mbarrier_wait(kValuesFull + 8 * ring.buffer, ring.parity);
    wgmma_fence();
    begin_outputs(
        rows, LdsMatrix::of(kLdsLayout.values_at + ring.buffer * kLdsLayout.value_bytes, kBlockN));
    end_outputs(rows);
    release(kValuesEmpty);
    ring.advance();
  }
  FULMEN_DEVICE void release(int empty) const {
    if (lane_id() == 0) mbarrier_arrive(empty + 8 * ring.buffer);
  }
  FULMEN_DEVICE static void choose(int head_in_row, const TileRow<kKeyTiles>& second,
                                   TileRow<kKeyTiles>& score) {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        score[f][e] = head_in_row == 0 ? score[f][e] : second[f][e];
    }
  }
  FULMEN_DEVICE static void clear(TileRow<kKeyTiles>& score) {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) score[f][e] = 0;
    }
  }
};

// A wave's rows to memory. call: the whole call, a sequence of which the map has.
FULMEN_DEVICE void store(const ForwardArguments& call, const RowMap& map, int split,
                         const Consumer& wave) {
  const int first_dim = wave.head_in_row * (kHeadDimV / kHeadsInRow);
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    float sum = total(wave.rows.state.sum[slot]);
    // Rows have no result where a page does not exist: NaN.
    if (kPaged && lds_load<int>(kLdsLayout.missing_at) != 0) sum = kNan;
    store_packed_row(call, map, split, slot, wave.first_row + tile_row(slot), first_dim, wave.rows,
                     sum, true);
  }
}

FULMEN_DEVICE void decode_tma(const TmaForwardArguments& call) {
  if (thread_id() == 0) {
    tma_prefetch(&call.k_map);
    tma_prefetch(&call.v_map);
    mbarrier_init(kQueriesFull, 4);
    mbarrier_init(kPatch, 1);
#pragma unroll
    for (int n = 0; n < kBuffers; ++n) {
      mbarrier_init(kKeysFull + 8 * n, 1);
      mbarrier_init(kKeysEmpty + 8 * n, 4);
      mbarrier_init(kValuesFull + 8 * n, 1);
      mbarrier_init(kValuesEmpty + 8 * n, 4);
    }
    lds_store(kLdsLayout.missing_at, 0);
    mbarrier_init_fence();
  }
  grid_dependency_wait();
  barrier();
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(static_cast<const ForwardArguments&>(call), place.batch);
  const int head_in_row = wave_id() / kWavesOfHead % kHeadsInRow;
  const RowMap map = place.rows(a, head_in_row);
  const SplitKeys split = SplitKeys::of(a, place, map);
  const MaskedRows kept = masked_rows(place, map);
  if (wave_id() >= 4) {
    if constexpr (kSharesRegisters) setmaxnreg_dec<kRegisters.loader>();
    if (wave_id() == 4) Loader{call, a, place, split, kept}.run();
  } else {
    if constexpr (kSharesRegisters) setmaxnreg_inc<kRegisters.consumer>();
    Consumer consumer{map, head_in_row, place.first_row + kScoreTile * (wave_id() % kWavesOfHead)};
    consumer.run(split, kept);
    store(call, map, place.split, consumer);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::TmaForwardArguments, fulmen::kernels::decode_tma)
