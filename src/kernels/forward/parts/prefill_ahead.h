// The main loop of prefill.h on CDNA (kReadsAhead). What a tile takes from LDS is read ahead of its
// products, and the next tile is stored there, where it has a buffer of its own, before the last of
// them:
//   barrier
//   keys of the first steps from LDS; the next tile from memory
//   S = Q K^T, with the keys of later steps; at the end the first values from LDS
//   P = 2^(S - max)
//   the next tile to LDS
//   O += P V
#pragma once

#include "forward/parts/prefill_rows.h"
#include "forward/parts/prefill_step.h"
#include "tile/amd/read_ahead.h"

namespace fulmen::kernels {

// fetch(): the next tile from memory. Ends with the first values read.
template <class Fetch>
FULMEN_DEVICE void multiply_ahead(const PrefillTask& task, const WaveRows& rows, int buffer,
                                  ScoreFragment& score, ValuesAhead& values, const Fetch& fetch) {
  decltype(key_operand(0, 0, 0, 0)) keys[kMmaSteps][kKeyTiles];
  const auto read = [&](int d) {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) keys[d][f] = key_operand(buffer, f, d, 0);
  };
  constexpr int kAhead = kKeysAhead < kMmaSteps ? kKeysAhead : kMmaSteps;
#pragma unroll
  for (int d = 0; d < kAhead; ++d) read(d);
  schedule_fence();
  fetch();
#pragma unroll
  for (int d = 0; d < kMmaSteps; ++d) {
    if (d + kAhead < kMmaSteps) {
      read(d + kAhead);
      schedule_fence();
    } else if (d + kAhead == kMmaSteps) {
      values.read_first(buffer);
      schedule_fence();
    }
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        multiply_scores<Element>(score[t][f], keys[d][f], rows.queries[t][d]);
    }
  }
}

// store(): the next tile to LDS.
template <bool kMasked, class Fetch, class Store>
FULMEN_DEVICE void step_ahead(const PrefillTask& task, const KeyTile& tile, WaveRows& rows,
                              const Fetch& fetch, const Store& store) {
  ScoreFragment score = {};
  ValuesAhead values;
  multiply_ahead(task, rows, tile.buffer, score, values, fetch);
  StagedProbabilities p[kValueSteps][kRowTiles];
  exponentiate_tile<kMasked>(task.map, task.wave_row, tile, score, rows, p);
  store();
#pragma unroll
  for (int step = 0; step < kValueSteps; ++step)
    values.multiply(rows.out, tile.buffer, step, p[step]);
}

template <bool kIs>
struct Known {
  static constexpr bool kValue = kIs;
};

// The first tile is in flight.
FULMEN_DEVICE void over_tiles_ahead(const PrefillTask& task, Stage& stage, const TileOrder& order,
                                    WaveRows& rows) {
  constexpr bool kStoresEarly = kBuffers == 2;
  int n = 0, buffer = 0;
  if (kStoresEarly && order.count > 0) stage.publish(0);
  const auto take = [&](auto masked, const auto& fetch) {
    if (!kStoresEarly) stage.publish(0);
    barrier();
    const int next = kStoresEarly ? 1 - buffer : 0;
    step_ahead<decltype(masked)::kValue>(task, {order.first_key(n), buffer}, rows, fetch, [&] {
      if (kStoresEarly && n + 1 < order.count) stage.publish(next);
    });
    buffer = next;
  };
  for (; n < order.masked; ++n) {
    take(Known<true>{}, [&] {
      if (n + 1 < order.masked) {
        stage.template fetch<true>(order.first_key(n + 1), 0);
      } else if (n + 1 < order.count) {
        stage.template fetch<false>(order.first_key(n + 1), 0);
      }
    });
  }
  stage.begin_whole(order.first_key(n + 1));
  for (; n < order.count; ++n) {
    take(Known<false>{}, [&] {
      if (n + 1 < order.count) stage.fetch_whole(order.first_key(n + 1));
    });
  }
}

}  // namespace fulmen::kernels
