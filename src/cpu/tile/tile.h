// The tile algorithm of the CPU kernels, over an instruction set's vocabulary (cpu/isa/*.h): no
// intrinsics here.
//
// Queries lie in SIMD lanes: the score tile is S^T = K Q^T, [keys][block_m], so that a row's max
// and sum are lane-wise, K is read by broadcast in its natural layout, and only Q is transposed.
// The second product takes P^T by broadcast and V in its natural layout (16-bit pairs: key rows
// interleaved), so the output needs no transpose. A "word" is 32 bits: one fp32, or a pair of
// 16-bit elements.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.h"
#include "cpu/tile/inline.h"

namespace fulmen::cpu {

constexpr int kBlockM = 64;      // query rows of a tile
constexpr int kMaxBlockN = 128;  // most key rows of a tile

constexpr __attribute__((always_inline)) int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// How a raw product becomes a score.
enum class ScoreKind {
  plain,     // stays raw; the softmax multiplies by scale * log2(e)
  additive,  // natural: scale * raw + the additive tile, whose -inf wins over everything (a masked
             // key may hold NaN)
  softcap,   // natural: softcap * tanh(scale / softcap * raw) + the additive tile
};

struct ScoreScale {
  float scale = 1;
  float log2_scale = 1;  // scale * log2(e)
  float softcap = 0;
  float tanh_scale = 0;  // 2 * log2(e) * scale / softcap
  // Units of the rows' maxima, in all kernels but backward. Natural units have no tile of kind
  // plain.
  algorithm::ScoreUnits units = algorithm::ScoreUnits::base2;
};

// tanh(y) = 1 - 2 / (1 + 2^(2 y log2(e))), from z = 2 y log2(e); clamped where it is 1 in fp32.
template <class Isa>
FULMEN_INLINE typename Isa::Vec tanh_from_log2(typename Isa::Vec z) {
  const auto limited = Isa::min(Isa::set1(60.0F), Isa::max(Isa::set1(-60.0F), z));
  return Isa::sub(
      Isa::set1(1.0F),
      Isa::div(Isa::set1(2.0F), Isa::add(Isa::set1(1.0F), Isa::template exp2<5>(limited))));
}

// A raw product and what is added to it -> the score, of a kind other than plain.
template <class Isa, ScoreKind kKind>
FULMEN_INLINE typename Isa::Vec finished_score(typename Isa::Vec raw, typename Isa::Vec extra,
                                               const ScoreScale& scale) {
  typename Isa::Vec score;
  if constexpr (kKind == ScoreKind::softcap) {
    const auto t = tanh_from_log2<Isa>(Isa::mul(raw, Isa::set1(scale.tanh_scale)));
    score = Isa::fused(t, Isa::set1(scale.softcap), extra);
  } else {
    score = Isa::fused(raw, Isa::set1(scale.scale), extra);
  }
  return Isa::select_minus_infinity(extra, extra, score);
}

// Per-row state of the online softmax, in lanes; max in ScoreScale::units.
struct SoftmaxState {
  float max[kBlockM];
  float sum[kBlockM];
  float rescale[kBlockM];  // factor for the output of earlier tiles
};

// What dropout multiplies the probabilities with, after they went into the row's sum: nothing, or
// factors [keys][kBlockM].
struct NoDropout {
  static constexpr bool kAny = false;
  static constexpr const float* factors = nullptr;
};
struct DropoutFactors {
  static constexpr bool kAny = true;
  const float* factors;
};

}  // namespace fulmen::cpu
