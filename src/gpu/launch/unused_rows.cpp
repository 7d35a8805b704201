#include "gpu/launch/unused_rows.h"

#include <algorithm>

#include "runtime/sequence_view.h"
#include "runtime/unused_rows.h"

namespace fulmen::gpu {
namespace {

constexpr int kLanes = 128;
constexpr int64_t kMostWorkgroups = 128;  // enough to write as fast as memory takes it
constexpr int64_t kRowsOfWorkgroup = 8;   // few rows take fewer

}  // namespace

Specialisation unused_rows_kernel() {
  Specialisation s;
  s.entry = "sequences/unused_rows.h";
  s.dtype = s.kv_dtype = static_cast<int>(DType::fp16);  // nothing depends on it
  s.workgroup = kLanes;
  s.block_m = s.block_n = 16;
  return s;
}

kernels::UnusedRowsArguments unused_rows_arguments(const Problem& p, const AttentionTensors& t) {
  kernels::UnusedRowsArguments a{};
  int count = 0;
  for (const PackedRows& result : packed_results(p, t)) {
    const int64_t units = static_cast<int64_t>(size_of(result.dtype) / sizeof(uint16_t));
    a.results[count++] = {static_cast<unsigned short*>(result.data),
                          result.row_stride * units,
                          result.head_stride * units,
                          static_cast<int>(result.heads),
                          static_cast<int>(result.dims * units),
                          result.of_keys ? 1 : 0};
  }
  a.sequences = sequence_table(p, t);
  a.rows_q = p.total_q;
  a.rows_k = p.total_k;
  a.seqlen_q = p.seqlen_q;
  a.seqlen_k = p.seqlen_k;
  a.batch = p.batch;
  const int64_t rows = std::max(p.total_q, p.total_k);
  a.workgroups =
      std::clamp((rows + kRowsOfWorkgroup - 1) / kRowsOfWorkgroup, int64_t{1}, kMostWorkgroups);
  return a;
}

}  // namespace fulmen::gpu
