// Scales of the rows of a tile of quantized keys or values, in flight to LDS: a lane has those of
// some rows.
#pragma once

#include "tile/sources.h"
#include "tile/stage_layout.h"

namespace fulmen::kernels {

// One KV head's scale of k, and q's. With scales of tokens: q's alone.
FULMEN_DEVICE float key_factor(const StageSource& source) {
  if constexpr (!kQuantized) return 1.0F;
  const ForwardArguments& a = source.arguments;
  const float factor = StoredHead<false>::of(a, source.batch, source.head / a.group_size).factor;
  return bits_float(uniform(float_bits(factor)));
}

template <bool kValues>
class StagedScales {
  using Scale = typename StoredHead<kValues>::Scale;
  static constexpr bool kOfToken = StoredHead<kValues>::kOfToken;
  static constexpr int kRounds =
      kStagesScales<kValues> ? (kBlockN + kWorkgroup - 1) / kWorkgroup : 0;

 public:
  FULMEN_DEVICE explicit StagedScales(const StageSource& source) {
    if constexpr (kRounds == 0) return;
    if constexpr (!kValues) factor_ = key_factor(source);
    const ForwardArguments& a = source.arguments;
    if constexpr (kOfToken)
      scales_ = at<Scale>(kValues ? a.v_scale : a.k_scale, kPaged ? 0 : source.batch, 0,
                          source.head / a.group_size);
  }
  // Rows past the end repeat the last one.
  FULMEN_DEVICE void fetch(const ForwardArguments& a, const StageSource& source, Int64 first_key) {
    if constexpr (kRounds == 0) return;
    const View& view = kValues ? a.v_scale : a.k_scale;
    const TilePlace tile = TilePlace::of(a, first_key);
    const int last = at_most(source.key_end - first_key, kBlockN) - 1;
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      int row = thread_id() + n * kWorkgroup;
      row = row < last ? row : last;
      if constexpr (kPaged) {
        const PagedRow place = kTilesInPages ? PagedRow{uniform(tile.place.page),
                                                        tile.place.row + static_cast<unsigned>(row)}
                                             : PagedRow::of(a, first_key + row);
        exists_[n] = place.exists(a);
        if constexpr (kOfToken)
          scale_[n] = global_load(scales_ + StoredRow<kValues>::scale_in_page(a, place));
      } else {
        scale_[n] = global_load(scales_ + first_key * view.row + row * view.row);
      }
    }
  }
  FULMEN_DEVICE void publish(int buffer) const {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int row = thread_id() + n * kWorkgroup;
      if (kBlockN % kWorkgroup != 0 && row >= kBlockN) break;
      float scale = 1.0F;
      if constexpr (kOfToken) scale = to_float(scale_[n]);
      // Keys without a page are NaN.
      if constexpr (!kValues) scale = !kPaged || exists_[n] ? scale * factor_ : kNan;
      lds_store(scales_at<kValues>(buffer) + 4 * row, factor_of_scale<kValues>(scale));
    }
  }

 private:
  const Scale* scales_ = nullptr;  // of row 0: the sequence's, or page 0's
  float factor_ = 1.0F;
  Scale scale_[kRounds > 0 ? kRounds : 1];
  bool exists_[kRounds > 0 ? kRounds : 1];
};

}  // namespace fulmen::kernels
