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
// [batches][heads][tiles of rows, or 1][parts].
class BiasSum {
 public:
  struct Term {
    Int64 batch, head, row;
  };
  Int64 first_term, last_term;

  FULMEN_DEVICE BiasSum(const BackwardArguments& a, int block_m, Int64 id)
      : shape_(BiasShape::of(a, block_m)),
        block_m_(block_m),
        num_heads_(a.num_heads),
        row_tiles_(tiles_of(a.seqlen_q, block_m)) {
    part_ = id % a.bias_parts;
    id /= a.bias_parts;
    const Int64 tiles = shape_.over_queries ? 1 : row_tiles_;
    tile_ = id % tiles;
    head_ = id / tiles % shape_.heads;
    batch_ = id / tiles / shape_.heads;
    const Int64 terms = (a.batch / shape_.batches) * (num_heads_ / shape_.heads) *
                        (shape_.over_queries ? row_tiles_ : 1);
    const Int64 length = (terms + a.bias_parts - 1) / a.bias_parts;
    first_term = part_ * length < terms ? part_ * length : terms;
    last_term = first_term + length < terms ? first_term + length : terms;
  }
  FULMEN_DEVICE Term term(Int64 n) const {
    Term t{batch_, head_, tile_ * block_m_};
    if (shape_.over_queries) {
      t.row = n % row_tiles_ * block_m_;
      n /= row_tiles_;
    }
    if (shape_.heads == 1) {
      t.head = n % num_heads_;
      n /= num_heads_;
    }
    if (shape_.batches == 1) t.batch = n;
    return t;
  }
  // Row `row` of the tile, key j.
  FULMEN_DEVICE void store(const BackwardArguments& a, int row, Int64 j, float value) const {
    const Int64 i = tile_ * block_m_ + row;
    if (!shape_.over_queries && i >= a.seqlen_q) return;
    if (a.bias_partials == nullptr) {
      global_store(const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, batch_, i, head_)) + j,
                   from_float<BiasGradient>(value));
      return;
    }
    const Int64 partial_row =
        ((part_ * shape_.batches + batch_) * shape_.heads + head_) * shape_.rows + i;
    global_store(a.bias_partials + partial_row * a.seqlen_k + j, value);
  }

 private:
  BiasShape shape_;
  int block_m_;
  Int64 num_heads_, row_tiles_, part_ = 0, tile_ = 0, head_ = 0, batch_ = 0;
};

}  // namespace fulmen::kernels
