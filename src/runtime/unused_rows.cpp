#include "runtime/unused_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/sequence_view.h"

namespace fulmen {

std::vector<PackedRows> packed_results(const Problem& p, const AttentionTensors& t) {
  const auto rows_of = [](const char* name, const TensorSpec& spec, const Tensor& tensor,
                          const Problem::Shape& s, bool of_keys) {
    return PackedRows{name, tensor.data,     spec.dtype,      s[1],   s[2],
                      s[3], spec.strides[1], spec.strides[2], of_keys};
  };
  std::vector<PackedRows> all;
  if (p.pass == Pass::forward) {
    if (p.packed_q() && p.out.present)
      all.push_back(rows_of("out", p.out, t.out, p.out_shape(), false));
    if (p.packed_q() && p.lse.present) {  // [1, head, row, 1]
      all.push_back({"lse", t.lse.data, DType::fp32, p.total_q, p.num_heads, 1, p.lse.strides[2],
                     p.lse.strides[1], false});
    }
  } else {
    if (p.packed_q() && p.dq.present) all.push_back(rows_of("dq", p.dq, t.dq, p.q_shape(), false));
    if (p.packed_k() && p.dk.present) all.push_back(rows_of("dk", p.dk, t.dk, p.k_shape(), true));
    if (p.packed_k() && p.dv.present) all.push_back(rows_of("dv", p.dv, t.dv, p.v_shape(), true));
  }
  std::erase_if(all,
                [](const PackedRows& r) { return r.rows == 0 || r.heads == 0 || r.dims == 0; });
  return all;
}

namespace {

void zero_rows(const PackedRows& result, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(size_of(result.dtype));
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < result.heads; ++head) {
      char* first = static_cast<char*>(result.data) +
                    (row * result.row_stride + head * result.head_stride) * size;
      std::memset(first, 0, static_cast<std::size_t>(result.dims * size));
    }
  }
}

}  // namespace

void zero_rows_of_no_sequence(const Problem& problem, const AttentionTensors& tensors) {
  const algorithm::SequenceTable table = sequence_table(problem, tensors);
  for (const PackedRows& result : packed_results(problem, tensors)) {
    const int* cu = result.of_keys ? table.cu_seqlens_k : table.cu_seqlens_q;
    zero_rows(result, 0, problem.batch > 0 ? cu[0] : result.rows);
    zero_rows(result, problem.batch > 0 ? cu[problem.batch] : result.rows, result.rows);
  }
}

}  // namespace fulmen
