// dk and dv from what the splits of queries gave (key_parts.h): added in the order of the splits,
// dk scaled, both rounded. A lane has kRun neighbouring dims of a row.
#include "backward/parts/key_parts.h"
#include "tile/rows.h"

namespace fulmen::kernels {

constexpr int kRun = 4;

template <int kDims>
FULMEN_DEVICE void add_parts(const BackwardArguments& a, const float* parts, const View& view,
                             int dims, float factor, Int64 nth) {
  const Int64 row = nth / (kDims / kRun), stride = KeyParts::stride(a);
  const int dim = static_cast<int>(nth % (kDims / kRun)) * kRun;
  const float* const from = parts + row * kDims + dim;
  float sum[kRun] = {};
#pragma unroll 4
  for (int n = 0; n < a.num_splits; ++n) {
    const auto part = global_load(reinterpret_cast<const Words<kRun>*>(from + n * stride));
#pragma unroll
    for (int m = 0; m < kRun; ++m) sum[m] += bits_float(part.word[m]);
  }
#pragma unroll
  for (int m = 0; m < kRun; ++m) sum[m] *= factor;
  const Int64 head = row / a.seqlen_k, j = row % a.seqlen_k;
  store_run(
      const_cast<Element*>(at<Element>(view, head / a.num_kv_heads, j, head % a.num_kv_heads)), dim,
      dims, sum);
}

FULMEN_DEVICE void backward_key_sums(const BackwardArguments& a) {
  grid_dependency_wait();
  const Int64 rows = KeyParts::rows(a), of_dk = kGivesDk ? rows * (kHeadDim / kRun) : 0,
              of_dv = kGivesDv ? rows * (kHeadDimV / kRun) : 0;
  const KeyParts parts = KeyParts::of(a, 0);
  const Int64 nth = workgroup_id() * kWorkgroup + thread_id();
  if (nth < of_dk) {
    add_parts<kHeadDim>(a, parts.dk, a.dk, a.head_dim, a.softmax_scale, nth);
  } else if (nth < of_dk + of_dv) {
    add_parts<kHeadDimV>(a, parts.dv, a.dv, a.head_dim_v, 1.0F, nth - of_dk);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_key_sums)
