// Products in 8 bits, first pass: queries become codes; the largest number of keys, and of values,
// is found.
//
//   q8[64, d] = round(q[64, d] * 448 / max |q|)      workgroups of queries: a scale for 64 rows
//   largest = max |k[512, d]|, max |v[512, d_v]|     workgroups of keys, then of values
//
// Keys that no query attends count as zeros.
#include "forward/parts/code_rows.h"

namespace fulmen::kernels {

FULMEN_DEVICE void write_query_codes(const ForwardArguments& a, const Fp8Workspace& w, Int64 nth) {
  const Int64 head = nth / w.query_blocks, first = nth % w.query_blocks * kFp8Queries;
  const int there = at_most(a.seqlen_q - first, kFp8Queries);
  const CodedRows rows(a.q, a.head_dim,
                       at<Element>(a.q, head / a.num_heads, first, head % a.num_heads),
                       [&](int row) { return row < there; });
  const float most = largest_of_workgroup(rows.largest());
  rows.store(a.codes + w.q + (head * a.seqlen_q + first) * kHeadDim, there, code_factor(most));
  if (thread_id() == 0) global_store(fp8_floats(a, w.q_scales) + nth, scale_of_largest(most));
}

// nth: of all heads' parts.
template <int kDims>
FULMEN_DEVICE void find_largest(const ForwardArguments& a, const Fp8Workspace& w, const View& view,
                                int dims, Int64 nth, float* to) {
  constexpr int kPieces = kFp8PartRows * kDims / 8, kOfLane = kPieces / kWorkgroup, kAtOnce = 4;
  static_assert(kPieces % kWorkgroup == 0, "fp8: a part has whole pieces of all lanes");
  const Int64 head = nth / w.parts, first = nth % w.parts * kFp8PartRows;
  const algorithm::KeyRange keys = band_of(a).any(0, a.seqlen_q);
  const Element* const rows = at<Element>(view, head / a.num_kv_heads, 0, head % a.num_kv_heads);
  float most = 0;
#pragma unroll 1
  for (int n = 0; n < kOfLane; n += kAtOnce) {
    Piece pieces[kAtOnce];
#pragma unroll
    for (int m = 0; m < kAtOnce; ++m) {
      const auto place = PiecePlace<kDims>::of(n + m);
      const Int64 row = first + place.row;
      const bool there = n + m < kOfLane && row >= keys.begin && row < keys.end;
      pieces[m] = piece_of(rows, view.row, row, there, place.dim, dims);
    }
#pragma unroll
    for (int m = 0; m < kAtOnce; ++m) most = larger(most, pieces[m].largest());
  }
  most = largest_of_workgroup(most);
  if (thread_id() == 0) global_store(to + nth, most);
}

FULMEN_DEVICE void fp8_query_codes(const ForwardArguments& a) {
  const Fp8Workspace w = fp8_workspace(a);
  const Int64 queries = static_cast<Int64>(a.batch) * a.num_heads * w.query_blocks,
              parts = static_cast<Int64>(a.batch) * a.num_kv_heads * w.parts;
  const Int64 id = workgroup_id();
  float* const largest = fp8_floats(a, w.largest);
  if (id < queries) {
    write_query_codes(a, w, id);
  } else if (id < queries + parts) {
    find_largest<kHeadDim>(a, w, a.k, a.head_dim, id - queries, largest);
  } else {
    find_largest<kHeadDimV>(a, w, a.v, a.head_dim_v, id - queries - parts, largest + parts);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::fp8_query_codes)
