// Forward for many queries with q k^T in int8 by matrix instructions: the kernel of
// forward/prefill.h over codes that two launches before it write.
//
//   forward/int8_key_sums.h   what the mean of a head's keys and their range follow from
//   forward/int8_codes.h      k8 = (k - mean) / scale of the head, q8 = q / scale of the row
//   S[kBlockM, kBlockN] = q8[kBlockM, d] k8[kBlockN, d]^T      sums of codes, exact
//   P = 2^(S scale - max),  O[kBlockM, d_v] += P v[kBlockN, d_v]
//
// The scales of q and k are part of the softmax's, a row's own (tile/int8.h). Probabilities and
// values are multiplied in 16 bits. Codes of keys and queries take half the LDS and registers.
#include "forward/prefill.h"
