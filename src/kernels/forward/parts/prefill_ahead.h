// The main loop of prefill.h on CDNA (kReadsAhead). What a tile takes from LDS is read ahead of its
// products. Where the next tile has a buffer of its own, it is stored there before the last ones:
//   barrier
//   keys of the first steps from LDS; the next tile from memory
//   S = Q K^T, with the keys of later steps; at the end the first values from LDS
//   P = 2^(S - max)
//   the next tile to LDS
//   O += P V
#pragma once

#include "forward/parts/prefill_pipeline.h"
#include "forward/parts/prefill_rows.h"
#include "tile/read_ahead.h"

namespace fulmen::kernels {

// fetch(): the next tile from memory. Ends with the first values read.
template <class Fetch>
FULMEN_DEVICE void multiply_ahead(const WaveRows& rows, int buffer, ScoreFragment& score,
                                  ValuesAhead& values, const Fetch& fetch) {
  constexpr int kAll = kMmaSteps * kKeyTiles, kHeld = kKeysHeld < kAll ? kKeysHeld : kAll;
  decltype(key_operand(0, 0, 0, 0)) keys[kHeld];
  const auto read = [&](int n) {
    keys[n % kHeld] = key_operand(buffer, n % kKeyTiles, n / kKeyTiles, 0);
  };
#pragma unroll
  for (int n = 0; n < kHeld; ++n) read(n);
  schedule_fence();
  fetch();
#pragma unroll
  for (int n = 0; n < kAll; ++n) {
    const int f = n % kKeyTiles, d = n / kKeyTiles;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      multiply_scores<Element>(score[t][f], keys[n % kHeld], rows.queries[t][d]);
    if (n + kHeld < kAll) {
      read(n + kHeld);
    } else if (n + kHeld == kAll) {
      values.read_first(buffer);
    }
    if (n + 1 < kAll) schedule_fence();
  }
}

// A whole tile. store(): the next tile to LDS.
template <class Fetch, class Store>
FULMEN_DEVICE void step_ahead(const PrefillTask& task, const KeyTile& tile, WaveRows& rows,
                              const Fetch& fetch, const Store& store) {
  ScoreFragment score = {};
  ValuesAhead values;
  multiply_ahead(rows, tile.buffer, score, values, fetch);
  StagedProbabilities p[kValueSteps][kRowTiles];
  exponentiate_tile<false>(task.map, task.wave_row, tile, score, rows, p);
  store();
#pragma unroll
  for (int step = 0; step < kValueSteps; ++step)
    values.multiply(rows.out, tile.buffer, step, p[step]);
}

// The first tile is in flight. Tiles with masks take the usual step: beside what masks take,
// operands that are read ahead would spill.
template <class Tiles>
FULMEN_DEVICE void over_tiles_ahead(const PrefillTask& task, Tiles& stage, const TileOrder& order,
                                    WaveRows& rows) {
  constexpr bool kStoresEarly = kBuffers == 2;
  int n = 0, buffer = 0;
  if (kStoresEarly && order.count > 0) {
    if (kPipelines && order.masked == 0) {
      stage.publish_keys(0);
    } else {
      stage.publish(0);
    }
  }
  const auto begin = [&] {
    if (!kStoresEarly) stage.publish(0);
    barrier();
  };
  const auto store = [&] {
    if (!kStoresEarly || n + 1 >= order.count) return;
    if (kPipelines && n + 1 == order.masked) return stage.publish_keys(1 - buffer);
    stage.publish(1 - buffer);
  };
  const auto next = [&] {
    if (kStoresEarly) buffer = 1 - buffer;
    ++n;
  };
  NoCopies none;
  while (n < order.masked) {
    begin();
    if (n + 1 < order.masked) {
      stage.template fetch<true>(order.first_key(n + 1), 0);
    } else if (n + 1 < order.count) {
      fetch_first_whole(stage, order.first_key(n + 1));
    }
    task.step<true>(rows, {order.first_key(n), buffer}, none, [] {});
    store();
    next();
  }
  if constexpr (kPipelines) return over_tiles_piped(task, stage, order, n, buffer, rows);
  stage.begin_whole(order.first_key(n + 1), order.first_key(n + 1));
  while (n < order.count) {
    begin();
    step_ahead(
        task, {order.first_key(n), buffer}, rows,
        [&] {
          if (n + 1 < order.count) stage.fetch_whole(order.first_key(n + 1));
        },
        store);
    next();
  }
}

}  // namespace fulmen::kernels
