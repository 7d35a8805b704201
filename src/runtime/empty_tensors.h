// Pointers of empty tensors, which may be null: code for the host adds offsets to them, and to null
// none may be added.
#pragma once

#include "fulmen/attention.h"
#include "fulmen/kv_cache.h"
#include "fulmen/problem.h"
#include "runtime/tensor_table.h"

namespace fulmen {

// Whether a tensor that the problem has is at null.
inline bool any_at_null(const Problem& problem, const AttentionTensors& tensors) noexcept {
  bool any = false;
  for (const TensorField& field : kTensorTable)
    any |= (problem.*field.spec).present && (tensors->*field.tensor).data == nullptr;
  return any;
}

// The tensors; an empty one at null is at a place where nothing is.
AttentionTensors without_null(const Problem& problem, AttentionTensors tensors) noexcept;
KvCacheTensors without_null(const KvCacheProblem& problem, KvCacheTensors tensors) noexcept;

}  // namespace fulmen
