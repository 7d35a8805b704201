// Adds the parts of the bias's gradient, a lane an element, in a fixed order.
#include "backward_bias.h"

namespace fulmen::kernels {

FULMEN_DEVICE void backward_bias_sum(const BackwardArguments& a) {
  const BiasShape shape = BiasShape::of(a, kBlockM);
  const Int64 rows = shape.over_queries ? 1 : a.seqlen_q;
  const Int64 index = workgroup_id() * kWorkgroup + thread_id();
  if (index >= shape.batches * shape.heads * rows * a.seqlen_k) return;
  const Int64 j = index % a.seqlen_k, i = index / a.seqlen_k % rows, batch_head = index / a.seqlen_k / rows;
  const Int64 added = shape.over_queries ? shape.rows : 1, terms = a.bias_parts * added;
  const Int64 part_floats = shape.batches * shape.heads * shape.rows * a.seqlen_k;
  const float* from = a.bias_partials + (batch_head * shape.rows + i) * a.seqlen_k + j;
  // Some on their way at a time, added in order.
  constexpr int kAtOnce = 8;
  float sum = 0;
  for (Int64 n = 0; n < terms; n += kAtOnce) {
    float term[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      const Int64 m = n + t < terms ? n + t : terms - 1;
      term[t] = global_load(from + (added == 1 ? m * part_floats : m / added * part_floats + m % added * a.seqlen_k));
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) sum += n + t < terms ? term[t] : 0.0F;
  }
  auto* to = const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, batch_head / shape.heads, i, batch_head % shape.heads));
  global_store(to + j, from_float<BiasGradient>(sum));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_bias_sum)
