// Problems that kernels are compiled for ahead of their first use.
#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/problem.h"

namespace fulmen::gpu {

struct UsualShape {
  int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
};

// A forward pass in the layout bshd, 16-byte aligned, of one dtype.
Problem usual_problem(DType dtype, const UsualShape& shape, bool causal);
// A bias a head, the same for the whole batch.
void add_bias(Problem& p, DType dtype);
// Its sequences one after the other, each of up to the shape's lengths.
Problem packed(Problem p);
// Its keys and values in pages, of which each sequence uses some.
Problem paged(Problem p, int64_t page_size);
// Decode of latent attention: 128 heads share one of 576 dims, of which V is the first 512.
Problem latent(int64_t batch, int64_t seqlen_k);
// The backward pass of a problem, dq, dk and dv.
Problem backward_of(Problem p);

// What models and engines call most: boards, prefill, decode and gradients of 64, 80, 96, 128 and
// 256 dims (boards: 32, 64, 96, 128) in fp16 and bf16. Packages of prebuilt kernels have these.
std::vector<Problem> common_calls();

}  // namespace fulmen::gpu
