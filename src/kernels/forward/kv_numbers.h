// Quantized keys and values become numbers of q's dtype in the workspace, for products whose
// operands the TMA brings: int8 and fp8 are exact in bf16 and in fp16. Scales stay apart, in fp32:
// a head's goes with the scores and the outputs, tokens' stand beside the numbers. Pages become
// rows one behind the other. A workgroup has kBlockN rows of a head.
#include "core/stored_number.h"
#include "tile/kv_numbers.h"

namespace fulmen::kernels {

// x; NaN for an infinity: as tile/stored_scales.h.
FULMEN_DEVICE float key_factor(float x) { return x + (x - x); }

// Which rows of a sequence's head a workgroup has, and where they go: as which row of all that are
// there, head after head.
struct Rows {
  Int64 batch, first, to;
  int kv_head, count;
};

template <bool kValues>
FULMEN_DEVICE void write_rows(const ForwardArguments& a, const KvNumbers& w, const Rows& rows,
                              float sign) {
  constexpr int kFormat = kValues ? kValueFormat : kKeyFormat;
  const View& view = kValues ? a.v : a.k;
  const int dims = kValues ? a.head_dim_v : a.head_dim;
  const Int64 pitch = kValues ? w.pitch_v : w.pitch;
  const auto pieces = static_cast<unsigned>(pitch) / 8;
  auto* const to = reinterpret_cast<Element*>(a.codes + (kValues ? w.v : w.k)) + rows.to * pitch;
  const KvElement* const head = head_rows(view, rows.batch, rows.kv_head);
#pragma unroll 2
  for (unsigned n = thread_id(); n < static_cast<unsigned>(rows.count) * pieces; n += kWorkgroup) {
    const auto row = static_cast<int>(n / pieces), dim = static_cast<int>(n % pieces * 8);
    const Int64 key = rows.first + row;
    float number[8];
    float factor = sign;
    if constexpr (kPaged) {
      const PagedRow place = PagedRow::of(a, key);
      load_numbers<kFormat>(place.in<kValues>(a, view, head), dim, dims, number);
      if (!kValues && !place.exists(a)) factor = kNan;
    } else {
      load_numbers<kFormat>(head + key * view.row, dim, dims, number);
    }
    Words<4> words;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      words.word[e] = kValues ? pack<Element>(number[2 * e], number[2 * e + 1])
                              : pack<Element>(number[2 * e] * factor, number[2 * e + 1] * factor);
    }
    global_store(reinterpret_cast<Words<4>*>(to + row * pitch + dim), words);
  }
}
template <bool kValues>
FULMEN_DEVICE void write_factors(const ForwardArguments& a, const KvNumbers& w, const Rows& rows) {
  const auto head = StoredHead<kValues>::of(a, rows.batch, rows.kv_head);
  float* const to = row_factors<kValues>(a, w, rows.to);
  for (int row = thread_id(); row < rows.count; row += kWorkgroup) {
    const float scale = StoredRow<kValues>::of(a, head, rows.first + row).scale;
    global_store(to + row, kValues ? (scale == scale ? scale : kNan) : key_factor(scale));
  }
}

FULMEN_DEVICE void write_kv_numbers(const ForwardArguments& call) {
  const KvNumbers w = kv_numbers(call);
  const auto id = static_cast<unsigned>(workgroup_id()),
             heads = static_cast<unsigned>(call.num_kv_heads),
             blocks = static_cast<unsigned>(tiles_of(call.seqlen_k, kBlockN));
  Rows rows{id / heads / blocks, static_cast<Int64>(id / heads % blocks) * kBlockN, 0,
            static_cast<int>(id % heads), 0};
  const ForwardArguments& a = sequence_of(call, rows.batch);
  if (rows.first >= a.seqlen_k) return;
  rows.count = at_most(a.seqlen_k - rows.first, kBlockN);
  rows.to = w.row(first_row_of(call, rows.batch), rows.kv_head) + rows.first;
  write_rows<false>(a, w, rows, HeadFactor::of(a, rows.batch, rows.kv_head).sign);
  write_rows<true>(a, w, rows, 1.0F);
  if constexpr (kKeyScaleOfToken) write_factors<false>(a, w, rows);
  if constexpr (kValueScaleOfToken) write_factors<true>(a, w, rows);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::write_kv_numbers)
