// Where each sequence of a call lies, when lengths differ or keys and values are in pages.
// Freestanding: host and device share it.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::algorithm {

// Rows of one sequence. Query i is row q_row + i of q; key j is row k_row + j of the packed k, of
// the sequence's own padded k, or of its pages.
struct Sequence {
  Index q_row = 0;
  Index q_len = 0;
  Index k_row = 0;
  Index k_len = 0;

  // The keys that its queries attend.
  FULMEN_ALGORITHM Band band(bool top_left, Index left, Index right) const {
    return {k_len, top_left ? 0 : k_len - q_len, left, right};
  }
};

// The tensors that say so; null is absent.
struct SequenceTable {
  const int* cu_seqlens_q = nullptr;  // [batch + 1]
  const int* cu_seqlens_k = nullptr;  // [batch + 1]
  const int* seqlens_k = nullptr;     // [batch]
  const int* leftpad_k = nullptr;     // [batch]
  const int* block_table = nullptr;   // [batch][table_stride], max_pages of which are used
  Index table_stride = 0;
  Index page_size = 0;
  Index seqlen_q = 0;  // of every sequence where q is padded
  Index stored_k = 0;  // rows of k of every sequence where they are padded or paged

  struct Read {
    FULMEN_ALGORITHM int operator()(const int* number) const { return *number; }
  };
  // read(pointer): a number of a table, from wherever tables are.
  template <class Reader = Read>
  FULMEN_ALGORITHM Sequence sequence(Index b, const Reader& read = {}) const {
    Sequence s;
    s.q_row = cu_seqlens_q != nullptr ? read(cu_seqlens_q + b) : 0;
    s.q_len = cu_seqlens_q != nullptr ? read(cu_seqlens_q + b + 1) - s.q_row : seqlen_q;
    if (cu_seqlens_k != nullptr) {
      const Index begin = read(cu_seqlens_k + b);
      s.k_row = block_table != nullptr ? 0 : begin;
      s.k_len = read(cu_seqlens_k + b + 1) - begin;
    } else {
      s.k_row = leftpad_k != nullptr ? read(leftpad_k + b) : 0;
      s.k_len = (seqlens_k != nullptr ? read(seqlens_k + b) : stored_k) - s.k_row;
    }
    return s;
  }
  // The page that row `row` of sequence b is in; there it is row % page_size.
  FULMEN_ALGORITHM Index page(Index b, Index row) const {
    return block_table[b * table_stride + row / page_size];
  }
};

}  // namespace fulmen::algorithm
