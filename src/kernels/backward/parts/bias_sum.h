// Adds the parts of the bias's gradient in a fixed order: four lanes an element, each every fourth
// part, so that all of these are in flight at once, or, where parts are few, one lane. Where rows
// are known to be multiples of four keys, a lane adds four neighbours.
#include "backward/parts/bias.h"

namespace fulmen::kernels {

constexpr int kLanesOfSum = kLdsBytes == 0 ? 1 : 4, kWidth = kWholeTiles || kWholeBias ? 4 : 1;
constexpr int kElementsOfGroup = kWorkgroup / kLanesOfSum * kWidth;
static_assert(kLanesOfSum == 1 || kLdsBytes == 4 * kLanesOfSum * kElementsOfGroup,
              "backward_bias_sum: the host reserves LDS for each lane's sums");

// Where an element is. Divisions of 64 bits take longer than all else.
struct BiasPlace {
  Int64 batch_head, i, j;

  template <class Index>
  FULMEN_DEVICE static BiasPlace of(Index index, Index rows, Index columns) {
    const Index row = index / columns;
    return {static_cast<Int64>(row / rows), static_cast<Int64>(row % rows),
            static_cast<Int64>(index % columns)};
  }
  FULMEN_DEVICE static BiasPlace of(Int64 index, Int64 rows, Int64 columns, Int64 all) {
    if (all > 0x7FFFFFFF) return of<Int64>(index, rows, columns);
    return of<unsigned>(static_cast<unsigned>(index), static_cast<unsigned>(rows),
                        static_cast<unsigned>(columns));
  }
};

using Neighbours = Words<kWidth>;

// Every so many terms from the share's first on: term(m) is in memory.
template <class Term>
FULMEN_DEVICE Neighbours sum_of_terms(int terms, int share, const Term& term) {
  constexpr int kAtOnce = 8;
  float sum[kWidth] = {};
  for (int n = share; n < terms; n += kAtOnce * kLanesOfSum) {
    Neighbours some[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      const int m = n + t * kLanesOfSum;
      some[t] =
          m < terms ? global_load(reinterpret_cast<const Neighbours*>(term(m))) : Neighbours{};
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
      for (int w = 0; w < kWidth; ++w) sum[w] += bits_float(some[t].word[w]);
    }
  }
  Neighbours sums;
#pragma unroll
  for (int w = 0; w < kWidth; ++w) sums.word[w] = float_bits(sum[w]);
  return sums;
}

// Neighbours of a row, from element `index` on.
FULMEN_DEVICE void store_sums(const BackwardArguments& a, const BiasShape& shape, Int64 index,
                              Int64 rows, Int64 columns, Int64 all, const Neighbours& sums) {
  const BiasPlace place = BiasPlace::of(index, rows, columns, all);
  auto* to = const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, place.batch_head / shape.heads,
                                                        place.i, place.batch_head % shape.heads));
#pragma unroll
  for (int n = 0; n < kWidth; ++n)
    global_store(to + place.j + n, from_float<BiasGradient>(bits_float(sums.word[n])));
}

FULMEN_DEVICE void backward_bias_sum(const BackwardArguments& a) {
  const BiasShape shape = BiasShape::of(a, kBlockM);
  const Int64 columns = kWholeTiles ? kBlockN : a.seqlen_k;
  const Int64 rows = shape.over_queries ? 1
                     : kWholeTiles      ? kBlockM
                                        : a.seqlen_q,
              all = shape.batches * shape.heads * rows * columns;
  const Int64 first = workgroup_id() * kElementsOfGroup;
  const auto clamped = [&](Int64 element) { return element < all ? element : all - kWidth; };
  const int group = thread_id() % (kElementsOfGroup / kWidth),
            share = thread_id() / (kElementsOfGroup / kWidth);
  const Int64 part_floats =
      shape.batches * shape.heads * (shape.over_queries ? kBlockM : rows) * columns;
  const Int64 added = clamped(first + kWidth * group);
  const float* from = a.bias_partials + added;
  grid_dependency_wait(reinterpret_cast<unsigned long long>(from));
  Neighbours sums;
  if (!shape.over_queries) {
    sums = sum_of_terms(a.bias_parts, share, [&](int m) { return from + m * part_floats; });
  } else {
    const BiasPlace place = BiasPlace::of(added, rows, columns, all);
    from = a.bias_partials + place.batch_head * kBlockM * columns + place.j;
    sums = sum_of_terms(a.bias_parts * kBlockM, share, [&](int m) {
      return from + (m / kBlockM * part_floats + m % kBlockM * columns);
    });
  }
  if constexpr (kLanesOfSum == 1) {
    if (first + kWidth * group < all) store_sums(a, shape, added, rows, columns, all, sums);
    return;
  }
  lds_store(4 * (share * kElementsOfGroup + kWidth * group), sums);
  barrier();
  const int element = thread_id();
  if (element >= kElementsOfGroup || first + element >= all) return;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kLanesOfSum; ++n)
    sum += lds_load<float>(4 * (element + n * kElementsOfGroup));
  const BiasPlace place = BiasPlace::of(first + element, rows, columns, all);
  auto* to = const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, place.batch_head / shape.heads,
                                                        place.i, place.batch_head % shape.heads));
  global_store(to + place.j, from_float<BiasGradient>(sum));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_bias_sum)
