// Forward for many queries with both products in fp8 by matrix instructions: the kernel of
// forward/prefill.h over codes that two launches before it write.
//
//   forward/fp8_query_codes.h   q8 = q / scale of 64 rows; the largest numbers of k and v
//   forward/fp8_key_codes.h     k8 = k / scale of the head, v8 = (v / scale of the head)^T
//   S[kBlockM, kBlockN] = q8[kBlockM, d] k8[kBlockN, d]^T
//   P = 2^(S scale - max + kFp8Shift),  O[kBlockM, d_v] += P8 v8[d_v, kBlockN]^T
//
// The scales of q and k are part of the softmax's, the scale of v is the outputs'. The keys of a
// panel of v8 lie in the order in which a lane has scores: P8 is an operand as it is.
#include "forward/prefill.h"
