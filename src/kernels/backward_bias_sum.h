// Adds the parts of the bias's gradient, a lane an element, in a fixed order.
#include "backward_bias.h"

namespace fulmen::kernels {

FULMEN_DEVICE void backward_bias_sum(const BackwardArguments& a) {
  const BiasShape shape = BiasShape::of(a, kBlockM);
  const Int64 rows = shape.over_queries ? 1 : a.seqlen_q;
  const Int64 index = workgroup_id() * kWorkgroup + thread_id();
  if (index >= shape.batches * shape.heads * rows * a.seqlen_k) return;
  const Int64 j = index % a.seqlen_k, i = index / a.seqlen_k % rows, batch_head = index / a.seqlen_k / rows;
  const Int64 added = shape.over_queries ? shape.rows : 1;
  float sum = 0;
  for (Int64 part = 0; part < a.bias_parts; ++part) {
    const float* from = a.bias_partials + ((part * shape.batches * shape.heads + batch_head) * shape.rows + i) * a.seqlen_k + j;
    for (Int64 r = 0; r < added; ++r) sum += global_load(from + r * a.seqlen_k);
  }
  auto* to = const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, batch_head / shape.heads, i, batch_head % shape.heads));
  global_store(to + j, from_float<BiasGradient>(sum));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_bias_sum)
