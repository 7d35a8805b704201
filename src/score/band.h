// Bands in a mask function: what its conjuncts say of the distance k - q alone, without evaluating
// a pair.
#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/score_functions.h"
#include "score/node.h"

namespace fulmen::score {

// Distances k - q, both ends included; none where least > most.
struct Distances {
  int64_t least = 0, most = -1;
  bool operator==(const Distances&) const = default;
};
// Those of all pairs of a sequence.
Distances all_distances(int64_t seqlen_q, int64_t seqlen_k) noexcept;
Distances both(const Distances& x, const Distances& y) noexcept;

// One of the conditions whose conjunction a function is: a node, or what it is not.
struct Conjunct {
  int32_t node = -1;
  bool negated = false;
  // Whether it is true exactly where k - q lies in `distances`; else it is any condition.
  bool is_band = false;
  Distances distances;
};

// mask: of one result, a bool. The lengths, at most 2^31 - 1, are those of the longest sequence:
// what would wrap in 32 bits for one of its pairs is no band.
std::vector<Conjunct> conjuncts_of(const Graph& mask, int64_t seqlen_q, int64_t seqlen_k);

// Returns true if it is a band that all pairs in `taken` are in.
bool holds_in(const Conjunct& conjunct, const Distances& taken) noexcept;
// The mask without those conjuncts that hold in `taken`; without nodes where none is left.
Graph without_bands(const Graph& mask, const std::vector<Conjunct>& conjuncts,
                    const Distances& taken);
// The same functions, but of mask_mod only what `mask` says, which may be nothing. Without any
// where nothing is left for a kernel to do.
ScoreFunctions with_mask(const ScoreFunctions& functions, Graph mask);

}  // namespace fulmen::score
