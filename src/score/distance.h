// Which values of a function follow from how far a key lies behind a query, q - k.
#pragma once

#include <vector>

#include "score/node.h"

namespace fulmen::score {

// For each node, whether it varies with q - k and with nothing else of q, k and the score: any
// query and key that are as far apart give it the same bits, also one of them below 0. Arguments of
// such a node are of its kind, or vary with neither q nor k, or are ints computed from q, k and
// what varies with neither by additions, subtractions and products with constants.
std::vector<bool> vary_with_distance(const std::vector<Node>& nodes);

}  // namespace fulmen::score
