// The sinks' gradient: - sum of exp(sink - lse) delta over a head's rows. A workgroup a head; sums
// in a fixed order.
#include "core/row_statistics.h"

namespace fulmen::kernels {

static_assert(kLdsBytes == 4 * kWorkgroup, "backward_sinks: the host reserves a float a lane");

FULMEN_DEVICE void backward_sinks(const BackwardArguments& call) {
  const Int64 head = workgroup_id();
  const float sink = kUnitsOfScore * global_load(call.sinks + head);
  float sum = 0;
  for (Int64 batch = 0; batch < call.batch; ++batch) {
    const BackwardArguments& a = sequence_of(call, batch);
    for (Int64 i = thread_id(); i < a.seqlen_q; i += kWorkgroup) {
      const RowStatistics row = RowStatistics::of(a, batch, head, i);
      if (sink == -kInfinity) continue;
      const float share = RowShares::load(RowShares::first_of(a, batch, head) + i, row.offset);
      sum -= share * exp2(kLog2OfUnit * (sink - row.offset)) * row.delta;
    }
  }
  lds_store(4 * thread_id(), sum);
  for (int half = kWorkgroup / 2; half > 0; half /= 2) {
    barrier();
    if (thread_id() < half) {
      sum += lds_load<float>(4 * (thread_id() + half));
      lds_store(4 * thread_id(), sum);
    }
  }
  if (thread_id() == 0) global_store(call.dsinks + head, sum);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_sinks)
