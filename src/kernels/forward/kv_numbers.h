// Quantized keys and values become numbers of q's dtype in the workspace, for products whose
// operands the TMA brings: int8 and fp8 are exact in bf16 and in fp16. Scales stay apart, in fp32:
// a head's goes with the scores and the outputs, tokens' stand beside the numbers. Pages become
// rows one behind the other. A workgroup has kBlockN rows of a head.
#include "core/stored_pairs.h"
#include "tile/kv_numbers.h"

namespace fulmen::kernels {

// Which rows of a sequence's head a workgroup has, and where they go: as which row of all that are
// there, head after head.
struct Rows {
  Int64 batch, first, to;
  int kv_head, count;
};

// A lane's pieces of 8 numbers of these rows: all are asked for before the first one is used.
template <bool kValues>
class LanePieces {
  static constexpr int kPieces = ((kValues ? kHeadDimV : kHeadDim) + 7) / 8,
                       kOfLane = (kBlockN * kPieces + kWorkgroup - 1) / kWorkgroup;

 public:
  FULMEN_DEVICE LanePieces(const ForwardArguments& a, const Rows& rows) {
    const View& view = kValues ? a.v : a.k;
    const KvElement* const head = head_rows(view, rows.batch, rows.kv_head);
#pragma unroll
    for (int n = 0; n < kOfLane; ++n) {
      const Place at = place(n);
      if (at.row >= rows.count) continue;
      const Int64 key = rows.first + at.row;
      const KvElement* row = head + key * view.row;
      if constexpr (kPaged) {
        const PagedRow in_page = PagedRow::of(a, key);
        row = in_page.in<kValues>(a, view, head);
        missing_[n] = !kValues && !in_page.exists(a);
      }
      stored_[n] = global_load(
          reinterpret_cast<const StoredWords<kValues, 8>*>(row + at.dim * kStoredUnits<kValues>));
    }
  }
  // sign: as of HeadFactor.
  FULMEN_DEVICE void store(const ForwardArguments& a, const KvNumbers& w, const Rows& rows,
                           float sign) const {
    const Int64 pitch = kValues ? w.pitch_v : w.pitch;
    auto* const to = reinterpret_cast<Element*>(a.codes + (kValues ? w.v : w.k)) + rows.to * pitch;
    const unsigned flipped = sign < 0 ? 0x80008000U : 0U, nan = sign == sign ? 0U : ~0U;
#pragma unroll
    for (int n = 0; n < kOfLane; ++n) {
      const Place at = place(n);
      if (at.row >= rows.count) continue;
      Words<4> words = piece_of<kValues, Element>(stored_[n]);
      // Keys without a page are NaN.
      const unsigned missing = kPaged && missing_[n] ? ~0U : nan;
#pragma unroll
      for (unsigned& word : words.word) {
        if (sign == 0) word = times_zero(word);
        word = (word ^ flipped) | missing;
      }
      global_store(reinterpret_cast<Words<4>*>(to + at.row * pitch + at.dim), words);
    }
  }

 private:
  struct Place {
    int row, dim;
  };
  // 0 times two numbers: NaN of what is not finite.
  FULMEN_DEVICE static unsigned times_zero(unsigned word) {
    constexpr unsigned kExponent = kIsHalf<Element> ? 0x7C00U : 0x7F80U;
    const bool low = (word & kExponent) == kExponent, high = (word >> 16U & kExponent) == kExponent;
    return (low ? 0x7FFFU : 0U) | (high ? 0x7FFF0000U : 0U);
  }
  FULMEN_DEVICE static Place place(int n) {
    const int piece = n * kWorkgroup + thread_id();
    return {piece / kPieces, piece % kPieces * 8};
  }
  StoredWords<kValues, 8> stored_[kOfLane];
  bool missing_[kPaged ? kOfLane : 1];
};
template <bool kValues>
FULMEN_DEVICE void write_factors(const ForwardArguments& a, const KvNumbers& w, const Rows& rows) {
  const auto head = StoredHead<kValues>::of(a, rows.batch, rows.kv_head);
  float* const to = row_factors<kValues>(a, w, rows.to);
  for (int row = thread_id(); row < rows.count; row += kWorkgroup) {
    const float scale = StoredRow<kValues>::of(a, head, rows.first + row).scale;
    global_store(to + row, factor_of_scale<kValues>(scale));
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
  const LanePieces<false> keys(a, rows);
  const LanePieces<true> values(a, rows);
  keys.store(a, w, rows, HeadFactor::of(a, rows.batch, rows.kv_head).sign);
  values.store(a, w, rows, 1.0F);
  if constexpr (kKeyScaleOfToken) write_factors<false>(a, w, rows);
  if constexpr (kValueScaleOfToken) write_factors<true>(a, w, rows);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::write_kv_numbers)
