// Which tensors the tensor memory accelerator (TMA) reads.
#include <string>

#include "gpu/launch/decode.h"

namespace fulmen::gpu {

Support tma_takes_strides(const char* name, const TensorSpec& spec, const Problem::Shape& shape) {
  for (int d = 0; d < 3; ++d) {
    if (shape[d] > 1 && spec.strides[d] <= 0) {
      return Support::no(std::string(name) + " has a stride of " + std::to_string(spec.strides[d]) +
                         ": the TMA takes strides of more than 0");
    }
  }
  return {};
}

Support tma_takes_pages(const Problem& p) {
  constexpr int64_t kLeast = 16, kMost = 1024;
  const int64_t size = p.page_size;
  if (!p.paged() || (size >= kLeast && size <= kMost && (size & (size - 1)) == 0)) return {};
  return Support::no("page_size " + std::to_string(size) +
                     ": the TMA brings pages of 16, 32, ... 1024 rows");
}

Support tma_reads_all_keys(const Problem& p) {
  constexpr int64_t kMostKeys = (int64_t{1} << 31) - 1024;
  if (Support support = takes_functions(p, kMostTileOperations); !support.yes) return support;
  if (p.packed_q() || p.packed_k())
    return Support::no("the TMA reads sequences at multiples of one length");
  if (p.leftpad_k.present)
    return Support::no("the TMA reads keys from the first row on, leftpad_k moves them");
  if (!strides_are_whole(p))
    return Support::no("the TMA reads rows and strides of whole pieces of 16 bytes");
  if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.batch == 0 || (p.paged() && p.num_pages == 0))
    return Support::no("the TMA reads tensors that have a row");
  if (p.seqlen_k > kMostKeys)
    return Support::no(std::to_string(p.seqlen_k) + " keys, the TMA counts rows by 32 bits");
  return {};
}

Support tma_reads(const Problem& p) {
  if (!strides_are_whole(p))
    return Support::no("the TMA reads rows and strides of whole pieces of 16 bytes");
  if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.batch == 0 || p.q_shape()[1] == 0 ||
      p.k_shape()[1] == 0)
    return Support::no("the TMA reads tensors that have a row");
  if (Support support = tma_takes_strides("q", p.q, p.q_shape()); !support.yes) return support;
  if (Support support = tma_takes_strides("k", p.k, p.k_shape()); !support.yes) return support;
  if (Support support = tma_takes_strides("v", p.v, p.v_shape()); !support.yes) return support;
  if (p.pass == Pass::forward) return tma_takes_strides("out", p.out, p.out_shape());
  return tma_takes_strides("dout", p.dout, p.out_shape());
}

}  // namespace fulmen::gpu
