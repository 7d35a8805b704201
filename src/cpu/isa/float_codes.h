// Codes of int8 as fp32, for sets without an instruction that is faster than the fp32 product: sums
// of up to 1,040 products of codes, 127 x 127 each, are exact in fp32.
#pragma once

#include "cpu/tile/key_codes.h"

namespace fulmen::cpu {

template <class Isa>
struct FloatCodes : Isa {
  using typename Isa::Vec;
  using Numbers = Isa;  // the vocabulary of fp32 rows
  static constexpr float kKeyOffset = 0;

  static Vec number(Vec sum) { return sum; }
  // rounded: kCodeOrigin and the code, kLanes of them, to the words from `to` on.
  static void store_codes(float* to, Vec rounded) { Isa::store(to, code(rounded)); }
  static void store_key_codes(float* to, Vec rounded) { store_codes(to, rounded); }
  static Vec code(Vec rounded) { return Isa::sub(rounded, Isa::set1(kCodeOrigin)); }
};

}  // namespace fulmen::cpu
