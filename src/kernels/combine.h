// Merges what split_kv.h left of each split: a workgroup a query row, a lane some dims.
#include "scores.h"

namespace fulmen::kernels {

FULMEN_DEVICE void combine(const ForwardArguments& call) {
  const Int64 row_id = workgroup_id();
  const Int64 i = row_id % call.seqlen_q, head = row_id / call.seqlen_q % call.num_heads;
  const Int64 batch = row_id / call.seqlen_q / call.num_heads;
  const Int64 rows = static_cast<Int64>(call.batch) * call.num_heads * call.seqlen_q;
  const ForwardArguments& a = sequence_of(call, batch);
  if (kVariable && i >= a.seqlen_q) return;
  float max = -kInfinity, sum = 0;
  for (int s = 0; s < a.num_splits; ++s) max = larger(max, global_load(a.partial_max + s * rows + row_id));
  const float offset = max == -kInfinity ? 0.0F : max;
  for (int s = 0; s < a.num_splits; ++s) {
    sum += exp2(global_load(a.partial_max + s * rows + row_id) - offset) * global_load(a.partial_sum + s * rows + row_id);
  }
  const RowEnd end = end_row(a, head, max, sum);
  auto* out = const_cast<Element*>(at<Element>(a.out, batch, i, head));
  for (int d = thread_id(); d < a.head_dim_v; d += kWorkgroup) {
    float value = 0;
    for (int s = 0; s < a.num_splits; ++s) {
      const Int64 part = s * rows + row_id;
      value += exp2(global_load(a.partial_max + part) - offset) * global_load(a.partial_out + part * a.head_dim_v + d);
    }
    global_store(out + d, from_float<Element>(value * end.output_factor));
  }
  if (a.lse != nullptr && thread_id() == 0) {
    global_store(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row, end.lse);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::combine)
