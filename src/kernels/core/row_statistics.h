// A query row's numbers between the launches of the backward pass: backward/parts/row_statistics.h
// writes them (arguments.h).
#pragma once

#include "core/sequence.h"

namespace fulmen::kernels {

// From here on half an ulp of a log-sum-exp, 6e-5, shows in a gradient: probabilities by it would
// not add up to 1. Such a row's offset is the maximum of its scores, and RowShares has the rest.
// Probabilities in bf16 have 32 times that rounding: half an ulp is 4.9e-4 there.
constexpr float kRoundedLse = sizeof(Element) == 2 && !kIsHalf<Element> ? 16384.0F : 1024.0F;
FULMEN_DEVICE bool is_rounded(float lse) {
  return absolute(lse) > kRoundedLse && absolute(lse) < kInfinity;
}

struct RowStatistics {
  float offset;  // log-sum-exp in the scores' units; +inf where there is no key, or no such row
  float delta;   // sum of dout * out - dlse

  FULMEN_DEVICE static Words<2>* first_of(const BackwardArguments& a, Int64 batch, Int64 head) {
    return reinterpret_cast<Words<2>*>(a.row_statistics) + first_row(a, batch, head);
  }
  FULMEN_DEVICE static Int64 first_row(const BackwardArguments& a, Int64 batch, Int64 head) {
    if constexpr (kVariable) return head * a.rows_q;
    return (batch * a.num_heads + head) * a.seqlen_q;
  }
  FULMEN_DEVICE static RowStatistics of(const BackwardArguments& a, Int64 batch, Int64 head,
                                        Int64 i) {
    if (i >= a.seqlen_q) return {kInfinity, 0};
    return from(global_load(first_of(a, batch, head) + i));
  }
  FULMEN_DEVICE static RowStatistics from(const Words<2>& words) {
    return {bits_float(words.word[0]), bits_float(words.word[1])};
  }
  FULMEN_DEVICE bool has_keys() const { return offset != kInfinity; }
  FULMEN_DEVICE Words<2> words() const { return {{float_bits(offset), float_bits(delta)}}; }
};

// In natural units: what a row's probabilities by its offset are multiplied with, 1 but for rounded
// log-sum-exps.
struct RowShares {
  FULMEN_DEVICE static float* first_of(const BackwardArguments& a, Int64 batch, Int64 head) {
    return a.row_shares + RowStatistics::first_row(a, batch, head);
  }
  // share: of the row that has the offset.
  FULMEN_DEVICE static float load(const float* share, float offset) {
    if constexpr (!kNaturalUnits) return 1.0F;
    float x = 1.0F;
    if (__builtin_expect(absolute(offset) > kRoundedLse, 0)) x = global_load(share);
    return x;
  }
};

// A rounded row's offset and share, from its keys' maximum and the sum of e^(score - maximum).
struct RowBase {
  float offset, share;

  FULMEN_DEVICE static RowBase of(const BackwardArguments& a, Int64 head, float lse, float max,
                                  float sum) {
    // More than roundings may part the two, relative to them. Where sequences are cut and the LSE
    // is that of all parts (ring attention), what these keys give is less: then the LSE is all
    // there is.
    constexpr float kRounding = 1.0F / (1 << 21);
    if (a.sinks != nullptr) {
      const float sink = global_load(a.sinks + head), top = larger(max, sink);
      sum = sum * exp2(kLog2E * (max - top)) + exp2(kLog2E * (sink - top));
      max = top;
    }
    const bool all = max + kLn2 * log2(sum) >= lse - absolute(lse) * kRounding;
    if (all && absolute(max) > kRoundedLse) return {max, reciprocal(sum)};
    return {lse, 1.0F};
  }
};

}  // namespace fulmen::kernels
