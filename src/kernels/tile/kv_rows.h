// Rows of K and V for the kernels without matrix instructions: at a stride, or in pages.
#pragma once

#include "core/sequence.h"
#include "core/stored_number.h"
#include "core/stored_rows.h"
#include "tile/words.h"

namespace fulmen::kernels {

// Rows that lie anywhere; those past the last one repeat it.
template <bool kValues>
struct PagedRows {
  const ForwardArguments& arguments;
  const KvElement* head;  // by head_rows()
  Int64 first_key;
  int last;

  template <bool kClamped>
  FULMEN_DEVICE const KvElement* row(int n) const {
    return kv_row<kValues>(arguments, kValues ? arguments.v : arguments.k, head,
                           first_key + (n < last ? n : last));
  }
};

// The same of quantized rows, each with its scale.
template <bool kValues>
struct QuantizedRows {
  const ForwardArguments& arguments;
  const StoredHead<kValues>& head;
  Int64 first_key;
  int last;

  template <bool kClamped>
  FULMEN_DEVICE StoredRow<kValues> row(int n) const {
    return StoredRow<kValues>::of(arguments, head, first_key + (n < last ? n : last));
  }
};
// Numbers [dim, dim + 8) of such a row of `dims`, times their scale; zeros beyond its end.
template <bool kValues>
FULMEN_DEVICE void load_words(const StoredRow<kValues>& row, int dim, int dims,
                              PieceOfWords& word) {
  static_assert(!kQuantized || kPieceWords == 8, "quantized: products are those of fp32");
  const int first = kWholeRows ? dim : recompute(dim);
  float number[8];
  load_numbers<(kValues ? kValueFormat : kKeyFormat)>(row.data, first, dims, number);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float x = number[e] * row.scale_of(first + e, dims);
    word[e] = kExactDims || first + e < dims ? float_bits(x) : 0U;
  }
}

// Rows of a KV head from first_key on.
template <bool kValues>
FULMEN_DEVICE auto kv_rows(const ForwardArguments& a, const KvHead<kValues>& head, Int64 first_key,
                           int last) {
  if constexpr (kQuantized) {
    return QuantizedRows<kValues>{a, head, first_key, last};
  } else if constexpr (kPaged) {
    return PagedRows<kValues>{a, head, first_key, last};
  } else {
    const Int64 stride = kValues ? a.v.row : a.k.row;
    return RowsAt<KvElement>{head + first_key * stride, stride, last};
  }
}

}  // namespace fulmen::kernels
