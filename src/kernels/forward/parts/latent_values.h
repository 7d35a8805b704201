// forward/decode_latent_waves.h: a wave's dims of the outputs of all rows of the workgroup.
#pragma once

#include "forward/parts/latent_scores.h"

namespace fulmen::kernels {

// Values of a product's keys, of kHeldValues times 16 dims, for all rows. With two waves a SIMD a
// half at a time is held, for registers are full.
constexpr int kHeldValues =
                  kReadsTransposed && kMinWaves > 1 && kWidth % 2 == 0 ? kWidth / 2 : kWidth,
              kValueParts = kWidth / kHeldValues;
// As LDS transposes them.
template <int kCount>
struct TransposedValues {
  ValueOperand operand[kCount];

  FULMEN_DEVICE void load(const LatentTile& tile, int step, int g, int value_part) {
#pragma unroll
    for (int w = 0; w < kCount; ++w)
      operand[w] = tile.transposed(step, kScoreTile * (g * kWidth + value_part * kCount + w));
  }
  FULMEN_DEVICE void multiply(int w, const ProbabilityOperand& p, float (&sums)[kElements]) const {
    multiply_output<Element>(sums, p, operand[w]);
  }
};
// Else transposed in registers. The w-th product has every kWidth-th dim.
struct PairedValues {
  unsigned pair[kWidth][kDirectKeys / 2];

  FULMEN_DEVICE void load(const LatentTile& tile, int step, int g, int /*value_part*/) {
    const DirectValues values = load_direct(tile, KeptKeys<kBlockN>{}, step, g);
#pragma unroll
    for (int w = 0; w < kWidth; ++w) {
#pragma unroll
      for (int m = 0; m < kDirectKeys / 2; ++m)
        pair[w][m] = pair_of_rows<true, Element>(values.key[2 * m], values.key[2 * m + 1], w);
    }
  }
  FULMEN_DEVICE void multiply(int w, const ProbabilityOperand& p, float (&sums)[kElements]) const {
    multiply_direct<Element>(sums, p, pair[w]);
  }
};
static_assert(kDirectElements == kElements, "decode_latent: both have a lane's outputs alike");

class LatentValues {
 public:
  // Before the products of a tile in `buffer`, whose probabilities are in `part`: O *= the factors.
  FULMEN_DEVICE void begin(int buffer, int part) {
    if (__builtin_expect(any_lane(is_to_be_rescaled(part)), 0)) rescale(part);
    load(buffer, 0);
    first_probabilities_ = probabilities_at(part, 0, 0, lane_again(part));
    p_ = probabilities(0);
  }
  // O += P V: turn number `turn` of `turns`.
  FULMEN_DEVICE void multiply(int buffer, int turn, int turns) {
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
      if (n < kProducts * turn / turns || n >= kProducts * (turn + 1) / turns) continue;
      const int value_part = n / kWaves % kValueParts;
      auto& out = out_[n % kWaves].value[n / kWaves / kValueParts % kGroups];
#pragma unroll
      for (int w = 0; w < kHeldValues; ++w)
        values_.multiply(w, p_, out[value_part * kHeldValues + w]);
      if (n + 1 < kProducts) p_ = probabilities(n + 1);
      if ((n + 1) % kWaves == 0 && n + 1 < kProducts) load(buffer, n + 1);
    }
  }
  // Times a factor of each row, that of `part`. As pairs: the compiler would pair outputs of
  // different products, and move all of them.
  FULMEN_DEVICE void rescale(int part) {
    const int lane = lane_again(part);
#pragma unroll
    for (int r = 0; r < kWaves; ++r) {
      const float factor = lds_load<float>(factor_at(part, r, lane));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
#pragma unroll
          for (int e = 0; e < kDirectElements; e += 2) {
            float* const two = out_[r].value[g][w] + e;
            const Pair product = multiply_add(Pair{two[0], two[1]}, factor, 0.0F);
            two[0] = product.x;
            two[1] = product.y;
          }
        }
      }
    }
  }
  // store(row tile, dim, run): neighbouring dims of a lane's row.
  template <class Store>
  FULMEN_DEVICE void for_each_run(const Store& store) {
    const int first = first_dim();
#pragma unroll
    for (int r = 0; r < kWaves; ++r) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        // Until here, for a run may have numbers of different products.
#pragma unroll
        for (int w = 0; w < kWidth; ++w) keep_together(out_[r].value[g][w]);
        if constexpr (kReadsTransposed) {
#pragma unroll
          for (int w = 0; w < kWidth; ++w)
            store(r, first + kScoreTile * (g * kWidth + w) + output_column(0), out_[r].value[g][w]);
        } else {
#pragma unroll
          for (int e = 0; e < kDirectElements; ++e) {
            float run[kWidth];
#pragma unroll
            for (int w = 0; w < kWidth; ++w) run[w] = out_[r].value[g][w][e];
            store(r, first + direct_dim(g, e), run);
          }
        }
        schedule_fence();
      }
    }
  }

 private:
  FULMEN_DEVICE static bool is_to_be_rescaled(int part) {
    constexpr int kOfLane = (kBlockM + kWaveSize - 1) / kWaveSize;
    const int lane = lane_again(part);
    bool is = false;
#pragma unroll
    for (int n = 0; n < kOfLane; ++n) {
      const int row = (n * kWaveSize + lane) % kBlockM;
      is = is || lds_load<float>(kLatentLayout.factors_at + 4 * (part * kBlockM + row)) != 1;
    }
    return is;
  }
  FULMEN_DEVICE static int first_dim() { return wave_id() * kDimsOfWave; }

  // Of kHeldValues instructions: all row tiles by the same values.
  static constexpr int kProducts = kValueSteps * kGroups * kValueParts * kWaves;

  // The values of the n-th product and of those after it.
  FULMEN_DEVICE void load(int buffer, int n) {
    const int of_rows = n / kWaves / kValueParts;
    values_.load(LatentTile::of(buffer, first_dim()), of_rows / kGroups, of_rows % kGroups,
                 n / kWaves % kValueParts);
  }

  FULMEN_DEVICE ProbabilityOperand probabilities(int n) const {
    const int further = probabilities_at(0, n % kWaves, n / kWaves / kValueParts / kGroups, 0) -
                        probabilities_at(0, 0, 0, 0);
    ProbabilityOperand p;
    p.words = lds_load<decltype(p.words)>(first_probabilities_ + further);
    return p;
  }
  DirectOutput out_[kWaves] = {};
  int first_probabilities_ = 0;
  ProbabilityOperand p_ = {};  // of the next product
  Either<kReadsTransposed, TransposedValues<kHeldValues>, PairedValues> values_ = {};
};

}  // namespace fulmen::kernels
