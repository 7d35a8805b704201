// Quantized keys and values become numbers of q's dtype in the workspace, for products whose
// operands the TMA brings: int8 and fp8 are exact in bf16 and in fp16. Scales stay apart, in fp32:
// a head's goes with the scores and the outputs, tokens' stand beside the numbers. Pages become
// rows one behind the other. A workgroup has kBlockN rows of a head.
#include "core/stored_number.h"
#include "tile/kv_numbers.h"

namespace fulmen::kernels {

// x; NaN for an infinity: as tile/stored_scales.h.
FULMEN_DEVICE float key_factor(float x) { return x + (x - x); }

template <bool kValues>
FULMEN_DEVICE void write_rows(const ForwardArguments& a, const KvNumbers& w, Int64 batch,
                              int kv_head, Int64 first, int count, float sign) {
  constexpr int kFormat = kValues ? kValueFormat : kKeyFormat;
  const View& view = kValues ? a.v : a.k;
  const int dims = kValues ? a.head_dim_v : a.head_dim;
  const Int64 pitch = kValues ? w.pitch_v : w.pitch;
  const auto pieces = static_cast<unsigned>(pitch) / 8;
  auto* const to = reinterpret_cast<Element*>(a.codes + (kValues ? w.v : w.k)) +
                   ((batch * a.num_kv_heads + kv_head) * w.rows + first) * pitch;
  const KvElement* const head = head_rows(view, batch, kv_head);
#pragma unroll 2
  for (unsigned n = thread_id(); n < static_cast<unsigned>(count) * pieces; n += kWorkgroup) {
    const auto row = static_cast<int>(n / pieces), dim = static_cast<int>(n % pieces * 8);
    const Int64 key = first + row;
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
FULMEN_DEVICE void write_factors(const ForwardArguments& a, const KvNumbers& w, Int64 batch,
                                 int kv_head, Int64 first, int count) {
  const auto head = StoredHead<kValues>::of(a, batch, kv_head);
  float* const to = row_factors<kValues>(a, w, batch, kv_head, first);
  for (int row = thread_id(); row < count; row += kWorkgroup) {
    const float scale = StoredRow<kValues>::of(a, head, first + row).scale;
    global_store(to + row, kValues ? (scale == scale ? scale : kNan) : key_factor(scale));
  }
}

FULMEN_DEVICE void write_kv_numbers(const ForwardArguments& call) {
  const KvNumbers w = kv_numbers(call);
  const auto id = static_cast<unsigned>(workgroup_id()),
             heads = static_cast<unsigned>(call.num_kv_heads),
             blocks = static_cast<unsigned>(tiles_of(w.rows, kBlockN));
  const int kv_head = static_cast<int>(id % heads);
  const Int64 first = static_cast<Int64>(id / heads % blocks) * kBlockN,
              batch = id / heads / blocks;
  // Rows of packed keys are what they are, whatever the sequence. Of others, those are left out that
  // are behind the sequence's end.
  const bool packed = kVariable && call.sequences.cu_seqlens_k != nullptr;
  const auto write = [&](const ForwardArguments& a, Int64 rows) {
    if (rows <= first) return;
    const int count = at_most(rows - first, kBlockN);
    write_rows<false>(a, w, batch, kv_head, first, count, HeadFactor::of(a, batch, kv_head).sign);
    write_rows<true>(a, w, batch, kv_head, first, count, 1.0F);
    if constexpr (kKeyScaleOfToken) write_factors<false>(a, w, batch, kv_head, first, count);
    if constexpr (kValueScaleOfToken) write_factors<true>(a, w, batch, kv_head, first, count);
  };
  if (packed) {
    write(call, w.rows);
  } else {
    const ForwardArguments& a = sequence_of(call, batch);
    write(a, a.seqlen_k);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::write_kv_numbers)
