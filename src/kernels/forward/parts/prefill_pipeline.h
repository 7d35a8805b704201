// The main loop of prefill.h on CDNA where nothing modifies scores (kPipelines): a software
// pipeline over halves of tiles, so that a wave's vector and matrix instructions alternate.
//   turn of half h:   S(h + 1) = Q K^T   and   O += P(h - 1) V,   between their products
//                     P(h) = 2^(S(h) - reference)
// Values are a tile behind keys: a turn of the loop has K of tile n and V of tile n - 1 in LDS,
// and brings K of tile n + 1 and V of tile n.
#pragma once

#include "forward/parts/prefill_piped_rows.h"
#include "tile/order.h"

namespace fulmen::kernels {

// The first tile of the main loop.
template <class Tiles>
FULMEN_DEVICE void fetch_first_whole(Tiles& stage, Int64 first_key) {
  if constexpr (kPipelines) {
    stage.fetch_keys(first_key);
  } else {
    stage.template fetch<false>(first_key, 0);
  }
}

// Whole tiles from the n-th on, whose keys are in flight, or in `buffer`.
template <class Tiles>
FULMEN_DEVICE void over_tiles_piped(const PrefillTask& task, Tiles& stage, const TileOrder& order,
                                    int n, int buffer, WaveRows& rows) {
  constexpr bool kStoresEarly = kBuffers == 2;
  if (n >= order.count) return;
  PipedRows piped(task, rows);
  HalfScores scores[2];
  HalfProbabilities p[2];
  const auto nothing = [](int, int) {};
  const auto fetch = [&] { stage.fetch_whole(order.first_key(n), n + 2 < order.count); };
  const auto read_next = [&] {
    barrier();
    piped.read_first_keys(kStoresEarly ? 1 - buffer : 0, 0);
  };
  const auto read_second = [&](int group, int last) {
    if (group == last) piped.read_first_keys(buffer, 1);
  };
  // The next tile goes to LDS beside products: to a place of its own, or to this one's, which all
  // waves have read by then.
  const auto store_beside = [&](int group, int last) {
    if constexpr (kStoresEarly) {
      // Values that are transposed by the stores are many small ones, which hold up products.
#pragma unroll
      for (int part = 0; part < Tiles::kParts && kReadsTransposed; ++part) {
        if (part * last / Tiles::kParts == group) stage.publish_part(1 - buffer, part);
      }
      if (group == last) read_next();
    } else {
      if (group == last) stage.publish(0);
      if (group == PipedRows::kTurnGroups - 1) read_next();
    }
  };

  if constexpr (!kStoresEarly) stage.publish_keys(0);
  barrier();
  stage.begin_whole(order.first_key(n + 1 < order.count ? n + 1 : n), order.first_key(n));
  fetch();
  piped.multiply_keys(buffer, 0, scores[0]);
  piped.read_first_keys(buffer, 1);
  piped.template turn<true, false>(scores[0], p[0], scores[1], 1, p[1], buffer, nothing);
  stage.publish(kStoresEarly ? 1 - buffer : 0);
  read_next();
  while (++n < order.count) {
    if constexpr (kStoresEarly) buffer = 1 - buffer;
    fetch();
    piped.template turn<true, true>(scores[1], p[1], scores[0], 0, p[0], buffer, read_second);
    if constexpr (kStoresEarly && !kReadsTransposed) stage.publish(1 - buffer);
    piped.template turn<true, true>(scores[0], p[0], scores[1], 1, p[1], buffer, store_beside);
  }
  if constexpr (kStoresEarly) buffer = 1 - buffer;
  piped.template turn<false, true>(scores[1], p[1], scores[0], 0, p[0], buffer, nothing);
  piped.multiply_values(p[1], buffer, 1);
}

}  // namespace fulmen::kernels
