// What the two score products of the backward pass leave: probabilities and gradients of scores,
// computed in registers as the products end. Queries lie in lanes: tiles are [keys][kBlockM], as in
// tile.h.
#pragma once

#include <cstdint>

#include "cpu/backward/call.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/step_prefetch.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Words from one step of fetching to the next: where register blocks are small a step within them
// costs more than it gains.
template <class Isa>
constexpr int kBackwardStepWords = Isa::kQkVecs * Isa::kQkKeys < 16 ? kWholeBlock : kFetchWords;

// The exponent of a probability from a product's sum of kind plain, the LSE first: what is left is
// small where the probability is not, and so is its rounding. numbers: LseNumbers at the rows.
template <class Isa>
FULMEN_INLINE typename Isa::Vec plain_exponent(typename Isa::Vec sum, const float* numbers,
                                               const ScoreScale& scale) {
  const auto x = Isa::fused(sum, Isa::set1(scale.log2_scale), Isa::load(numbers));
  if constexpr (Isa::kGroup == 1) return Isa::add(x, Isa::load(numbers + kLog2LseRest * kBlockM));
  return x;
}

// The exponent for kinds other than plain, from the score as the forward pass had it; extra: what
// the additive tile holds there. slope: of the softcap, 1 - tanh^2, and 0 for a masked key, whose K
// may be anything.
template <class Isa, ScoreKind kKind>
FULMEN_INLINE typename Isa::Vec additive_exponent(typename Isa::Vec sum, typename Isa::Vec extra,
                                                  const float* numbers, const ScoreScale& scale,
                                                  [[maybe_unused]] typename Isa::Vec& slope) {
  const auto score = finished_score<Isa, kKind>(sum, extra, scale);
  if constexpr (kKind == ScoreKind::softcap) {
    const auto t = tanh_from_log2<Isa>(Isa::mul(sum, Isa::set1(scale.tanh_scale)));
    slope =
        Isa::select_minus_infinity(extra, Isa::zero(), Isa::sub(Isa::set1(1.0F), Isa::mul(t, t)));
  }
  return Isa::fused(Isa::add(score, Isa::load(numbers + kMinusMax * kBlockM)),
                    Isa::set1(algorithm::kLog2E), Isa::load(numbers + kMinusLog2Sum * kBlockM));
}

// Epilogue of S^T = K Q^T: P^T = 2^(score - lse), [keys][kBlockM]. With a softcap also its slope,
// 1 - tanh^2.
template <class Isa, ScoreKind kKind>
struct Probabilities {
  ScoreScale scale;
  const float* additive;  // [keys][kBlockM], for other kinds than plain
  const float* numbers;   // LseNumbers
  float* out;             // [keys][kBlockM]
  float* slope;           // [keys][kBlockM], for kind softcap
  StepPrefetch<Isa>* ahead;

  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = kBackwardStepWords<Isa>;
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const Probabilities& tile, int at) : tile_(tile), at_(at) {}
    FULMEN_INLINE void step() { tile_.ahead->step(); }
    FULMEN_INLINE void row(const Vec (&sum)[kVecs], int key) {
      const int to = key * kBlockM + at_;
      Vec p[kVecs];
      [[maybe_unused]] Vec slope[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const int lane = v * Isa::kLanes;
        const float* numbers = tile_.numbers + at_ + lane;
        if constexpr (kKind == ScoreKind::plain) {
          p[v] = plain_exponent<Isa>(sum[v], numbers, tile_.scale);
        } else {
          p[v] = additive_exponent<Isa, kKind>(sum[v], Isa::load(tile_.additive + to + lane),
                                               numbers, tile_.scale, slope[v]);
          if constexpr (kKind == ScoreKind::softcap) Isa::store(tile_.slope + to + lane, slope[v]);
        }
      }
      Isa::template exp2<Isa::kExp2Degree>(p);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) Isa::store(tile_.out + to + v * Isa::kLanes, p[v]);
    }
    FULMEN_INLINE void end() {}
    const Probabilities& tile_;
    int at_;
  };
};

// The same product where score_mod follows: the scores themselves, in natural units.
template <class Isa, ScoreKind kKind>
struct ScoresAlone {
  ScoreScale scale;
  const float* additive;  // [keys][kBlockM]
  float* out;             // [keys][kBlockM]
  float* slope;           // [keys][kBlockM], for kind softcap
  StepPrefetch<Isa>* ahead;

  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = kBackwardStepWords<Isa>;
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const ScoresAlone& tile, int at) : tile_(tile), at_(at) {}
    FULMEN_INLINE void step() { tile_.ahead->step(); }
    FULMEN_INLINE void row(const Vec (&sum)[kVecs], int key) {
      const int to = key * kBlockM + at_;
      for (int v = 0; v < kVecs; ++v) {
        const int lane = to + v * Isa::kLanes;
        const Vec extra = Isa::load(tile_.additive + lane);
        Isa::store(tile_.out + lane, finished_score<Isa, kKind>(sum[v], extra, tile_.scale));
        if constexpr (kKind == ScoreKind::softcap) {
          const Vec t = tanh_from_log2<Isa>(Isa::mul(sum[v], Isa::set1(tile_.scale.tanh_scale)));
          Isa::store(tile_.slope + lane, Isa::sub(Isa::set1(1.0F), Isa::mul(t, t)));
        }
      }
    }
    FULMEN_INLINE void end() {}
    const ScoresAlone& tile_;
    int at_;
  };
};

// Epilogue of dP^T = V dO^T: dS^T = P^T (dP^T m - delta), and P^T made ready for the product that
// gives dV.
//
// fp32: dscores is [keys][kBlockM], and dropout multiplies P in place.
// Pairs of bf16 need dS twice, and P once. In each row of p then: P as pairs of queries, then dS as
// pairs of queries, kBlockM / 2 words each; dscores: [keys / 2][kBlockM], pairs of keys.
template <class Isa, bool kSoftcap, bool kDropout>
struct ScoreGradients {
  static_assert(Isa::kGroup == 1 || Isa::kQkVecs * Isa::kLanes == kBlockM,
                "a row of P is packed in place, so in one piece");
  static constexpr int kQueryPairs = kBlockM / 2;  // where dS begins in a row of packed p

  const float* delta;    // [kBlockM]
  const float* slope;    // [keys][kBlockM], of the softcap
  const float* dropout;  // [keys][kBlockM]
  float* p;              // [keys][kBlockM]
  float* dscores;
  float* dbias;  // [keys][kBlockM], or null: the gradients as fp32, before the softcap's slope
  StepPrefetch<Isa>* ahead;

  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = kBackwardStepWords<Isa>;
    using Vec = typename Isa::Vec;
    FULMEN_INLINE Block(const ScoreGradients& tile, int at) : tile_(tile), at_(at) {}
    FULMEN_INLINE void step() { tile_.ahead->step(); }
    FULMEN_INLINE void row(const Vec (&sum)[kVecs], int key) {
      const int to = key * kBlockM + at_;
      Vec p[kVecs], ds[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const int lane = v * Isa::kLanes;
        p[v] = Isa::load(tile_.p + to + lane);
        Vec dp = sum[v];
        Vec weight = p[v];
        if constexpr (kDropout) {
          const Vec factor = Isa::load(tile_.dropout + to + lane);
          dp = Isa::mul(dp, factor);
          weight = Isa::mul(weight, factor);
          if constexpr (Isa::kGroup == 1) Isa::store(tile_.p + to + lane, weight);
        }
        ds[v] = Isa::mul(p[v], Isa::sub(dp, Isa::load(tile_.delta + at_ + lane)));
        p[v] = weight;
        if (tile_.dbias != nullptr) Isa::store(tile_.dbias + to + lane, ds[v]);
        if constexpr (kSoftcap) ds[v] = Isa::mul(ds[v], Isa::load(tile_.slope + to + lane));
      }
      if constexpr (Isa::kGroup == 1) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) Isa::store(tile_.dscores + to + v * Isa::kLanes, ds[v]);
      } else {
        pack(p, ds, key);
      }
    }
    FULMEN_INLINE void pack(const Vec (&p)[kVecs], const Vec (&ds)[kVecs], int key) {
      float* words = tile_.p + key * kBlockM;
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; v += 2) {
        const Vec p1 = v + 1 < kVecs ? p[v + 1 < kVecs ? v + 1 : v] : Isa::zero();
        const Vec ds1 = v + 1 < kVecs ? ds[v + 1 < kVecs ? v + 1 : v] : Isa::zero();
        Isa::store(words + v / 2 * Isa::kLanes, Isa::pack_sequence(p[v], p1));
        Isa::store(words + kQueryPairs + v / 2 * Isa::kLanes, Isa::pack_sequence(ds[v], ds1));
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        if (key % 2 == 0) {
          even_[v] = ds[v];
        } else {
          Isa::store(tile_.dscores + key / 2 * kBlockM + v * Isa::kLanes,
                     Isa::pack_pair(even_[v], ds[v]));
        }
      }
      last_ = key;
    }
    FULMEN_INLINE void end() {
      if constexpr (Isa::kGroup == 2) {
        if (last_ % 2 != 0) return;
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          Isa::store(tile_.dscores + last_ / 2 * kBlockM + v * Isa::kLanes,
                     Isa::pack_pair(even_[v], Isa::zero()));
        }
      }
    }
    const ScoreGradients& tile_;
    int at_;
    int last_ = 0;
    Vec even_[kVecs];
  };
};

// A gradient straight into the caller's tensor, from the one tile that it is the product of.
// kStreams: past the caches; then every row begins and ends at a cache line.
template <class Isa, class T, bool kStreams>
struct FinalGradient {
  static constexpr int kStepWords = kBackwardStepWords<Isa>;
  T* out;
  int64_t stride;
  float factor;
  int rows;  // rows from here on are padding and not written
  int dim;   // columns likewise
  StepPrefetch<Isa>* ahead;

  FULMEN_INLINE void step() const { ahead->step(); }
  FULMEN_INLINE typename Isa::Vec start(int /*row*/, int /*column*/) const { return Isa::zero(); }
  FULMEN_INLINE bool writes(int row) const { return row < rows; }
  FULMEN_INLINE void end(int row, int column, typename Isa::Vec sum, bool whole) const {
    const auto x = Isa::mul(sum, Isa::set1(factor));
    T* to = out + row * stride + column;
    if constexpr (kStreams) {
      Isa::stream_from_float(to, x);
    } else {
      store_row_part<Isa>(to, x, whole ? Isa::kLanes : dim - column);
    }
  }
};

// floats [first, last) rows of a [..][kBlockM] tile become 0.
template <class Isa>
FULMEN_INLINE void clear_tile_rows(float* tile, int first, int last) {
  for (int64_t at = static_cast<int64_t>(first) * kBlockM;
       at < static_cast<int64_t>(last) * kBlockM; at += Isa::kLanes) {
    Isa::store(tile + at, Isa::zero());
  }
}

// sum over dim of a b, fp32.
template <class Isa, class T>
FULMEN_INLINE float row_product(const T* a, const T* b, int64_t dim) {
  auto sum = Isa::zero();
  int64_t at = 0;
  for (; at + Isa::kLanes <= dim; at += Isa::kLanes) {
    sum = Isa::fma(Isa::load_as_float(a + at), Isa::load_as_float(b + at), sum);
  }
  if (at < dim) {
    const int left = static_cast<int>(dim - at);
    sum = Isa::fma(Isa::load_as_float(a + at, left), Isa::load_as_float(b + at, left), sum);
  }
  return Isa::reduce_add(sum);
}

// delta of one row: sum of dout out, less dlse.
template <class Isa, class T>
FULMEN_INLINE float row_delta(const Problem& p, const AttentionTensors& tensors, int64_t batch,
                              int64_t head, int64_t row) {
  const float sum =
      row_product<Isa>(element<const T>(tensors.dout, p.dout, batch, row, head),
                       element<const T>(tensors.out, p.out, batch, row, head), p.head_dim_v);
  return p.dlse.present ? sum - *element<const float>(tensors.dlse, p.dlse, batch, head, row) : sum;
}

}  // namespace fulmen::cpu
