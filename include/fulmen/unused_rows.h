// Rows of packed results that belong to no sequence: before cu_seqlens[0] and from
// cu_seqlens[batch] on.
#pragma once

#include <string>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// Sets such rows of a call's results to 0: of out and lse; backward of dq, dk and dv; each as far
// as it is there and packed. attention() and attention_backward() write no such row, so that new
// memory holds anything there. On devices with memory of their own, whose lengths are not checked,
// rows beyond max_seqlen_q or max_seqlen_k of a sequence become 0, too: they are not computed.
// Before the call, or after it where out is q's memory. Of other tensors it reads cu_seqlens_q and
// cu_seqlens_k alone. problem: of make_problem() or make_backward_problem() for these tensors.
// device: as in attention(). A GPU does it in the stream, null is the device's default one, and
// nothing waits. Errors: those of usable devices; a null pointer; where the host's memory is used,
// those of check_sequences(); on a GPU those of its compiler; a backend of the user's with device
// memory that cannot do it.
FULMEN_API Status zero_unused_rows(const Problem& problem, const AttentionTensors& tensors,
                                   const std::string& device = {}, void* stream = nullptr);

}  // namespace fulmen
