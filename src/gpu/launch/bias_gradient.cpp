// kernels/backward/bias_gradient.h, bias_gradient_fp32.h: dbias by a launch of its own, beside any
// family.
#include <algorithm>
#include <limits>
#include <optional>

#include "gpu/launch/backward.h"
#include "gpu/launch/fp32.h"
#include "kernels/backward/bias_gradient_layout.h"
#include "kernels/tile/fp32/layout.h"

namespace fulmen::gpu {
namespace {

using Tiles = std::optional<BiasGradientTiles> Target::*;

// The first target with tiles for it, from a family's own on.
const Target* target_with_tiles(const Target* target, Tiles tiles) {
  while (target != nullptr && !(target->*tiles)) target = target->extends;
  return target;
}

// True if every term of a workgroup has the same bias: it is broadcast over what dbias is summed
// over.
bool terms_share_bias(const Problem& p) {
  for (int d = 0; d < 3; ++d) {
    if (p.dbias.strides[d] == 0 && p.bias.strides[d] != 0) return false;
  }
  return true;
}

Specialisation of(const Problem& p, const Target& target, const Chip& chip,
                  const BiasGradientShape& shape) {
  Specialisation s;
  const bool fp32 = p.dtype == DType::fp32;
  s.entry = fp32 ? "backward/bias_gradient_fp32.h" : "backward/bias_gradient.h";
  s.target = &target;
  s.head_dim = static_cast<int>(round_up(p.head_dim, target.mma_k));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, target.mma_k));
  s.block_m = shape.block_m;
  s.block_n = shape.block_n;
  s.workgroup = shape.waves * chip.wave_size;
  s.buffers = shape.buffers;
  s.queries_in_lds = shape.rows_in_lds;
  s.early_loads = !shape.late;
  s.min_waves = shape.min_waves;
  s.min_workgroups = shape.min_workgroups;
  s.outputs = kGivesDbias;
  if (fp32) {
    s.lds_bytes = kernels::BiasGradientFp32Layout::of(target.transposed_depth(), s.head_dim,
                                                      s.head_dim_v, s.block_m, s.block_n, s.buffers)
                      .total;
    specialise_fp32_for(p, s);
  } else {
    s.lds_bytes = kernels::BiasGradientLayout::of(target.row_padding(), s.head_dim, s.head_dim_v,
                                                  s.block_m, s.block_n, s.buffers)
                      .total;
    specialise_for(p, s);
  }
  read_mask_as_bits(p, s);
  s.batch_bias = !terms_share_bias(p);
  return s;
}

}  // namespace

Specialisation bias_gradient_kernel(const Problem& p, const Target& family, const Chip& chip) {
  const Tiles tiles = p.dtype == DType::fp32 ? &Target::bias_gradient_fp32 : &Target::bias_gradient;
  const Target* target = target_with_tiles(&family, tiles);
  if (target == nullptr) return backward_portable_kernel(p, chip);
  for (const BiasGradientShape& shape : (target->*tiles)->shapes) {
    if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim ||
        (has_masks(p) && !shape.beside_mask))
      continue;
    Specialisation s = of(p, *target, chip, shape);
    if (s.lds_bytes * s.min_workgroups <= chip.lds_bytes) return s;
  }
  return backward_portable_kernel(p, chip);
}

int64_t bias_gradient_parts(int64_t tiles, int64_t terms, int64_t most, int64_t slots) {
  // To write a part and to add it up takes about as long as so many terms.
  constexpr int64_t kPartTerms = 8;
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t parts = 1; parts <= std::min(most, terms); ++parts) {
    const int64_t length = tiles_of(terms, parts);
    if (parts > 1 && length == tiles_of(terms, parts - 1)) continue;  // empty parts
    const int64_t cost = tiles_of(tiles * parts, slots) * (length + (parts > 1 ? kPartTerms : 0));
    if (cost < least) {
      least = cost;
      best = parts;
    }
  }
  return best;
}

}  // namespace fulmen::gpu
