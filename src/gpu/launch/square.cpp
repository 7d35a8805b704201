#include "gpu/launch/square.h"

#include "gpu/launch/family.h"
#include "gpu/targets/portable.h"
#include "kernels/tile/square_layout.h"

namespace fulmen::gpu {
namespace {

constexpr int kChunk = 32, kLongChunk = 64;  // dims of the columns that are in LDS

int lds_bytes(const Specialisation& s, bool second_rows, int weights, int numbers) {
  return kernels::SquareLayout::of({s.pair_products != 0, s.queries_in_lds != 0, s.chunk,
                                    s.head_dim, s.head_dim_v, s.block_m, s.block_n, second_rows,
                                    weights, numbers})
      .total;
}

}  // namespace

bool multiplies_pairs(const Problem& p, const Chip& chip) {
  return chip.pair_products && p.dtype == DType::fp16 && !p.quantized_kv();
}

int square_rows(const Problem& p) {
  const int rows = kPortable.portable->block_m;
  return has_wide_heads(p) ? rows / 2 : rows;
}

int square_columns() { return kPortable.portable->block_n; }

void specialise_square(const Problem& p, const Chip& chip, bool second_rows, int weights,
                       Specialisation& s, int numbers) {
  const PortableTiles& tiles = *kPortable.portable;
  s.head_dim = static_cast<int>(round_up(p.head_dim, kChunk));
  s.head_dim_v = static_cast<int>(round_up(p.head_dim_v, kChunk));
  s.block_m = square_rows(p);
  s.block_n = square_columns();
  s.workgroup = tiles.workgroup;
  specialise_for(p, s);
  s.whole_rows = strides_are_whole(p);
  s.whole_dims = s.whole_bias = s.tiles_in_pages = false;  // nothing depends on them
  s.pair_products = multiplies_pairs(p, chip);
  // Rows that stay save a workgroup from fetching them again for each tile of columns; long chunks
  // have fewer barriers.
  const bool whole_chunks = s.head_dim % kLongChunk == 0 && s.head_dim_v % kLongChunk == 0;
  for (const auto& [stays, chunk] :
       {std::pair{true, kLongChunk}, {true, kChunk}, {false, kLongChunk}, {false, kChunk}}) {
    if (chunk == kLongChunk && !whole_chunks) continue;
    s.queries_in_lds = stays;
    s.chunk = chunk;
    s.lds_bytes = lds_bytes(s, second_rows, weights, numbers);
    if (s.lds_bytes <= tiles.most_lds_bytes) return;
  }
}

}  // namespace fulmen::gpu
