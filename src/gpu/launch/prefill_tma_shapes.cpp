#include "gpu/launch/prefill_tma_shapes.h"

#include <algorithm>
#include <limits>
#include <string>

#include "gpu/launch/prefill_tma_schedule.h"
#include "gpu/launch/tail_wave.h"
#include "gpu/launch/work_tiles.h"

namespace fulmen::gpu {

Support takes_mask(const Problem& p, const PrefillTmaShape& shape) {
  constexpr int kMostOfThree = 64;
  if (!has_masks(p)) return {};
  if (shape.block_n % 32 != 0)
    return Support::no("a keep_mask's tiles are of whole words of 32 keys");
  if (shape.warpgroups > 2 && shape.block_n > kMostOfThree)
    return Support::no("three warpgroups have registers for a keep_mask's bits of 64 keys");
  return {};
}

Support takes_pages(const Problem& p, const PrefillTmaShape& shape) {
  if (Support support = tma_takes_pages(p); !support.yes || !p.paged()) return support;
  if (p.leftpad_k.present) return Support::no("leftpad_k moves a tile's keys across pages");
  if (p.num_pages == 0) return Support::no("the TMA reads tensors that have a row");
  if (p.page_size % shape.block_n == 0 || shape.block_n % p.page_size == 0) return {};
  return Support::no("tiles of " + std::to_string(shape.block_n) + " keys are no whole pages");
}

bool changes_scores(const Problem& p) {
  return p.bias.present || p.alibi_slopes.present || has_score_mod(p) || p.dropout > 0;
}

namespace {

// How many keys a window lets a query attend.
int64_t window_of(const Problem& p) {
  return p.window_left >= 0 && p.window_right >= 0 ? p.window_left + p.window_right + 1
                                                   : std::numeric_limits<int64_t>::max();
}

bool serves(const PrefillTmaRow& r, const Problem& p, int compute_units) {
  const int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const bool more_registers = changes_scores(p) || has_masks(p);
  return dim <= r.max_head_dim && p.head_dim_v <= r.max_head_dim_v &&
         r.band.value_or(has_band(p)) == has_band(p) && p.seqlen_k >= r.min_keys &&
         p.seqlen_k <= r.max_keys && window_of(p) <= r.max_window &&
         (!r.sequences || p.variable_lengths()) &&
         (!r.one_wave ||
          tiles_of_queries(p, r.shape.warpgroups) <= slots_of(r.shape, compute_units)) &&
         !(r.no_spare_registers && more_registers) && takes_mask(p, r.shape).yes &&
         takes_pages(p, r.shape).yes &&
         !(r.skip_if_tail_wave && small_tiles_take_less_time(p, r.shape, compute_units));
}
// The last row serves every problem.
const PrefillTmaRow& first_of(std::span<const PrefillTmaRow> rows, const Problem& p,
                              int compute_units) {
  return *std::find_if(rows.begin(), rows.end() - 1,
                       [&](const PrefillTmaRow& row) { return serves(row, p, compute_units); });
}
// The row of large tiles.
const PrefillTmaRow& usual_row(const PrefillTmaTiles& tiles, const Problem& p, int compute_units) {
  const auto modified =
      std::find_if(tiles.modified.begin(), tiles.modified.end(), [&](const PrefillTmaRow& row) {
        const bool is_for_it = (row.with_bias && p.bias.present) ||
                               (row.with_mask && has_masks(p)) ||
                               (row.with_dropout && p.dropout > 0);
        return is_for_it && !p.variable_lengths() && serves(row, p, compute_units);
      });
  return modified != tiles.modified.end() ? *modified : first_of(tiles.rows, p, compute_units);
}

}  // namespace

const PrefillTmaRow& row_for(const Problem& call, const PrefillTmaTiles& tiles, int compute_units) {
  const Problem p = with_mean_lengths(call);
  const PrefillTmaRow& row = usual_row(tiles, p, compute_units);
  // Sequences of few queries, such as those that generate beside chunks of prompts, would leave a
  // larger tile's rows empty.
  const bool short_rows =
      p.variable_lengths() && p.seqlen_q * shared_heads(p, 2 * kWarpgroupRows) <= kWarpgroupRows;
  const bool few = short_rows || 2 * tiles_of_queries(p, row.shape.warpgroups) <= compute_units;
  return few ? first_of(tiles.few, p, compute_units) : row;
}

bool narrow_heads_take_tma(const Problem& p) {
  constexpr int64_t kFewKeys = 128, kSomeKeys = 256, kFewTiles = 256;
  if (p.variable_lengths() || p.quantized_kv() || p.alibi_slopes.present || has_score_mod(p) ||
      p.dropout > 0)
    return false;
  const bool few = tiles_of_queries(p, 1) <= kFewTiles, masks = has_masks(p);
  if (few && !has_band(p) && p.softcap == 0)
    return (p.bias.present || masks) && p.seqlen_k > kSomeKeys;
  const bool whole = p.head_dim % 16 == 0 && p.head_dim_v % 16 == 0;
  return !few && !masks && !(p.bias.present && p.bias.dtype == DType::fp32) &&
         p.seqlen_k > kFewKeys && (whole || !has_band(p));
}

}  // namespace fulmen::gpu
