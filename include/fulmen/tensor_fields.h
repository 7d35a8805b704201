// The tensors of a call as a table: a program that goes over all of them, to copy, print or free,
// needs no list of its own.
#pragma once

#include <array>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/tensor_member.h"

namespace fulmen {

// The dtypes that a tensor may have.
enum class DTypeRule {
  of_q,       // that of q: fp32, fp16 or bf16
  of_k,       // that of k: any but boolean and int32
  of_v,       // that of v: the same
  any_float,  // fp32, fp16 or bf16, whatever q has
  fp32,
  scale,  // fp32 or fp16
  boolean,
  int32,
};

// Which dims may have one element, which then serves for all.
enum class Broadcast { none, all_but_last, all };

// One tensor of a call.
struct TensorField {
  const char* name;                         // "q"
  TensorMember<AttentionTensors> tensor;    // where the call has it
  TensorSpec Problem::* spec;               // where the problem says whether it is there, with
                                            // which dtype and strides
  DTypeRule dtype;                          // what it may have
  Problem::Shape (*shape)(const Problem&);  // its shape in a problem, where nothing is broadcast
  const char* (*dims)(const Problem&);      // the same in words:
                                            // "[batch, seqlen_q, num_heads, head_dim]"
  Broadcast broadcast;
  bool read[2], written[2];  // by the forward pass, by the backward pass: indexed by Pass
};

// All of them. Inputs come before outputs, and those of the forward pass before those of the
// backward pass alone.
constexpr int kTensorFields =
    (sizeof(AttentionTensors) - 2 * sizeof(uint64_t) -  // but seed, offset
     sizeof(std::span<const FunctionTensor>)) /         // and the list of functions' tensors
    sizeof(Tensor);
FULMEN_API extern const std::array<TensorField, kTensorFields> kTensorTable;

}  // namespace fulmen
