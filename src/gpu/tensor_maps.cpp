// The tensor maps of a launch, by which the TMA finds tiles of q, k, v, out and dout.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "gpu/gpu_runner.h"
#include "gpu/launch/kv_numbers.h"
#include "kernels/tile/fp8_workspace.h"

namespace fulmen::gpu {

Status GpuRunner::encode_tensor_map(const kernels::View& view, const Problem::Shape& of,
                                    const Specialisation& s, int box_rows, kernels::TensorMap& map,
                                    int box_heads) const {
  constexpr int64_t kBytes = 2, kUnused = 16;  // a stride that nothing is reached by
  const auto [batch, rows, heads, dims] = of;
  const auto stride = [](int64_t elements, int64_t extent) {
    return extent > 1 ? elements * kBytes : kUnused;
  };
  const TensorMapShape shape{
      view.data,
      s.tensor_dtype() == DType::fp16,
      {dims, rows, heads, batch},
      {stride(view.row, rows), stride(view.head, heads), stride(view.batch, batch)},
      box_rows,
      s.packed_rows != 0,
      box_heads};
  return driver_.encode_tensor_map(device_.ordinal, shape, map);
}

template <class Arguments>
Status GpuRunner::encode_queries(Arguments& a, const Specialisation& s) const {
  // Packed rows of q are few, and no box of a tensor: their kernel loads them.
  if (s.packed_rows != 0) return {};
  return encode_tensor_map(a.q, problem_.q_shape(), s, s.backward ? s.block_n : kWarpgroupRows,
                           a.q_map);
}

template <class Arguments>
Status GpuRunner::encode_keys(Arguments& a, const Specialisation& s) const {
  const int tile = s.backward ? s.block_m : s.block_n;
  // A box lies in a page.
  const int keys =
      problem_.paged() ? static_cast<int>(std::min<int64_t>(tile, problem_.page_size)) : tile;
  // Neighbouring heads are encoded as one head of as many times the dims.
  const auto encode = [&](kernels::View view, Problem::Shape shape, kernels::TensorMap& map) {
    auto& [batch, rows, heads, dims] = shape;
    heads /= s.heads_in_row;
    dims *= s.heads_in_row;
    view.head *= s.heads_in_row;
    return encode_tensor_map(view, shape, s, keys, map);
  };
  if (Status status = encode(a.k, problem_.k_shape(), a.k_map); !status.ok()) return status;
  return encode(a.v, problem_.v_shape(), a.v_map);
}

// Quantized keys and values, as forward/kv_numbers.h writes them.
Status GpuRunner::encode_numbers(kernels::TmaForwardArguments& a, const Specialisation& s) const {
  const kernels::KvNumbers w = kv_numbers_of(problem_);
  const auto encode = [&](int64_t at, int64_t pitch, int64_t dims, kernels::TensorMap& map) {
    const kernels::View view{a.codes + at, problem_.num_kv_heads * w.rows * pitch, pitch,
                             w.rows * pitch};
    return encode_tensor_map(view, {w.batch, w.rows, problem_.num_kv_heads, dims}, s, s.block_n,
                             map);
  };
  if (Status status = encode(w.k, w.pitch, problem_.head_dim, a.k_map); !status.ok()) return status;
  return encode(w.v, w.pitch_v, problem_.head_dim_v, a.v_map);
}

// Codes of 8 bits, by pairs.
Status GpuRunner::encode_codes(kernels::TmaForwardArguments& a, const Specialisation& s) const {
  constexpr int kQueries = kernels::kFp8Queries;
  const kernels::Fp8Workspace w =
      kernels::Fp8Workspace::of(a.batch, a.num_heads, a.num_kv_heads, a.seqlen_q, a.seqlen_k,
                                s.head_dim, a.head_dim_v, s.block_n);
  const auto encode = [&](int64_t at, int64_t batch, int64_t heads, int64_t rows, int64_t pairs,
                          int box_rows, kernels::TensorMap& map) {
    const kernels::View view{a.codes + at, heads * rows * pairs, pairs, rows * pairs};
    return encode_tensor_map(view, {batch, rows, heads, pairs}, s, box_rows, map);
  };
  const int64_t pairs = s.head_dim / 2, panel_pairs = kernels::fp8_panel_keys(s.block_n) / 2;
  if (Status status = encode(w.q, a.batch, a.num_heads, a.seqlen_q, pairs, kQueries, a.q_map);
      !status.ok())
    return status;
  if (Status status = encode(w.k, a.batch, a.num_kv_heads, a.seqlen_k, pairs, s.block_n, a.k_map);
      !status.ok())
    return status;
  return encode(w.v, int64_t{a.batch} * a.num_kv_heads, w.panels, a.head_dim_v, panel_pairs,
                s.head_dim_v, a.v_map);
}

Status GpuRunner::encode_tensor_maps(kernels::TmaForwardArguments& a,
                                     const Specialisation& s) const {
  constexpr int kWaveRows = 16;
  if (s.precision != 0) {
    if (Status status = encode_codes(a, s); !status.ok()) return status;
    // Else outputs go from registers to memory.
    constexpr std::uintptr_t kAlignment = 16;
    if (s.whole_rows == 0 || reinterpret_cast<std::uintptr_t>(a.out.data) % kAlignment != 0)
      return {};
    return encode_tensor_map(a.out, problem_.out_shape(), s, kWaveRows, a.out_map);
  }
  if (Status status = encode_queries(a, s); !status.ok()) return status;
  if (Status status = s.quantized != 0 ? encode_numbers(a, s) : encode_keys(a, s);
      !status.ok() || s.packed_rows != 0)
    return status;
  if (s.shares_tiles != 0) {
    kernels::View q = a.q;
    std::swap(q.row, q.head);
    auto [batch, rows, heads, dims] = problem_.q_shape();
    if (Status status = encode_tensor_map(q, {batch, heads, rows, dims}, s, a.work.heads,
                                          a.shared_q_map, a.work.group_queries);
        !status.ok())
      return status;
  }
  return encode_tensor_map(a.out, problem_.out_shape(), s, kWaveRows, a.out_map);
}

Status GpuRunner::encode_tensor_maps(kernels::TmaBackwardArguments& a,
                                     const Specialisation& s) const {
  if (Status status = encode_queries(a, s); !status.ok()) return status;
  if (Status status = encode_keys(a, s); !status.ok()) return status;
  return encode_tensor_map(a.dout, problem_.out_shape(), s, s.block_n, a.dout_map);
}

}  // namespace fulmen::gpu
