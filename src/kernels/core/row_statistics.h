// A query row's numbers between the launches of the backward pass: backward/parts/row_statistics.h writes them (arguments.h).
#pragma once

#include "core/sequence.h"

namespace fulmen::kernels {

struct RowStatistics {
  float offset;  // base-2 log-sum-exp; +inf where there is no key, or no such row
  float delta;   // sum of dout * out - dlse

  FULMEN_DEVICE static Words<2>* first_of(const BackwardArguments& a, Int64 batch, Int64 head) {
    if constexpr (kVariable) return reinterpret_cast<Words<2>*>(a.row_statistics) + head * a.rows_q;
    return reinterpret_cast<Words<2>*>(a.row_statistics) + (batch * a.num_heads + head) * a.seqlen_q;
  }
  FULMEN_DEVICE static RowStatistics of(const BackwardArguments& a, Int64 batch, Int64 head, Int64 i) {
    if (i >= a.seqlen_q) return {kInfinity, 0};
    return from(global_load(first_of(a, batch, head) + i));
  }
  FULMEN_DEVICE static RowStatistics from(const Words<2>& words) { return {bits_float(words.word[0]), bits_float(words.word[1])}; }
  FULMEN_DEVICE bool has_keys() const { return offset != kInfinity; }
  FULMEN_DEVICE Words<2> words() const { return {{float_bits(offset), float_bits(delta)}}; }
};

}  // namespace fulmen::kernels
