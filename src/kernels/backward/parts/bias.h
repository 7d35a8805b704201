// The bias's gradient: which scores' gradients each of its elements is the sum of, and where parts
// of the sum go.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

using BiasGradient = ElementOf<(kConfig.bias_gradient < 0 ? 0 : kConfig.bias_gradient)>::Type;

// Dims of dbias, and how many scores each of its elements sums over.
struct BiasShape {
  Int64 batches, heads;
  bool over_queries;
  Int64 rows;  // that parts hold: those of dbias, or of a tile where it is summed over queries

  FULMEN_DEVICE static BiasShape of(const BackwardArguments& a, int block_m) {
    const bool over_queries = a.dbias.row == 0;
    return {a.dbias.batch == 0 ? 1 : a.batch, a.dbias.head == 0 ? 1 : a.num_heads, over_queries,
            over_queries ? block_m : a.seqlen_q};
  }
};

// The terms of one part of one tile row of dbias: ids count
// [batches][heads][tiles of rows, or 1][parts]. They are numbers of workgroups, of which there are
// fewer than 2^31, and so are terms: divisions of 64 bits would take as long as a term.
class BiasSum {
 public:
  struct Term {
    Int64 batch, head, row;
  };
  unsigned first_term, last_term;

  // Tiles of dbias by [batch][head][tile of rows].
  FULMEN_DEVICE static unsigned row_tiles(const BackwardArguments& a, int block_m) {
    const BiasShape shape = BiasShape::of(a, block_m);
    return static_cast<unsigned>(shape.batches * shape.heads *
                                 (shape.over_queries ? 1 : tiles_of(a.seqlen_q, block_m)));
  }
  FULMEN_DEVICE BiasSum(const BackwardArguments& a, int block_m, Int64 workgroup)
      : shape_(BiasShape::of(a, block_m)),
        block_m_(block_m),
        num_heads_(static_cast<unsigned>(a.num_heads)),
        row_tiles_(static_cast<unsigned>(tiles_of(a.seqlen_q, block_m))) {
    const auto parts = static_cast<unsigned>(a.bias_parts);
    const auto heads = static_cast<unsigned>(shape_.heads);
    const unsigned tiles = shape_.over_queries ? 1 : row_tiles_;
    auto id = static_cast<unsigned>(workgroup);
    part_ = id % parts;
    id /= parts;
    tile_ = id % tiles;
    head_ = id / tiles % heads;
    batch_ = id / tiles / heads;
    const unsigned terms = (shape_.batches == 1 ? static_cast<unsigned>(a.batch) : 1) *
                           (shape_.heads == 1 ? num_heads_ : 1) *
                           (shape_.over_queries ? row_tiles_ : 1);
    const unsigned length = (terms + parts - 1) / parts;
    first_term = part_ * length < terms ? part_ * length : terms;
    last_term = first_term + length < terms ? first_term + length : terms;
  }
  FULMEN_DEVICE Term term(Int64 nth) const {
    Term t{batch_, head_, first_row()};
    auto n = static_cast<unsigned>(nth);
    if (shape_.over_queries) {
      t.row = static_cast<Int64>(n % row_tiles_) * block_m_;
      n /= row_tiles_;
    }
    if (shape_.heads == 1) {
      t.head = n % num_heads_;
      n /= num_heads_;
    }
    if (shape_.batches == 1) t.batch = n;
    return t;
  }
  // The term after t, in the same order, without a division.
  FULMEN_DEVICE static Term next(const BackwardArguments& a, int block_m, Term t) {
    if (a.dbias.row == 0) {
      t.row += block_m;
      if (t.row < a.seqlen_q) return t;
      t.row = 0;
    }
    if (a.dbias.head == 0) {
      if (++t.head < a.num_heads) return t;
      t.head = 0;
    }
    ++t.batch;
    return t;
  }
  // Row `row` of the tile, key j.
  FULMEN_DEVICE void store(const BackwardArguments& a, int row, Int64 j, float value) const {
    if (!has_row(a, row)) return;
    if (a.bias_partials == nullptr) {
      global_store(row_of_dbias(a, row) + j, from_float<BiasGradient>(value));
    } else {
      global_store(row_of_part(a, row) + j, value);
    }
  }
  FULMEN_DEVICE bool has_row(const BackwardArguments& a, int row) const {
    return shape_.over_queries || first_row() + row < a.seqlen_q;
  }
  // At key 0: in dbias, where the sum has one part; in the part.
  FULMEN_DEVICE BiasGradient* row_of_dbias(const BackwardArguments& a, int row) const {
    return const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, batch_, first_row() + row, head_));
  }
  FULMEN_DEVICE float* row_of_part(const BackwardArguments& a, int row) const {
    const Int64 row_of_parts =
        ((part_ * shape_.batches + batch_) * shape_.heads + head_) * shape_.rows + first_row() +
        row;
    return a.bias_partials + row_of_parts * a.seqlen_k;
  }

 private:
  FULMEN_DEVICE Int64 first_row() const { return static_cast<Int64>(tile_) * block_m_; }

  BiasShape shape_;
  int block_m_;
  unsigned num_heads_, row_tiles_, part_ = 0, tile_ = 0, head_ = 0, batch_ = 0;
};

}  // namespace fulmen::kernels
