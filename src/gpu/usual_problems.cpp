#include "gpu/usual_problems.h"

namespace fulmen::gpu {
namespace {

constexpr TensorSpec kNumbers{DType::int32, true, {0, 0, 0, 1}};

}  // namespace

Problem usual_problem(DType dtype, const UsualShape& shape, bool causal) {
  Problem p;
  p.dtype = p.k_dtype = p.v_dtype = dtype;
  p.batch = shape.batch;
  p.seqlen_q = shape.seqlen_q;
  p.seqlen_k = shape.seqlen_k;
  p.num_heads = shape.heads;
  p.num_kv_heads = shape.kv_heads;
  p.head_dim = p.head_dim_v = shape.head_dim;
  p.softmax_scale = 0.125F;
  if (causal) p.window_right = 0;
  const auto view = [&](int64_t length, int64_t heads) {
    return TensorSpec{
        dtype, true, {length * heads * shape.head_dim, heads * shape.head_dim, shape.head_dim, 1}};
  };
  p.q = p.out = view(shape.seqlen_q, shape.heads);
  p.k = p.v = view(shape.seqlen_k, shape.kv_heads);
  return p;
}

void add_bias(Problem& p, DType dtype) {
  p.bias = {dtype, true, {0, p.seqlen_q * p.seqlen_k, p.seqlen_k, 1}};
}

Problem packed(Problem p) {
  p.total_q = p.batch * p.seqlen_q;
  p.total_k = p.batch * p.seqlen_k;
  p.cu_seqlens_q = p.cu_seqlens_k = kNumbers;
  for (TensorSpec* spec : {&p.q, &p.k, &p.v, &p.out}) spec->strides[0] = 0;
  return p;
}

Problem paged(Problem p, int64_t page_size) {
  p.page_size = page_size;
  p.max_pages = p.seqlen_k / page_size;
  p.num_pages = p.batch * p.max_pages;
  p.seqlens_k = kNumbers;
  p.block_table = {DType::int32, true, {0, 0, p.max_pages, 1}};
  for (TensorSpec* spec : {&p.k, &p.v}) spec->strides[0] = page_size * spec->strides[1];
  return p;
}

Problem latent(int64_t batch, int64_t seqlen_k) {
  Problem p = usual_problem(DType::bf16, {batch, 1, seqlen_k, 128, 1, 576}, false);
  p.head_dim_v = 512;
  p.v = p.k;
  p.values_in_keys = true;
  for (int64_t& stride : p.out.strides) stride = stride / 576 * 512;
  p.out.strides[3] = 1;
  return p;
}

Problem backward_of(Problem p) {
  p.pass = Pass::backward;
  p.dout = p.dq = p.q;
  p.dk = p.dv = p.k;
  p.lse = {DType::fp32, true, {p.num_heads * p.seqlen_q, p.seqlen_q, 1, 1}};
  return p;
}

}  // namespace fulmen::gpu
