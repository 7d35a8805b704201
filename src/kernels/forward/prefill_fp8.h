// Forward for many queries by Hopper's warpgroup products in 8 bits (E4M3): the kernel of
// forward/prefill_tma.h over codes that two launches before it write.
//
//   forward/fp8_query_codes.h   q8 = q / scale of 64 rows; the largest numbers of k and v
//   forward/fp8_key_codes.h     k8 = k / scale, v8 = (v / scale)^T, of a head
//   S[64, kBlockN] = q8[64, d] k8[kBlockN, d]^T,  P = 2^(6 + S - max) rounded to E4M3,
//   O[64, d_v] += P v8[d_v, kBlockN]^T            a warpgroup's step
//
// Products of bytes have operands that are contiguous along the depth: values are transposed in
// memory. The scales of q and k are part of the softmax's, that of v of the last factor of O. The
// matrix units add products of bytes with fewer bits than fp32 has (docs/kernels_gpu.md).
#include "forward/prefill_tma.h"
