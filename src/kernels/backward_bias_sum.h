// Adds the parts of the bias's gradient in a fixed order: some lanes an element, each every so many parts, as all of these are on
// their way at once then.
#include "backward_bias.h"

namespace fulmen::kernels {

constexpr int kLanesOfSum = 4, kElementsOfGroup = kWorkgroup / kLanesOfSum;

// Where an element is. Divisions of 64 bits take longer than all else.
struct BiasPlace {
  Int64 batch_head, i, j;

  template <class Index>
  FULMEN_DEVICE static BiasPlace of(Index index, Index rows, Index columns) {
    const Index row = index / columns;
    return {static_cast<Int64>(row / rows), static_cast<Int64>(row % rows), static_cast<Int64>(index % columns)};
  }
  FULMEN_DEVICE static BiasPlace of(Int64 index, Int64 rows, Int64 columns, Int64 all) {
    if (all > 0x7FFFFFFF) return of<Int64>(index, rows, columns);
    return of<unsigned>(static_cast<unsigned>(index), static_cast<unsigned>(rows), static_cast<unsigned>(columns));
  }
};

// Every so many terms from the share's first on: term(m) is in memory.
template <class Term>
FULMEN_DEVICE float sum_of_terms(int terms, int share, const Term& term) {
  constexpr int kAtOnce = 8;
  float sum = 0;
  for (int n = share; n < terms; n += kAtOnce * kLanesOfSum) {
    float some[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      const int m = n + t * kLanesOfSum;
      some[t] = m < terms ? global_load(term(m)) : 0.0F;
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) sum += some[t];
  }
  return sum;
}

FULMEN_DEVICE void backward_bias_sum(const BackwardArguments& a) {
  follow_predecessors();
  const BiasShape shape = BiasShape::of(a, kBlockM);
  const Int64 rows = shape.over_queries ? 1 : a.seqlen_q, all = shape.batches * shape.heads * rows * a.seqlen_k;
  const int element = thread_id() % kElementsOfGroup, share = thread_id() / kElementsOfGroup;
  const Int64 asked = workgroup_id() * kElementsOfGroup + element;
  const BiasPlace place = BiasPlace::of(asked < all ? asked : all - 1, rows, a.seqlen_k, all);
  const Int64 part_floats = shape.batches * shape.heads * shape.rows * a.seqlen_k;
  const float* from = a.bias_partials + (place.batch_head * shape.rows + place.i) * a.seqlen_k + place.j;
  float sum = 0;
  if (!shape.over_queries) {
    sum = sum_of_terms(a.bias_parts, share, [&](int m) { return from + m * part_floats; });
  } else {
    const int added = static_cast<int>(shape.rows);
    sum =
        sum_of_terms(a.bias_parts * added, share, [&](int m) { return from + (m / added * part_floats + m % added * a.seqlen_k); });
  }
  lds_store(4 * thread_id(), sum);
  barrier();
  if (share != 0 || asked >= all) return;
#pragma unroll
  for (int n = 1; n < kLanesOfSum; ++n) sum += lds_load<float>(4 * (thread_id() + n * kElementsOfGroup));
  auto* to =
      const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, place.batch_head / shape.heads, place.i, place.batch_head % shape.heads));
  global_store(to + place.j, from_float<BiasGradient>(sum));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_bias_sum)
