// Rows of packed results that belong to no sequence become 0. Each workgroup takes a part of those
// before the first sequence and behind the last one, and, for some sequences each, those that lie
// behind the most that is computed of it.
//
//   rows:  0 ... cu[0] | sequence 0 ... (cut off) | sequence 1 ... | ... cu[batch] ... rows
#include "core/config.h"
#include "sequences/unused_rows_arguments.h"

namespace fulmen::kernels {

// Where a sequence's rows that are computed begin and end.
struct ComputedRows {
  Int64 begin, end;
};

FULMEN_DEVICE ComputedRows computed_rows(const UnusedRowsArguments& a, bool of_keys, Int64 b) {
  const auto clamp = [](Int64 x, Int64 most) { return algorithm::Band::clamp(x, 0, most); };
  const int* cu = of_keys ? a.sequences.cu_seqlens_k : a.sequences.cu_seqlens_q;
  const Int64 rows = of_keys ? a.rows_k : a.rows_q;
  const Int64 first = global_load(cu + b), length = global_load(cu + b + 1) - first,
              begin = clamp(first, rows);
  return {begin, begin + clamp(clamp(length, of_keys ? a.seqlen_k : a.seqlen_q), rows - begin)};
}

// Rows begin + first, begin + first + step, ... before end.
FULMEN_DEVICE void zero_rows(const PackedResult& result, Int64 begin, Int64 end, Int64 first,
                             Int64 step) {
  for (Int64 row = begin + first; row < end; row += step) {
    for (int at = thread_id(); at < result.heads * result.units; at += kWorkgroup) {
      const int head = at / result.units;
      global_store(result.data + row * result.row + head * result.head + at % result.units,
                   static_cast<unsigned short>(0));
    }
  }
}

FULMEN_DEVICE void unused_rows(const UnusedRowsArguments& a) {
  for (const PackedResult& result : a.results) {
    if (result.data == nullptr) continue;
    const bool of_keys = result.of_keys != 0;
    const Int64 rows = of_keys ? a.rows_k : a.rows_q;
    const Int64 first = a.batch > 0 ? computed_rows(a, of_keys, 0).begin : rows;
    const Int64 last = a.batch > 0 ? computed_rows(a, of_keys, a.batch - 1).end : rows;
    zero_rows(result, 0, first, workgroup_id(), a.workgroups);
    zero_rows(result, last, rows, workgroup_id(), a.workgroups);
    for (Int64 b = workgroup_id(); b + 1 < a.batch; b += a.workgroups) {
      zero_rows(result, computed_rows(a, of_keys, b).end, computed_rows(a, of_keys, b + 1).begin, 0,
                1);
    }
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::UnusedRowsArguments, fulmen::kernels::unused_rows)
