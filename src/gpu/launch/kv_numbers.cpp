#include "gpu/launch/kv_numbers.h"

#include <fmt/format.h>

#include "gpu/launch/quantized.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 31U;  // of workspace
constexpr int kRows = 64;                          // of a workgroup

int64_t workgroups(const Problem& p) {
  return tiles_of(p.seqlen_k, kRows) * p.batch * p.num_kv_heads;
}

}  // namespace

kernels::KvNumbers kv_numbers_of(const Problem& p) {
  return kernels::KvNumbers::of(p.packed_k() ? 1 : p.batch, p.num_kv_heads,
                                p.packed_k() ? p.total_k : p.seqlen_k, static_cast<int>(p.head_dim),
                                static_cast<int>(p.head_dim_v), has_token_scales(p.k_scale),
                                has_token_scales(p.v_scale));
}

Problem in_numbers(const Problem& p) {
  Problem numbers = p;
  if (!p.quantized_kv()) return numbers;
  const kernels::KvNumbers w = kv_numbers_of(p);
  const auto view = [&](int64_t pitch) {
    return TensorSpec{p.dtype, true, {p.num_kv_heads * w.rows * pitch, pitch, w.rows * pitch, 1}};
  };
  numbers.k_dtype = numbers.v_dtype = p.dtype;
  numbers.k = view(w.pitch);
  numbers.v = view(w.pitch_v);
  if (p.packed_k()) numbers.k.strides[0] = numbers.v.strides[0] = 0;
  numbers.k_scale = numbers.v_scale = numbers.q_scale = {};
  numbers.block_table = {};
  numbers.page_size = numbers.num_pages = numbers.max_pages = 0;
  numbers.padded_k = p.packed_k() ? 0 : w.rows;
  return numbers;
}

Support writes_numbers(const Problem& p, const Target& target) {
  if (!p.quantized_kv()) return {};
  if (Support support = multiplies_stored(p, target); !support.yes) return support;
  if (!strides_are_whole(p))
    return Support::no(
        "quantized k and v are read by pieces of 8 numbers, which strides and dims are to be "
        "multiples of");
  if (p.leftpad_k.present)
    return Support::no("quantized k and v begin with their first row, leftpad_k is given");
  if (p.paged() && p.cu_seqlens_k.present)
    return Support::no(
        "lengths of quantized k in pages are taken from seqlens_k, not cu_seqlens_k");
  const int64_t bytes = kv_numbers_of(p).total;
  if (bytes > kMostBytes) {
    return Support::no(fmt::format(
        "k and v as numbers of {} would take {} bytes of workspace, at most {} are taken",
        to_string(p.dtype), bytes, kMostBytes));
  }
  return grid_fits(workgroups(p));
}

void specialise_numbers(const Problem& p, Specialisation& s) {
  if (!p.quantized_kv()) return;
  s.quantized = 1;
  s.key_scales = row_scales(p.k_scale);
  s.value_scales = row_scales(p.v_scale);
}

void add_kv_numbers(const Problem& p, LaunchPlan& plan) {
  if (!p.quantized_kv()) return;
  constexpr int kLanes = 256;
  const kernels::ForwardArguments stored = arguments_of(p);
  kernels::ForwardArguments& a = plan.arguments;
  a.k = stored.k;
  a.v = stored.v;
  a.k_scale = stored.k_scale;
  a.v_scale = stored.v_scale;
  a.q_scale = stored.q_scale;
  a.half_scales = stored.half_scales;
  a.rows_k = stored.rows_k;
  a.num_pages = stored.num_pages;
  const kernels::KvNumbers w = kv_numbers_of(p);
  plan.code_floats = w.total / static_cast<int64_t>(sizeof(float));
  // Of scores it knows nothing.
  Problem alone = p;
  alone.bias = alone.alibi_slopes = alone.sinks = alone.keep_mask = alone.kv_indices = {};
  alone.functions = {};
  alone.softcap = 0;
  alone.dropout = 0;
  alone.window_left = alone.window_right = -1;
  Specialisation s;
  s.entry = "forward/kv_numbers.h";
  s.workgroup = kLanes;
  s.block_m = s.block_n = kRows;
  s.head_dim = static_cast<int>(p.head_dim);
  s.head_dim_v = static_cast<int>(p.head_dim_v);
  specialise_for(alone, s);
  const bool empty = plan.launches.front().workgroups == 0;
  plan.launches.insert(plan.launches.begin(), {s, empty ? 0 : workgroups(p)});
}

}  // namespace fulmen::gpu
