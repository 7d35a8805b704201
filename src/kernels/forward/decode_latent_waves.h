// Forward for few queries of latent attention, by waves: many heads share one wide KV head, and the
// values are the first dims of its keys. A tile of these is loaded once, and the waves of a
// workgroup take both operands from there. (Hopper: forward/decode_latent.h.)
//
//   S[16, kBlockN] = Q[16, d] K[kBlockN, d]^T,  P = 2^(S - reference)     a wave's rows, all dims
//   O[kBlockM, d_v / waves] += P K[kBlockN, d_v / waves]                  all rows, a wave's dims
//
// A workgroup has kBlockM rows - query heads, query after query - and a split of the keys. Queries
// and outputs stay in registers, and probabilities go through LDS: so an operand of values serves
// all rows. A turn of the loop has the scores of one tile and the outputs of the tile before, which
// do not wait for each other, and one workgroup barrier. The tile after is in flight in registers.
#include "forward/parts/latent_values.h"
#include "forward/parts/split_keys.h"

namespace fulmen::kernels {

// The results, or a split's part of them. call: the whole call, a sequence of which the map has.
FULMEN_DEVICE void store_part(const ForwardArguments& call, const RowMap& map, const Place& place,
                              const LatentScores& scores, LatentValues& values) {
  const ForwardArguments& a = map.arguments;
  const auto part_of = [&](int row_tile) {
    const Int64 row = map.clamp(place.first_row + kScoreTile * row_tile + tile_row(0));
    return map.part(call, place.split, map.head(row), map.query(row));
  };
  const auto exists = [&](int row_tile) {
    return place.first_row + kScoreTile * row_tile + tile_row(0) < map.end;
  };
  values.for_each_run([&](int r, int dim, const auto& run) {
    if (!exists(r)) return;
    float* const to = a.partial_out + part_of(r) * a.head_dim_v + dim;
    constexpr int kCount = sizeof(run) / sizeof(float);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (kExactDims || dim + n < a.head_dim_v) global_store(to + n, run[n]);
    }
  });
  const float max = scores.max(), sum = scores.sum();
  const int wave = wave_id();
  if (tile_column(0) != 0 || !exists(wave)) return;
  global_store(a.partial_max + part_of(wave), max);
  global_store(a.partial_sum + part_of(wave), sum);
}
FULMEN_DEVICE void store_result(const RowMap& map, const Place& place, const LatentScores& scores,
                                LatentValues& values) {
  const ForwardArguments& a = map.arguments;
  const int wave = wave_id();
  const Int64 own_row = place.first_row + kScoreTile * wave + tile_row(0), own = map.clamp(own_row);
  const RowEnd end = end_row(a, map.head(own), scores.max(), scores.sum());
  if (tile_column(0) == 0) {
    lds_store(factor_at(0, wave, tile_row(0)), end.output_factor);
    if (own_row < map.end) store_lse(a, map.batch, map.head(own), map.query(own), end.lse);
  }
  barrier();
  values.rescale(0);
  values.for_each_run([&](int r, int dim, const auto& run) {
    const Int64 row = place.first_row + kScoreTile * r + tile_row(0);
    if (row < map.end)
      store_run(out_row(a, map.batch, map.head(row), map.query(row)), dim, a.head_dim_v, run);
  });
}

// Stores the rows' results, or a split's part of them. Arguments are loaded again: nothing of them
// has to stay in registers while keys stream.
FULMEN_DEVICE void store(const ForwardArguments& arguments, const LatentScores& scores,
                         LatentValues& values) {
  const ForwardArguments& call = reload(arguments, workgroup_id());
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  const RowMap map = place.rows(a, 0);
  if constexpr (kSplits) {
    store_part(call, map, place, scores, values);
  } else {
    barrier();  // factors have been read
    store_result(map, place, scores, values);
  }
}

FULMEN_DEVICE void decode_latent_waves(const ForwardArguments& call) {
  const Place place = Place::of(call);
  const ForwardArguments& a = sequence_of(call, place.batch);
  const RowMap map = place.rows(a, 0);
  if (kVariable && place.first_row >= map.end) return;
  const SplitKeys split = SplitKeys::of(a, place, map);
  LatentScores scores(map, place.first_row + wave_id() * kScoreTile);
  LatentValues values;
  LatentStage stage(a, head_rows(a.k, place.batch, place.kv_heads), split.any.begin, split.any.end);
  int buffer = 0, part = 0;  // of the tile before
  if (split.first < split.any.end) {
    stage.find(split.first);
    stage.fetch();
    stage.publish(0);
    stage.find(split.first + kBlockN);
    barrier();
    scores.multiply_keys(0, [](int /*product*/) {});
    scores.publish(split.first, split, 0);
    stage.fetch();
    stage.find(split.first + 2 * kBlockN);
  }
#pragma unroll 1
  for (Int64 key = split.first + kBlockN; key < split.any.end; key += kBlockN) {
    const int before = buffer;
    buffer = buffer == LatentWavesLayout::kTiles - 1 ? 0 : buffer + 1;
    stage.publish(buffer);
    barrier();
    // Behind the last tile its last key again.
    stage.fetch();
    stage.find(key + 2 * kBlockN);
    values.begin(before, part);
    scores.multiply_keys(buffer,
                         [&](int n) { values.multiply(before, n, LatentScores::kProducts); });
    part = 1 - part;
    scores.publish(key, split, part);
  }
  barrier();
  if (split.first < split.any.end) {
    values.begin(buffer, part);
    values.multiply(buffer, 0, 1);
  }
  store(call, scores, values);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::decode_latent_waves)
