#include "gpu/launch/append_kv.h"

#include <algorithm>

#include "gpu/launch/quantized.h"

namespace fulmen::gpu {
namespace {

constexpr int kAppendLanes = 128;
constexpr int kAppendLanesOfRow = 32;  // kernels/kv_cache/append_kv.h

kernels::View view_of(const TensorSpec& spec, const Tensor& tensor) {
  return gpu::view_of(spec, spec.present ? tensor.data : nullptr);
}
int* numbers(const TensorSpec& spec, const Tensor& tensor) {
  return spec.present ? static_cast<int*>(tensor.data) : nullptr;
}

}  // namespace

Specialisation append_kernel(DType dtype) {
  Specialisation s;
  s.entry = "kv_cache/append_kv.h";
  s.dtype = s.kv_dtype = s.v_dtype = static_cast<int>(dtype);
  s.workgroup = kAppendLanes;
  s.block_m = s.block_n = 16;  // nothing depends on them
  return s;
}

Specialisation append_kernel(const KvCacheProblem& p) {
  Specialisation s = append_kernel(p.dtype);
  if (!p.quantized()) return s;
  s.quantized = 1;
  s.kv_dtype = static_cast<int>(p.k_dtype);
  s.v_dtype = static_cast<int>(p.v_dtype);
  // A scale of another kind is read, and its last stride may be anything.
  if (p.k_scale.strides[1] != 0) s.key_scales = row_scales(p.k_scale);
  if (p.v_scale.strides[1] != 0 && !p.values_in_keys) s.value_scales = row_scales(p.v_scale);
  return s;
}

int64_t append_workgroups(const KvCacheProblem& p) {
  const int64_t rows = p.batch * (2 * p.seqlen_new * p.num_kv_heads + p.seqlen_q * p.num_heads);
  const int64_t lanes = std::max(rows * kAppendLanesOfRow, p.seqlens_k_out.present ? p.batch : 0);
  return (lanes + kAppendLanes - 1) / kAppendLanes;
}

kernels::AppendArguments append_arguments(const KvCacheProblem& p, const KvCacheTensors& t) {
  kernels::AppendArguments a{};
  a.k_new = view_of(p.k_new, t.k_new);
  a.v_new = view_of(p.v_new, t.v_new);
  a.k_cache = view_of(p.k_cache, t.k_cache);
  a.v_cache = view_of(p.v_cache, t.v_cache);
  if (p.quantized()) {
    set_bytes(p.k_dtype, a.k_cache);
    set_bytes(p.v_dtype, a.v_cache);
    a.k_scale = view_of(p.k_scale, t.k_scale);
    a.v_scale = view_of(p.v_scale, t.v_scale);
    a.half_scales = half_scales(p.k_scale, p.v_scale, {});
  }
  a.q = view_of(p.q, t.q);
  a.q_out = view_of(p.q_out, t.q_out);
  a.seqlens_k = numbers(p.seqlens_k, t.seqlens_k);
  a.block_table = numbers(p.block_table, t.block_table);
  a.seqlens_k_out = numbers(p.seqlens_k_out, t.seqlens_k_out);
  a.rotary_cos = t.rotary_cos.data;
  a.rotary_sin = t.rotary_sin.data;
  a.cos_row = p.rotary_cos.strides[2];
  a.sin_row = p.rotary_sin.strides[2];
  a.table_stride = p.block_table.strides[2];
  a.rows = p.rows;
  a.positions = p.positions;
  a.num_pages = p.num_pages;
  a.page_size = p.page_size;
  a.seqlen_new = p.seqlen_new;
  a.seqlen_q = p.seqlen_q;
  a.batch = static_cast<int>(p.batch);
  a.num_heads = static_cast<int>(p.num_heads);
  a.num_kv_heads = static_cast<int>(p.num_kv_heads);
  a.head_dim = static_cast<int>(p.head_dim);
  a.head_dim_v = static_cast<int>(p.head_dim_v);
  if (p.values_in_keys) {  // rows of no dims: keys' rows are theirs
    a.head_dim_v = 0;
    a.v_scale = {};
  }
  a.half = static_cast<int>(p.rotary_dim / 2);
  a.rotary_fp32 = static_cast<int>(p.rotary_cos.dtype == DType::fp32);
  a.interleaved = static_cast<int>(p.rotary_interleaved);
  a.queries_advance = static_cast<int>(p.queries_advance);
  return a;
}

}  // namespace fulmen::gpu
