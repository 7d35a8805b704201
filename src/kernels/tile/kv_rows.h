// Rows of K and V for the kernels without matrix instructions: at a stride, or in pages.
#pragma once

#include "core/sequence.h"
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

// Rows of a KV head from first_key on.
template <bool kValues>
FULMEN_DEVICE auto kv_rows(const ForwardArguments& a, const KvElement* head, Int64 first_key,
                           int last) {
  if constexpr (kPaged) {
    return PagedRows<kValues>{a, head, first_key, last};
  } else {
    const Int64 stride = kValues ? a.v.row : a.k.row;
    return RowsAt<KvElement>{head + first_key * stride, stride, last};
  }
}

}  // namespace fulmen::kernels
