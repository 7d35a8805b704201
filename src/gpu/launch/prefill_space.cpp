#include "gpu/launch/prefill_space.h"

#include <string>

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

}  // namespace fulmen::gpu
