// Which tile shape of prefill_tma.h a problem takes.
#pragma once

#include "gpu/launch/family.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {

// A keep-mask's bits of a tile are whole words of 32 keys, which two warpgroups have registers for.
Support takes_mask(const Problem& problem, const PrefillTmaShape& shape);
// Returns true for a bias, ALiBi, a score_mod or dropout, which take time and registers between the
// products. Masks and a softcap are not meant.
bool changes_scores(const Problem& problem);
// A box of the TMA lies in a page, and a tile is whole boxes.
Support takes_pages(const Problem& problem, const PrefillTmaShape& shape);
// The first row of the target's table that serves the problem. Where a device has room for twice as
// many tiles as there are, they have a warpgroup each.
const PrefillTmaRow& row_for(const Problem& problem, const PrefillTmaTiles& tiles,
                             int compute_units);

// Heads of up to 32 dims. Many tiles are 1.1 to 1.45 times as fast as by mma on an H200; rows of
// dims that are no multiple of 16 take small tiles too long, which bands have; an fp32 bias gains
// nothing. Few tiles, which run at once, gain 1.03 to 1.2 where a bias or a mask takes time between
// products.
bool narrow_heads_take_tma(const Problem& problem);

}  // namespace fulmen::gpu
