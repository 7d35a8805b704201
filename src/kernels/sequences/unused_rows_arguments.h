// What the host passes to unused_rows.h. Plain data, fixed layout.
#pragma once

#include "algorithm/sequences.h"

namespace fulmen::kernels {

using Int64 = long long;

// [row, head, units of 16 bits] of a packed result, strides in such units. data is null where there
// is none.
struct PackedResult {
  unsigned short* data;
  Int64 row, head;
  int heads, units;
  int of_keys;  // its rows are those of k, else of q
};

struct UnusedRowsArguments {
  PackedResult results[3];  // out and lse; dq, dk and dv
  algorithm::SequenceTable sequences;
  Int64 rows_q, rows_k;      // of the packed tensors
  Int64 seqlen_q, seqlen_k;  // the most that are computed of a sequence
  Int64 batch, workgroups;
};

}  // namespace fulmen::kernels
