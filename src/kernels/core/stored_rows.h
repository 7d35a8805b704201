// Rows of quantized keys and values: where they and their scales lie.
#pragma once

#include "core/scale_types.h"
#include "core/sequence.h"

namespace fulmen::kernels {

FULMEN_DEVICE float load_scale(const View& view, Int64 batch, Int64 kv_head, bool half) {
  if (view.data == nullptr) return 1.0F;
  if (half) return to_float(global_load(at<Half>(view, batch, 0, kv_head)));
  return global_load(at<float>(view, batch, 0, kv_head));
}

// x; NaN for an infinity: sums of q's and k's codes are finite where those of infinite numbers of
// either sign are not.
FULMEN_DEVICE float finite_or_nan(float x) { return x + (x - x); }
// What scores (kValues: probabilities) are multiplied with for a row's scale. Packing probabilities
// adds to a NaN's bits: to those of kNan it may.
template <bool kValues>
FULMEN_DEVICE float factor_of_scale(float scale) {
  return !kValues ? finite_or_nan(scale) : scale == scale ? scale : kNan;
}

// One KV head's rows of k or of v.
template <bool kValues>
struct StoredHead {
  using Scale = Either<kValues, ValueScale, KeyScale>;
  static constexpr bool kOfToken = kValues ? kValueScaleOfToken : kKeyScaleOfToken,
                        kOfChannel = !kValues && kKeyScaleOfChannel;

  const KvElement* rows;  // by head_rows()
  const Scale* scales;    // of row 0, as `rows`, or of channel 0
  float factor;           // of all rows: the head's scale, and q's

  FULMEN_DEVICE static StoredHead of(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
    const View& view = kValues ? a.v_scale : a.k_scale;
    StoredHead head{head_rows(kValues ? a.v : a.k, batch, kv_head), nullptr, 1.0F};
    if constexpr (!kValues)
      head.factor = load_scale(a.q_scale, batch, kv_head, (a.half_scales & 4) != 0);
    if constexpr (kOfToken || kOfChannel) {
      head.scales = at<Scale>(view, kPaged && kOfToken ? 0 : batch, 0, kv_head);
    } else {
      head.factor *= load_scale(view, batch, kv_head, (a.half_scales & (kValues ? 2 : 1)) != 0);
    }
    return head;
  }
};

// A row, and what its numbers are multiplied with.
template <bool kValues>
struct StoredRow {
  const KvElement* data;
  const typename StoredHead<kValues>::Scale* channels;  // where each has its own
  float scale;

  FULMEN_DEVICE static StoredRow of(const ForwardArguments& a, const StoredHead<kValues>& head,
                                    Int64 key) {
    using Head = StoredHead<kValues>;
    const View& view = kValues ? a.v : a.k;
    const View& scales = kValues ? a.v_scale : a.k_scale;
    if constexpr (kPaged) return in_page(a, head, PagedRow::of(a, key));
    StoredRow row{head.rows + key * view.row, Head::kOfChannel ? head.scales : nullptr,
                  head.factor};
    if constexpr (Head::kOfToken)
      row.scale *= to_float(global_load(head.scales + key * scales.row));
    return row;
  }
  FULMEN_DEVICE static StoredRow in_page(const ForwardArguments& a, const StoredHead<kValues>& head,
                                         const PagedRow& place) {
    using Head = StoredHead<kValues>;
    StoredRow row{place.in<kValues>(a, kValues ? a.v : a.k, head.rows),
                  Head::kOfChannel ? head.scales : nullptr, head.factor};
    const bool exists = place.exists(a);
    if constexpr (Head::kOfToken)
      row.scale *= to_float(global_load(head.scales + scale_in_page(a, place)));
    // Keys without a page are NaN.
    if (!kValues && !exists) row.scale = kNan;
    return row;
  }
  // Where the scale of a row in a page is, from row 0 of page 0 on.
  FULMEN_DEVICE static Int64 scale_in_page(const ForwardArguments& a, const PagedRow& place) {
    const View& scales = kValues ? a.v_scale : a.k_scale;
    return (place.exists(a) ? place.page : 0U) * scales.batch + place.row * scales.row;
  }
  // The scale of one dim.
  FULMEN_DEVICE float scale_of(int dim, int dims) const {
    if constexpr (!StoredHead<kValues>::kOfChannel) return scale;
    return dim < dims ? to_float(global_load(channels + dim)) * scale : 0.0F;
  }
};

// A head's rows as kernels pass them on.
template <bool kValues>
using KvHead = Either<kQuantized, StoredHead<kValues>, const KvElement*>;
template <bool kValues>
FULMEN_DEVICE KvHead<kValues> kv_head_of(const ForwardArguments& a, Int64 batch, Int64 kv_head) {
  if constexpr (kQuantized) {
    return StoredHead<kValues>::of(a, batch, kv_head);
  } else {
    return head_rows(kValues ? a.v : a.k, batch, kv_head);
  }
}

}  // namespace fulmen::kernels
