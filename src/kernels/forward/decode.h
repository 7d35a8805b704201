// Forward for few queries: reading K and V is the work. A workgroup owns 16 rows - the query heads
// of a KV head are packed into them - and a split of the keys; its waves take tiles of the split
// round robin, straight from memory into operands, and merge at the end through LDS. With one split
// the result is final, else forward/decode_combine.h merges the splits.
#include "forward/decode_layout.h"
#include "tile/kept_steps.h"
#include "tile/tile_ring.h"

namespace fulmen::kernels {

// kDimGroups neighbouring waves share their keys, of whose values each has a part of the dims: wide
// outputs fill the registers.
constexpr int kDimGroups = kConfig.dim_groups;
constexpr int kWaves = kWorkgroup / kWaveSize / kDimGroups;  // with keys of their own
constexpr int kKeyTiles = kBlockN / kScoreTile;              // of a wave's step
constexpr int kValueSteps = kKeyTiles / kStepTiles;
constexpr int kMmaSteps = kHeadDim / kMmaK;
static_assert(kBlockN % kValueDepth == 0, "split_kv: keys are whole operands of P V");
static_assert(kBlockM == kScoreTile, "split_kv: a workgroup has 16 rows");

// LDS, in floats: each wave's maxima and sums, then its outputs. Before that, each wave's ring of
// tiles.
constexpr int kMaximaAt = 0;                         // [kWaves][16]
constexpr int kSumsAt = kWaves * kScoreTile;         // [kWaves][16]
constexpr int kOutputsAt = 2 * kWaves * kScoreTile;  // [kWaves][16][kHeadDimV + 4]
constexpr int kOutputPitch = kHeadDimV + 4;
constexpr TileRingLayout kRingLayout =
    TileRingLayout::of(kHeadDim, kStoredBytes<false>, kHeadDimV, kStoredBytes<true>, kBlockN);
static_assert(kLdsBytes == decode_lds_bytes(kWaves * kDimGroups, kDimGroups, kHeadDimV, kBuffers,
                                            kRingLayout.tile_bytes),
              "split_kv: the host reserves the LDS of rings, in which waves merge");
static_assert(!kTileRing || (kQuantized && kWholeRows && kDimGroups == 1 && kBlockN <= kWaveSize),
              "split_kv: a ring's rows are whole pieces, a lane a row, and each wave has all dims");

// kTogether: a step's keys and values fit in registers at once, beside queries and outputs.
constexpr int kOperandWords = kMmaSteps * kPieces * 4;
// gfx11, whose scalars hold keys' distances, has less room where something else modifies scores,
// AMD where rows lie anywhere: their addresses have 64 bits.
// Numbers of 8 bits take some while they become operands.
constexpr int kRoom = (kFarRows             ? 150
                       : kSameKeys && kBias ? 170
                       : kDimGroups > 1     ? 200
                                            : 230) -
                      (kQuantized ? 30 : 0);
constexpr bool kTogether =
    !kTileRing && 2 * kOperandWords + kGroups * kDirectKeys * kWidth * kStoredBytes<true> / 4 +
                          kGroups * kWidth * kDirectElements <=
                      kRoom;
// Queries stay in registers, unless operands and outputs fill them: then the first cache has them.
constexpr bool kQueriesStay = kTogether || kOperandWords < (kFarRows ? 32 : 64);

// Else as many products' operands are in flight at once: of wide heads several, as a wave's part of
// the outputs leaves room.
constexpr int kStepsInFlight = kDimGroups > 2 ? 4 : 1;

// What a workgroup has: rows of a KV head, and a split of its keys.
struct Place {
  int split, first_row, kv_head, batch;

  FULMEN_DEVICE static Place of(const ForwardArguments& a) {
    const Int64 id = workgroup_id(), tile = id / a.num_splits;
    return {static_cast<int>(id % a.num_splits), kScoreTile * static_cast<int>(tile % a.row_tiles),
            static_cast<int>(tile / a.row_tiles % a.num_kv_heads),
            static_cast<int>(tile / a.row_tiles / a.num_kv_heads)};
  }
  FULMEN_DEVICE RowMap rows(const ForwardArguments& a) const {
    return {a, batch, kv_head * a.group_size, a.seqlen_q * a.group_size};
  }
};

// Scales of keys and values that are not quantized: none.
struct NoScales {
  struct Step {
    FULMEN_DEVICE void scale_keys(TileRow<kKeyTiles>& /*score*/) const {}
    FULMEN_DEVICE void scale_values(TileRow<kKeyTiles>& /*probability*/) const {}
  };
  FULMEN_DEVICE static NoScales of(const ForwardArguments& /*a*/, Int64 /*batch*/,
                                   Int64 /*kv_head*/) {
    return {};
  }
  FULMEN_DEVICE Step load(const ForwardArguments& /*a*/, const TilePlace& /*tile*/,
                          int /*left*/) const {
    return {};
  }
  FULMEN_DEVICE static float of_outputs(const ForwardArguments& /*a*/, Int64 /*batch*/,
                                        Int64 /*kv_head*/) {
    return 1.0F;
  }
};
template <int kTiles>
struct HeadScales {
  StoredHead<false> keys;
  StoredHead<true> values;

  struct Step {
    StepScales<false, kTiles, kTileRing> keys;
    StepScales<true, kTiles, kTileRing> values;

    FULMEN_DEVICE void scale_keys(TileRow<kTiles>& score) const { scale_scores(keys, score); }
    FULMEN_DEVICE void scale_values(TileRow<kTiles>& probability) const {
      scale_probabilities(values, probability);
    }
  };
  FULMEN_DEVICE static HeadScales of(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
    return {StoredHead<false>::of(a, batch, kv_head), StoredHead<true>::of(a, batch, kv_head)};
  }
  FULMEN_DEVICE Step load(const ForwardArguments& a, const TilePlace& tile, int left) const {
    return {StepScales<false, kTiles, kTileRing>::load(a, keys, tile, left),
            StepScales<true, kTiles, kTileRing>::load(a, values, tile, left)};
  }
  FULMEN_DEVICE Step arrived(const RingTile& tile) const {
    return {tile.scales<false, kTiles>(keys.factor), tile.scales<true, kTiles>(values.factor)};
  }
  // The head's scale of v; with scales of tokens: 1.
  FULMEN_DEVICE static float of_outputs(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
    return scale_of_outputs(a, batch, kv_head);
  }
};
using StoredScales = Either<kQuantized, HeadScales<kKeyTiles>, NoScales>;

struct SplitTask {
  using Scales = StoredScales::Step;

  const ForwardArguments& a;
  const RowMap& map;
  int first_row, row_end;
  const KeySource& keys;
  const KeySource& values;
  const StoredScales& scales;
  RowOperand queries[kQueriesStay ? kMmaSteps : 1];

  FULMEN_DEVICE RowOperand load_query(int d) const {
    RowOperand operand;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const Int64 row = map.clamp(first_row + piece_row(p));
      operand.piece[p] = load_piece(at<Element>(a.q, map.batch, map.query(row), map.head(row)),
                                    kMmaK * d + piece_dim(p), a.head_dim);
    }
    return operand;
  }
  FULMEN_DEVICE RowOperand query(int d) const {
    return kQueriesStay ? queries[kQueriesStay ? d : 0] : load_query(d);
  }

  // A tile whose rows and scales are read as they are multiplied.
  template <bool kMasked>
  FULMEN_DEVICE void step(const TilePlace& first, RowState& rows, DirectOutput& out) const {
    multiply<kMasked>(first, NearKeys(keys, first), NearValues(values, first), scales_of(first),
                      rows, out);
  }
  FULMEN_DEVICE Scales scales_of(const TilePlace& tile) const {
    return scales.load(a, tile, at_most(keys.end - tile.key, kBlockN));
  }

  template <bool kMasked, class Keys, class Values>
  FULMEN_DEVICE void multiply(const TilePlace& first, const Keys& near_keys,
                              const Values& near_values, const Scales& step_scales, RowState& rows,
                              DirectOutput& out) const {
    const Int64 first_key = first.key;
    const KeptKeys<kBlockN> kept = kept_keys(map, first_row, row_end, values, first_key);
    TileRow<kKeyTiles> score = {};
    StoredKeys key[kTogether ? kKeyTiles : 1][kTogether ? kMmaSteps : 1];
    DirectValues value[kTogether ? kValueSteps : 1][kTogether ? kGroups : 1];
    if constexpr (kTogether) {
      // All of the step's memory at once, before the first use.
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (int d = 0; d < kMmaSteps; ++d) key[f][d] = load_keys(near_keys, f, kMmaK * d);
        if (f % kStepTiles != 0) continue;
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          value[f / kStepTiles][g] = load_direct(near_values, kept, f / kStepTiles, g);
      }
    }
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int d = 0; d < kMmaSteps; ++d) {
        if constexpr (kTogether) {
          multiply_scores<Element>(score[f], key_operand(key[f][d]), query(d));
        } else {
          multiply_scores<Element>(score[f], key_operand(load_keys(near_keys, f, kMmaK * d)),
                                   query(d));
          if (!kTileRing && d % kStepsInFlight == kStepsInFlight - 1) schedule_fence();
        }
      }
    }
    step_scales.scale_keys(score);
    // A split begins with the window's first key, wherever that lies: its last tile may reach into
    // the next split.
    modify_scores<kMasked>(map, first_row, first_key, score,
                           [&](const ForwardArguments& /*a*/) { return keys.end; });
    exponentiate(rows, softmax_scale(a), score,
                 [&](const float(&factor)[kRowsPerLane]) { out.rescale(factor); });
    step_scales.scale_values(score);
#pragma unroll
    for (int step = 0; step < kValueSteps; ++step) {
      const ProbabilityOperand p = step_operand<Element, true>(score, step);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if constexpr (kTogether) {
          multiply_values(out, g, p, value[step][g]);
        } else {
          if constexpr (!kTileRing) schedule_fence();
          multiply_values(out, g, p, load_direct(near_values, kept, step, g));
        }
      }
    }
  }
};

// A wave's tiles from first_key on, each `stride` keys behind the one before, by a ring.
template <class Scales, class IsWhole>
FULMEN_DEVICE void go_over_ring(const SplitTask& task, const Scales& scales, Int64 first_key,
                                int stride, const IsWhole& is_whole, RowState& rows,
                                DirectOutput& out) {
  const KeySource &keys = task.keys, &values = task.values;
  const auto place_of = [&](Int64 key) {
    return key < keys.end ? TilePlace::of(task.a, key) : TilePlace{key, {}};
  };
  TileRing ring(wave_id(), scales.keys, scales.values);
#pragma unroll
  for (int n = 0; n < kBuffers; ++n)
    ring.fetch(keys, values, place_of(first_key + static_cast<Int64>(n) * stride));
  TilePlace next{};
  if constexpr (kTilesInPages) next = place_of(first_key + static_cast<Int64>(kBuffers) * stride);
  // Tiles are counted by 32 bits: with keys of 64 the loop takes more registers than there are.
  const int tiles =
      first_key < keys.end ? static_cast<int>((keys.end - first_key - 1) / stride) + 1 : 0;
#pragma unroll 1
  for (int n = 0; n < tiles; ++n) {
    const Int64 key = first_key + static_cast<Int64>(n) * stride,
                ahead = key + static_cast<Int64>(kBuffers) * stride;
    const RingTile tile = ring.arrived();
    const auto near_keys = tile.template rows<false>();
    const auto near_values = tile.template rows<true>();
    const SplitTask::Scales step_scales = scales.arrived(tile);
    if (is_whole(key)) {
      task.template multiply<false>({key, {}}, near_keys, near_values, step_scales, rows, out);
    } else {
      task.template multiply<true>({key, {}}, near_keys, near_values, step_scales, rows, out);
    }
    ring.release();
    ring.fetch(keys, values, {ahead, next.place});
    // The page's number of the tile after is in flight during the next step.
    if constexpr (kTilesInPages) next = place_of(ahead + stride);
  }
}

// A wave's tiles of which some row attends a key.
FULMEN_DEVICE void go_over_kept(const SplitTask& task, KeptSteps<kBlockN> steps, RowState& rows,
                                DirectOutput& out) {
  const auto place_of = [&](int n) {
    const Int64 key = steps.key(n);
    return n < steps.count() ? TilePlace::of(task.a, key) : TilePlace{key, {}};
  };
  int n = steps.next(0);
  TilePlace next = place_of(n);
#pragma unroll 1
  while (n < steps.count()) {
    const TilePlace place = next;
    // The next page's number is in flight during this step.
    n = steps.next(n + 1);
    next = place_of(n);
    task.template step<true>(place, rows, out);
  }
}

FULMEN_DEVICE void leave_in_lds(const RowState& rows, const DirectOutput& out, float scale) {
  const int wave = wave_id() / kDimGroups, first_dim = wave_id() % kDimGroups * kDimsOfWave;
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    const int row = tile_row(slot);
    const float sum = total(rows.sum[slot]);
    if (tile_column(0) == 0 && first_dim == 0) {
      lds_store(4 * (kMaximaAt + wave * kScoreTile + row), row_maximum(rows, scale, slot));
      lds_store(4 * (kSumsAt + wave * kScoreTile + row), sum);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < kDirectElements; ++e) {
        if (row_slot(e) != slot) continue;
#pragma unroll
        for (int t = 0; t < kWidth; ++t) {
          lds_store(4 * (kOutputsAt + (wave * kScoreTile + row) * kOutputPitch + first_dim +
                         direct_dim(g, e) + t),
                    out.value[g][t][e]);
        }
      }
    }
  }
}

// The waves' rows become one, and go to memory: the result, or a split's part of it.
FULMEN_DEVICE void merge(const ForwardArguments& arguments) {
  // Both again: nothing of them has to stay in registers while keys stream.
  const ForwardArguments& call = reload(arguments, workgroup_id());
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  const RowMap map = place.rows(a);
  const int first_row = place.first_row, split = place.split;
  constexpr int kLanesPerRow = kWorkgroup / kScoreTile;
  const int row = thread_id() / kLanesPerRow;
  const Int64 r = first_row + row;
  if (r >= map.end) return;
  const Int64 i = map.query(r);
  const int head = map.head(r);
  float max = -kInfinity, sum = 0, weight[kWaves];
#pragma unroll
  for (int w = 0; w < kWaves; ++w)
    max = larger(max, lds_load<float>(4 * (kMaximaAt + w * kScoreTile + row)));
  const float offset = max == -kInfinity ? 0.0F : max;
#pragma unroll
  for (int w = 0; w < kWaves; ++w) {
    weight[w] =
        exp2(kLog2OfUnit * (lds_load<float>(4 * (kMaximaAt + w * kScoreTile + row)) - offset));
    sum += weight[w] * lds_load<float>(4 * (kSumsAt + w * kScoreTile + row));
  }
  const Int64 part = map.part(call, split, head, i);
  RowEnd end{1.0F, 0.0F};
  if constexpr (!kSplits) end = end_row(a, head, max, sum);
  // Outputs of no keys are 0, whatever the scale is.
  const float of_outputs = sum == 0 ? 1.0F : StoredScales::of_outputs(a, map.batch, place.kv_head);
  for (int d = thread_id() % kLanesPerRow; d < a.head_dim_v; d += kLanesPerRow) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWaves; ++w)
      value +=
          weight[w] * lds_load<float>(4 * (kOutputsAt + (w * kScoreTile + row) * kOutputPitch + d));
    if constexpr (kQuantized) value *= of_outputs;
    if constexpr (kSplits) {
      global_store(a.partial_out + part * a.head_dim_v + d, value);
    } else {
      global_store(out_row(a, map.batch, head, i) + d,
                   from_float<Element>(value * end.output_factor));
    }
  }
  if (thread_id() % kLanesPerRow != 0) return;
  if constexpr (kSplits) {
    global_store(a.partial_max + part, max);
    global_store(a.partial_sum + part, sum);
  } else {
    store_lse(a, map.batch, head, i, end.lse);
  }
}

FULMEN_DEVICE void split_kv(const ForwardArguments& call) {
  grid_dependency_wait();  // decode_combine.h is launched early
  const Place place = Place::of(call);
  const int first_row = place.first_row, kv_head = place.kv_head, batch = place.batch;
  const ForwardArguments& a = sequence_of(call, batch);
  const RowMap map = place.rows(a);
  if (kVariable && first_row >= map.end) return;
  const int row_end =
      first_row + kScoreTile < map.end ? first_row + kScoreTile : static_cast<int>(map.end);
  const Int64 first_query = map.query(first_row), query_end = map.query(row_end - 1) + 1;
  const algorithm::Band band = band_of(a);
  const algorithm::KeyRange any = band.any(first_query, query_end),
                            all = band.all(first_query, query_end);
  // Splits begin at fixed keys, whatever the band: those outside have nothing to do.
  const Int64 split_begin = place.split * a.split_keys, split_end = split_begin + a.split_keys;
  const Int64 begin = any.begin > split_begin ? any.begin : split_begin,
              end = any.end < split_end ? any.end : split_end;

  const KeySource keys{a, a.k, head_rows(a.k, batch, kv_head), begin, end, a.head_dim};
  const int first_dim = wave_id() % kDimGroups * kDimsOfWave;
  // The last of four waves may have none.
  const bool has_dims = kDimGroups <= 2 || first_dim < a.head_dim_v;
  const KeySource values{
      a,     a.v, head_rows(a.v, batch, kv_head) + (has_dims ? first_dim * kStoredUnits<true> : 0),
      begin, end, has_dims ? a.head_dim_v - first_dim : 0};
  const StoredScales scales = StoredScales::of(a, batch, kv_head);
  SplitTask task{a, map, first_row, row_end, keys, values, scales, {}};
  if constexpr (kQueriesStay) {
#pragma unroll
    for (int d = 0; d < kMmaSteps; ++d) task.queries[kQueriesStay ? d : 0] = task.load_query(d);
  }
  RowState rows;
  rows.clear();
  DirectOutput out = {};
  const Int64 first_key = first_tile_key(begin) + wave_id() / kDimGroups * kBlockN;
  // Which tiles a mask's bits leave whole is not looked up.
  const auto is_whole = [&](Int64 key) {
    return !kMaskBits && key >= all.begin && key + kBlockN <= all.end && key + kBlockN <= end;
  };
  constexpr int kStride = kWaves * kBlockN;  // from a wave's tile to its next one
  if constexpr (kTileRing) {
    go_over_ring(task, scales, first_key, kStride, is_whole, rows, out);
    barrier();  // waves merge where their rings were
  } else if constexpr (kPassesOverSteps) {
    go_over_kept(task, {a, batch, kv_head, first_query, query_end, first_key, end, kStride}, rows,
                 out);
  } else {
    TilePlace next{first_key, {}};
    if (kTilesInPages && first_key < end) next = TilePlace::of(a, first_key);
    for (Int64 key = first_key; key < end; key += kStride) {
      const TilePlace place{key, next.place};
      // The next page's number is in flight during this step.
      if (kTilesInPages && key + kStride < end) next = TilePlace::of(a, key + kStride);
      if (is_whole(key)) {
        task.template step<false>(place, rows, out);
      } else {
        task.template step<true>(place, rows, out);
      }
    }
  }
  leave_in_lds(rows, out, softmax_scale(a));
  barrier();
  merge(call);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::split_kv)
