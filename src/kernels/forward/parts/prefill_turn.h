// The order of a turn of prefill_pipeline.h: products one by one, and behind each of them what a
// wave does beside it. The other wave of the SIMD has the matrix unit meanwhile.
#pragma once

#include "forward/parts/prefill_half_softmax.h"

namespace fulmen::kernels {

// A product of 32 x 32 takes longer than an exponential: each may have one behind it.
constexpr bool kLongProducts = kScoreTile == 32;

// Products are in groups that share an operand: of keys, then of values.
constexpr int kKeyGroups = kHalfTiles * kMmaSteps, kValueGroups = kHalfSteps * kDimTiles;
// Operands ahead of their products. With three waves a SIMD more would spill.
constexpr int kMostKeys = kMinWaves > 2 ? 2 : kKeysHeld,
              kMostValues = kMinWaves > 2 ? 2 : kValuesHeld;
constexpr int kKeysAhead = kMostKeys < kKeyGroups ? kMostKeys : kKeyGroups,
              kValuesAhead = kMostValues < kValueGroups ? kMostValues : kValueGroups;

template <bool kKeys, bool kValues>
struct TurnOrder {
  static constexpr int kFirst = kKeys ? kKeyGroups : 0,  // groups of keys
      kGroups = kFirst + (kValues ? kValueGroups : 0);
  static constexpr int kOfKeys = score_parts() * kRowTiles, kOfValues = value_parts() * kRowTiles;
  static constexpr int kKeyProducts = kFirst * kOfKeys,
                       kAll = kKeyProducts + (kGroups - kFirst) * kOfValues;

  FULMEN_DEVICE static constexpr int group(int n) {
    return n < kKeyProducts ? n / kOfKeys : kFirst + (n - kKeyProducts) / kOfValues;
  }
  FULMEN_DEVICE static constexpr int last_of(int group) {
    return group < kFirst ? (group + 1) * kOfKeys - 1
                          : kKeyProducts + (group - kFirst + 1) * kOfValues - 1;
  }

  // Short products: the last ones have no exponentials, so that the sums are known with the last.
  static constexpr int kLeft = kLongProducts ? 0 : kAll / 4 < 4 ? kAll / 4 : 4;
  // Elements that are exponentiated before product n's own.
  FULMEN_DEVICE static constexpr int elements(int n) {
    if (n >= kAll - kLeft) return HalfSoftmax::kAll;
    return (HalfSoftmax::kAll * n + (kLeft > 0 ? kAll - kLeft - 1 : 0)) / (kAll - kLeft);
  }
  FULMEN_DEVICE static constexpr int product_of(int element) {
    int n = 0;
    while (elements(n + 1) <= element) ++n;
    return n;
  }
  // The product behind which an element is summed up and rounded: one later, if the next element
  // is not exponentiated there.
  FULMEN_DEVICE static constexpr int finished_at(int element) {
    const int n = product_of(element);
    const bool waits =
        kLeft > 0 && element + 1 < HalfSoftmax::kAll ? product_of(element + 1) > n + 1 : kLeft > 0;
    return waits ? n + 1 : n;
  }
  // Behind which product row tile t is summed up; kAll: at the end.
  FULMEN_DEVICE static constexpr int summed_at(int t) {
    const int n = kAll - kLeft + 1 + t;
    return kLeft == 0 ? kAll : n < kAll ? n : kAll - 1;
  }

  // Fewer groups of keys than values ahead: all of these are read before the last group.
  static constexpr bool kValuesAtOnce = kKeys && kValues && kFirst < kValuesAhead;
  static constexpr int kValuesBehind = kFirst > 1 ? kFirst - 2 : 0;
  // Else what later groups take is read in the place of what this one has taken, and all that is
  // left to read is in flight behind this group.
  static constexpr int kBehindRead = kGroups - (kValues ? kValuesAhead : kKeysAhead) + 1,
                       kLastRead = kBehindRead < kGroups ? kBehindRead : kGroups - 1;
  static constexpr int kAllRead =
      kValuesAtOnce && kValueGroups == kValuesAhead
          ? last_of(kValuesBehind) + 1
          : last_of(kFirst - 1 + (kValues ? kValueGroups - kValuesAhead : 0));
};

// rows: a wave's (PipedRows). beside(n): behind the n-th product.
template <class Rows, bool kKeys, bool kValues, class Beside>
struct Turn {
  using Order = TurnOrder<kKeys, kValues>;
  static constexpr int kFirst = Order::kFirst;
  Rows& rows;
  HalfSoftmax softmax;
  const HalfScores& score;
  HalfProbabilities& p;
  HalfScores& next;
  const HalfProbabilities& before;
  int half, buffer;
  const Beside& beside;
  typename Rows::Values values[kValuesAhead];

  FULMEN_DEVICE void run() {
    if constexpr (!kKeys) read_values<0, kValuesAhead>();
    schedule_fence();
    product<0>();
  }

 private:
  template <int n>
  FULMEN_DEVICE void product() {
    constexpr int kGroup = Order::group(n);
    if constexpr (kGroup < kFirst) {
      constexpr int kIn = n % Order::kOfKeys;
      rows.multiply_keys(kGroup, kIn / kRowTiles, kIn % kRowTiles, rows.keys[kGroup % kKeysAhead],
                         next);
    } else {
      constexpr int kIn = (n - Order::kKeyProducts) % Order::kOfValues;
      rows.multiply_values(kGroup - kFirst, kIn / kRowTiles, kIn % kRowTiles, before,
                           values[(kGroup - kFirst) % kValuesAhead]);
    }
    schedule_fence();
    constexpr int kBegin = Order::elements(n), kEnd = Order::elements(n + 1);
    exponentiate<kBegin, kEnd>();
    schedule_fence();
    if constexpr (kBegin > 0 && Order::finished_at(kBegin - 1) == n)
      softmax.template finish<kBegin - 1>(p);
    if constexpr (kBegin < kEnd && Order::finished_at(kEnd - 1) == n)
      softmax.template finish<kEnd - 1>(p);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (n == Order::summed_at(t)) rows.sum_up(softmax, score, t);
    }
    if constexpr (n == Order::last_of(kGroup)) read_ahead<kGroup>();
    if constexpr (Order::kValuesAtOnce) {
      constexpr int kRead = Order::last_of(Order::kValuesBehind);
      if constexpr (n == kRead) read_values<0, kValuesAhead / 2>();
      if constexpr (n == kRead + 1) read_values<kValuesAhead / 2, kValuesAhead>();
    }
    beside(n);
    schedule_fence();
    if constexpr (n + 1 < Order::kAll) product<n + 1>();
  }
  template <int kFrom, int kUntil>
  FULMEN_DEVICE void exponentiate() {
    if constexpr (kFrom < kUntil) {
      softmax.template exponentiate<kFrom>();
      if constexpr (kFrom + 1 < kUntil) softmax.template finish<kFrom>(p);
      exponentiate<kFrom + 1, kUntil>();
    }
  }
  template <int kGroup>
  FULMEN_DEVICE void read_ahead() {
    if constexpr (kGroup < kFirst) {
      constexpr int kNext = kGroup + kKeysAhead, kValue = kGroup - (kFirst - kValuesAhead);
      if constexpr (kNext < kFirst) rows.keys[kNext % kKeysAhead] = Rows::key(buffer, half, kNext);
      if constexpr (!kValues) return;
      if constexpr (!Order::kValuesAtOnce && kValue >= 0) {
        read_values<kValue, kValue + 1>();
      }
    } else {
      constexpr int kNext = kGroup - kFirst + kValuesAhead;
      if constexpr (kNext < kValueGroups) read_values<kNext, kNext + 1>();
    }
  }
  template <int kFrom, int kUntil>
  FULMEN_DEVICE void read_values() {
    if constexpr (kFrom < kUntil) {
      values[kFrom % kValuesAhead] = Rows::value(buffer, half, kFrom);
      read_values<kFrom + 1, kUntil>();
    }
  }
};

}  // namespace fulmen::kernels
