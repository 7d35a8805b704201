#include "gpu/launch/prefill_space.h"

#include <algorithm>
#include <string>

#include "gpu/launch/quantized.h"
#include "kernels/forward/prefill_layout.h"

namespace fulmen::gpu {

PrefillShape prefill_shape_of(std::span<const int> v, const Chip& chip) {
  const bool amd = chip.vendor == Vendor::amd;
  return {256, v[0], v[1], v[2], v[3], v[4] != 0, amd ? v[5] : 1, amd ? 1 : v[5]};
}

Support takes_wave_rows(const PrefillShape& shape, int sharing) {
  const int rows = shape.block_m * sharing / shape.waves;
  if (shape.waves % sharing == 0 && (rows == 16 || rows == 32)) return {};
  return Support::no("a wave has 16 or 32 rows, and these are " + std::to_string(shape.block_m) +
                     " rows of " + std::to_string(shape.waves) + " waves");
}

Support takes_copied_rows(const PrefillShape& shape, const Chip& chip) {
  // NVIDIA: 8 lanes copy a row, and all lanes copy.
  const int copied = shape.waves * chip.wave_size / 8;
  if (chip.vendor != Vendor::nvidia ||
      (copied % 8 == 0 && shape.block_n % copied == 0 && shape.block_m % copied == 0))
    return {};
  return Support::no("the workgroup's lanes copy " + std::to_string(copied) +
                     " rows at once, of which tiles have whole numbers");
}

void set_shape(const PrefillShape& shape, const Chip& chip, Specialisation& s) {
  s.block_m = shape.block_m;
  s.block_n = shape.block_n;
  s.workgroup = shape.waves * chip.wave_size;
  s.buffers = shape.buffers;
  s.queries_in_lds = shape.queries_in_lds;
  s.min_waves = shape.min_waves;
  s.min_workgroups = shape.min_workgroups;
}

tuning::Space prefill_space(const Specialisation& usual, const Chip& chip,
                            const std::function<Support(const PrefillShape&)>& takes) {
  const bool amd = chip.vendor == Vendor::amd;
  tuning::Space space;
  space.wave_size = chip.wave_size;
  space.parameters = {{"block_m", usual.block_m, {16, 32, 64, 128, 256}},
                      {"block_n", usual.block_n, {16, 32, 64, 128}},
                      {"waves", usual.workgroup / chip.wave_size, {1, 2, 4, 8}},
                      {"buffers", usual.buffers, {1, 2}},
                      {"queries_in_lds", usual.queries_in_lds, {0, 1}},
                      {amd ? "min_waves" : "min_workgroups",
                       amd ? usual.min_waves : usual.min_workgroups,
                       {1, 2, 3, 4}}};
  tuning::include_usual(space);
  space.takes = [takes, chip, values = space.usual()](std::span<const int> v) -> Support {
    return std::equal(v.begin(), v.end(), values.begin()) ? Support{}
                                                          : takes(prefill_shape_of(v, chip));
  };
  return space;
}

void set_prefill_lds(Specialisation& s, int key_bytes, bool value_codes) {
  s.lds_bytes =
      kernels::PrefillLayout::of({.transposed_depth = s.target->transposed_depth(s.score_tile),
                                  .reads_transposed = s.target->reads_transposed,
                                  .head_dim = s.head_dim,
                                  .head_dim_v = s.head_dim_v,
                                  .block_m = s.block_m,
                                  .block_n = s.block_n,
                                  .buffers = s.buffers,
                                  .queries_in_lds = s.queries_in_lds != 0,
                                  .persistent = s.persistent != 0,
                                  .row_scales = row_scales_of_tiles(s),
                                  .key_bytes = key_bytes,
                                  .value_codes = value_codes,
                                  .score_tile = s.score_tile})
          .total;
}

}  // namespace fulmen::gpu
