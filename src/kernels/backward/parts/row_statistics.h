// What the backward kernels need of each query row, before them: log2(e) lse, and delta = sum of dout * out - dlse. 8 lanes a row.
#include "core/row_statistics.h"

namespace fulmen::kernels {

constexpr int kLanesOfRow = 8;

template <class T>
FULMEN_DEVICE float product_of_pieces(const T* out, const T* dout, int dims) {
  float sum = 0;
  for (int dim = 8 * (thread_id() % kLanesOfRow); dim < dims; dim += 8 * kLanesOfRow) {
    if constexpr (kWholeRows && sizeof(T) == 2) {
      const auto x = global_load(reinterpret_cast<const Words<4>*>(out + dim));
      const auto y = global_load(reinterpret_cast<const Words<4>*>(dout + dim));
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        sum += to_float(__builtin_bit_cast(T, static_cast<unsigned short>(x.word[e / 2] >> (16U * (e % 2))))) *
               to_float(__builtin_bit_cast(T, static_cast<unsigned short>(y.word[e / 2] >> (16U * (e % 2)))));
      }
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (dim + e < dims) sum += to_float(global_load(out + dim + e)) * to_float(global_load(dout + dim + e));
      }
    }
  }
  return sum;
}

struct RowPlace {
  Int64 batch, head, i;

  // Divisions of 64 bits would take longer than a row's products: for numbers that need them alone.
  FULMEN_DEVICE static RowPlace of(const BackwardArguments& call, Int64 row, Int64 rows) {
    constexpr Int64 kMost = 0xFFFFFFFF;
    return rows <= kMost ? divided<unsigned>(call, row) : divided<unsigned long long>(call, row);
  }

 private:
  template <class Number>
  FULMEN_DEVICE static RowPlace divided(const BackwardArguments& call, Int64 asked) {
    const auto row = static_cast<Number>(asked), seqlen = static_cast<Number>(call.seqlen_q),
               heads = static_cast<Number>(call.num_heads), head = row / seqlen;
    return {static_cast<Int64>(head / heads), static_cast<Int64>(head % heads), static_cast<Int64>(row % seqlen)};
  }
};

FULMEN_DEVICE void backward_rows(const BackwardArguments& call) {
  const Int64 rows = static_cast<Int64>(call.batch) * call.num_heads * call.seqlen_q;
  const Int64 asked = workgroup_id() * (kWorkgroup / kLanesOfRow) + thread_id() / kLanesOfRow;
  // The sums that atomics add to begin with 0, or the counters behind those that the first block of keys stores.
  const Int64 kept = call.query_counters > 0 ? call.query_sum_floats - call.query_counters : 0;
  const Int64 lanes = tiles_of(rows, kWorkgroup / kLanesOfRow) * kWorkgroup;
  for (Int64 n = kept + 4 * (workgroup_id() * kWorkgroup + thread_id()); n < call.query_sum_floats; n += 4 * lanes) {
    global_store(reinterpret_cast<Words<4>*>(call.query_sums + n), Words<4>{});
  }
  const Int64 row = asked < rows ? asked : rows - 1;  // all lanes meet in the exchange
  const auto [batch, head, i] = RowPlace::of(call, row, rows);
  const BackwardArguments& a = sequence_of(call, batch);
  const bool there = !kVariable || i < a.seqlen_q;
  float delta =
      product_of_pieces(at<Element>(a.out, batch, i, head), at<Element>(a.dout, batch, i, head), there ? a.head_dim_v : 0);
#pragma unroll
  for (int mask = 1; mask < kLanesOfRow; mask *= 2) delta += shuffle_xor(delta, mask);
  if (thread_id() % kLanesOfRow != 0 || asked >= rows || !there) return;
  if (a.dlse != nullptr) delta -= global_load(a.dlse + batch * a.dlse_batch + head * a.dlse_head + i * a.dlse_row);
  const float lse = global_load(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row);
  // A row without any key: 2^(score - infinity) is 0.
  const float offset = lse == -kInfinity ? kInfinity : kLog2E * lse;
  // Its out is 0, so delta is -dlse: times a probability of 0.
  global_store(RowStatistics::first_of(a, batch, head) + i, RowStatistics{offset, delta}.words());
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_rows)
