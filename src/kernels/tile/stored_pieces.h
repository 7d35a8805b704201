// Pieces of 8 numbers from rows of k or v, as they are stored.
#pragma once

#include "core/stored_pairs.h"
#include "tile/rows.h"

namespace fulmen::kernels {

// Numbers [dim, dim + 8) of a row of `dims`, zeros beyond its end.
template <bool kValues>
FULMEN_DEVICE StoredWords<kValues, 8> load_stored(const KvElement* row, int dim, int dims) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(row);
  if constexpr (kStoredBytes<kValues> == 2) {
    return load_piece(reinterpret_cast<const Element*>(row), dim, dims);
  } else if constexpr (kWholeRows) {
    Words<2> piece{};
    if (kExactDims || dim < dims) piece = load_bytes<true, 8>(bytes + dim);
    return piece;
  } else if constexpr (kWholeDims && kAnyAlignment) {
    const bool there = kExactDims || dim < dims;
    const auto piece = global_load_unaligned<Words<2> >(bytes + (there ? dim : 0));
    return kExactDims ? piece : masked(piece, there ? ~0U : 0U);
  } else {
    return load_bytes<false, 8>(bytes + dim, dims - dim);
  }
}

}  // namespace fulmen::kernels
