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
  using Order = TurnOrder<true, true>;
  // Behind which product the next keys are read, if what lies in LDS has been read by then.
  constexpr int kLate = kStoresEarly && kLongProducts ? Order::last_of(Order::kLastRead)
                                                      : Order::kAll - (kLongProducts ? 3 : 6);
  // One buffer: the next tile goes to LDS between the first products with values and these reads.
  // Stores by some lanes alone stay together, before the barrier.
  constexpr int kEarliest = kStoresEarly ? 0 : kAllLanesStore ? Order::kKeyProducts + 1 : kLate - 1;
  constexpr int kStoresFrom = Order::kAllRead > kEarliest ? Order::kAllRead : kEarliest,
                kReadsNext = kStoresFrom > kLate ? kStoresFrom : kLate,
                kStores = kReadsNext - kStoresFrom;
  static_assert(!kPipelines || (kReadsNext < Order::kAll && (kStoresEarly || Order::kAll > 5)),
                "prefill: a turn is too short");
  constexpr bool kFetchesInTurn = !kStoresEarly;
  const auto nothing = [](int) {};
  const auto fetch = [&] { stage.fetch_whole(order.first_key(n), n + 2 < order.count); };
  const auto read_next = [&] {
    barrier();
    piped.read_first_keys(kStoresEarly ? 1 - buffer : 0, 0);
  };
  const auto read_second = [&](int product) {
    const bool more = n + 2 < order.count;
    if (product == 1 && kFetchesInTurn)
      stage.template fetch_whole_part<true, false>(order.first_key(n), more);
    if (product == 5 && kFetchesInTurn)
      stage.template fetch_whole_part<false, true>(order.first_key(n), more);
    if (product == kReadsNext) piped.read_first_keys(buffer, 1);
  };
  // The next tile goes to LDS beside products: to a place of its own, or to this one's, which all
  // waves have read by then.
  const auto store_beside = [&](int product) {
    if (product == kStoresFrom && !kStoresEarly) barrier();
#pragma unroll
    for (int part = 0; part < Tiles::kParts; ++part) {
      const int behind = kStoresEarly ? Order::last_of(part * Order::kLastRead / Tiles::kParts)
                                      : kStoresFrom + part * kStores / Tiles::kParts;
      if (behind == product) stage.publish_part(kStoresEarly ? 1 - buffer : 0, part);
    }
    if (product == kReadsNext) read_next();
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
    if constexpr (!kFetchesInTurn) fetch();
    piped.template turn<true, true>(scores[1], p[1], scores[0], 0, p[0], buffer, read_second);
    piped.template turn<true, true>(scores[0], p[0], scores[1], 1, p[1], buffer, store_beside);
  }
  if constexpr (kStoresEarly) buffer = 1 - buffer;
  piped.template turn<false, true>(scores[1], p[1], scores[0], 0, p[0], buffer, nothing);
  piped.multiply_values(p[1], buffer, 1);
}

}  // namespace fulmen::kernels
