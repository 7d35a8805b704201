// Products in 8 bits, second pass: keys become codes, and values become transposed codes.
//
//   k8[64, d] = round(k[64, d] * 448 / max |k|)                         workgroups of keys
//   v8[d_v, kFp8PanelKeys] = round(v[kFp8PanelKeys, d_v] * 448 / max |v|)^T   of values
//
// Maxima are of a head. In a row of v8 keys are in the order of key_of_position(), so that the
// accumulators of Q K^T are the operand of P V as they are. Keys that no query attends are 0.
#include "forward/parts/code_rows.h"

namespace fulmen::kernels {

// The largest number of a head: of all its parts.
FULMEN_DEVICE float largest_of_head(const Fp8Workspace& w, const float* parts) {
  float most = 0;
  for (Int64 n = lane_id(); n < w.parts; n += kWaveSize)
    most = larger(most, global_load(parts + n));
  return largest_of_wave(most);
}

FULMEN_DEVICE void write_key_codes(const ForwardArguments& a, const Fp8Workspace& w, Int64 nth) {
  const Int64 blocks = tiles_of(a.seqlen_k, kFp8Queries);
  const Int64 head = nth / blocks, first = nth % blocks * kFp8Queries;
  const algorithm::KeyRange keys = band_of(a).any(0, a.seqlen_q);
  const int there = at_most(a.seqlen_k - first, kFp8Queries);
  const CodedRows rows(
      a.k, a.head_dim, at<Element>(a.k, head / a.num_kv_heads, first, head % a.num_kv_heads),
      [&](int row) { return row < there && first + row >= keys.begin && first + row < keys.end; });
  const float most = largest_of_head(w, fp8_floats(a, w.largest) + head * w.parts);
  rows.store(a.codes + w.k + (head * a.seqlen_k + first) * kHeadDim, there, code_factor(most));
  if (first == 0 && thread_id() == 0)
    global_store(fp8_floats(a, w.k_scales) + head, scale_of_largest(most));
}

// A lane has 4 keys that are neighbours in v8, and two pieces of 8 dims of them. Four lanes read 64
// bytes of a row, eight write 32 of one.
FULMEN_DEVICE void write_value_codes(const ForwardArguments& a, const Fp8Workspace& w, Int64 nth,
                                     Int64 parts) {
  constexpr int kFours = kFp8PanelKeys / 4, kGroups = (kHeadDimV + 63) / 64;
  const Int64 head = nth / w.panels, first = nth % w.panels * kFp8PanelKeys;
  const algorithm::KeyRange keys = band_of(a).any(0, a.seqlen_q);
  const Element* const rows = at<Element>(a.v, head / a.num_kv_heads, 0, head % a.num_kv_heads);
  const float most = largest_of_head(w, fp8_floats(a, w.largest) + parts + head * w.parts),
              factor = code_factor(most);
  unsigned char* const to = a.codes + w.v + nth * static_cast<Int64>(a.head_dim_v) * kFp8PanelKeys;
#pragma unroll 1
  for (int unit = thread_id(); unit < 4 * kFours * kGroups; unit += kWorkgroup) {
    const int four = unit / 4 % kFours, dim = unit / (4 * kFours) * 64 + unit % 4 * 8;
    Piece pieces[2][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const Int64 row = first + key_of_position(4 * four + n);
      const bool there = row >= keys.begin && row < keys.end;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int d = dim + 32 * half;
        pieces[half][n] = piece_of(rows, a.v.row, row, there && d < kHeadDimV, d, a.head_dim_v);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int d = dim + 32 * half + e;
        const auto& p = pieces[half];
        const unsigned word = pack_e4m3(p[0].number(e) * factor, p[1].number(e) * factor,
                                        p[2].number(e) * factor, p[3].number(e) * factor);
        if (d < a.head_dim_v)
          global_store(reinterpret_cast<unsigned*>(to + d * kFp8PanelKeys + 4 * four), word);
      }
    }
  }
  if (first == 0 && thread_id() == 0)
    global_store(fp8_floats(a, w.v_scales) + head, scale_of_largest(most));
}

FULMEN_DEVICE void fp8_key_codes(const ForwardArguments& a) {
  const Fp8Workspace w = fp8_workspace(a);
  const Int64 kv_heads = static_cast<Int64>(a.batch) * a.num_kv_heads,
              keys = kv_heads * tiles_of(a.seqlen_k, kFp8Queries);
  // The last ones first: the L2 still has what the first pass read last.
  const Int64 id = keys + kv_heads * w.panels - 1 - workgroup_id();
  if (id < keys) {
    write_key_codes(a, w, id);
  } else {
    write_value_codes(a, w, id - keys, kv_heads * w.parts);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::fp8_key_codes)
