// What happens to one row of scores between the two products, for the oracle (double) and standard
// attention (float).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "algorithm/online_softmax.h"
#include "algorithm/philox.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "runtime/float_formats.h"
#include "score/softcap.h"

namespace fulmen::reference {

inline int64_t offset_of(const TensorSpec& spec, int64_t i0, int64_t i1, int64_t i2,
                         int64_t i3 = 0) noexcept {
  return i0 * spec.strides[0] + i1 * spec.strides[1] + i2 * spec.strides[2] + i3 * spec.strides[3];
}

// The keys that query i of head h attends: those in [begin, end) that the keep mask, where there is
// one, keeps.
struct AttendedKeys {
  int64_t begin = 0;
  int64_t end = 0;
  const uint8_t* keep = nullptr;
  int64_t keep_stride = 0;

  AttendedKeys(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h,
               int64_t i) noexcept
      : end(p.seqlen_k) {
    if (p.window_left >= 0)
      begin = std::clamp<int64_t>(i + p.diagonal - p.window_left, 0, p.seqlen_k);
    if (p.window_right >= 0)
      end = std::clamp<int64_t>(i + p.diagonal + p.window_right + 1, begin, p.seqlen_k);
    // An empty one may be null, to which no offset may be added.
    if (p.keep_mask.present && begin < end) {
      keep = static_cast<const uint8_t*>(t.keep_mask.data) + offset_of(p.keep_mask, b, h, i);
      keep_stride = p.keep_mask.strides[3];
    }
  }
  bool contains(int64_t j) const noexcept {
    return j >= begin && j < end && (keep == nullptr || keep[j * keep_stride] != 0);
  }
};

// scores[j] holds scale * q.k for j in [keys.begin, keys.end); adds softcap, bias and ALiBi in the
// contract's order. round is applied after each step: identity, or the rounding of a standard
// attention that keeps its scores in the storage dtype.
template <class Real, class Round>
void add_score_terms(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h, int64_t i,
                     const AttendedKeys& keys, Real* scores, const Round& round) noexcept {
  if (p.softcap > 0) {
    const Real cap = p.softcap;
    for (int64_t j = keys.begin; j < keys.end; ++j)
      scores[j] = round(cap * std::tanh(scores[j] / cap));
  }
  if (p.bias.present) {
    const int64_t base = offset_of(p.bias, b, h, i);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      scores[j] = round(scores[j] +
                        Real(load_float(t.bias.data, p.bias.dtype, base + j * p.bias.strides[3])));
    }
  }
  if (p.alibi_slopes.present) {
    const Real slope =
        static_cast<const float*>(t.alibi_slopes.data)[offset_of(p.alibi_slopes, b, 0, 0, h)];
    for (int64_t j = keys.begin; j < keys.end; ++j)
      scores[j] = round(scores[j] - slope * Real(std::abs(i + p.diagonal - j)));
  }
}

// Roundings, of R in docs/contract.md: those in fp32 that a score meets beside the product's sum
// (scale, log2 e, softcap, bias, ALiBi, the maximum), and a probability beside sums (the
// exponential's two ulps, 1 / z, rescaling, dropout).
inline constexpr double kRoundingsOfAScore = 4;
inline constexpr double kRoundingsOfAProbability = 8;
// What a tanh in fp32 may do to a score, of the option or of a score_mod that is one.
inline constexpr double kSoftcapError = 3e-4;
inline double softcap_error(const Problem& p) noexcept {
  return p.softcap > 0 || score::softcap_of_function(p) > 0 ? kSoftcapError : 0;
}

// What computing a score in fp32 may do to it: norms is |q| |k|, product scale * q.k, score what
// bias and the like made of that.
inline double score_rounding(const Problem& p, double norms, double product, double score,
                             double max) noexcept {
  const double sums = std::sqrt(static_cast<double>(p.head_dim)) *
                      std::fabs(static_cast<double>(p.softmax_scale)) * norms;
  const double others = kRoundingsOfAScore * (std::fabs(product) + std::fabs(score) +
                                              (std::isfinite(max) ? std::fabs(max) : 0));
  return 0x1p-24 * (sums + others);
}

// Which elements of a row of the softmax dropout keeps, and with what factor.
class RowDropout {
 public:
  RowDropout(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h, int64_t i) noexcept
      : random_(algorithm::DropoutHead::of(t.dropout_seed, t.dropout_offset, b * p.num_heads + h)),
        row_(i),
        dropout_(p.dropout),
        scale_(p.dropout_scale()) {}
  bool any() const noexcept { return dropout_ > 0; }
  // 0 for a dropped element, else 1 / (1 - p).
  float factor(int64_t j) const noexcept {
    if (dropout_ == 0) return 1;
    return random_.keeps(row_, j, dropout_) ? scale_ : 0;
  }

 private:
  algorithm::DropoutHead random_;
  int64_t row_;
  int dropout_;
  float scale_;
};

// A bias of fp32's range: kernels then have scores in natural units (kernels/core/config.h), else
// in base 2.
inline bool has_wide_bias(const Problem& p) noexcept {
  return p.bias.present && p.bias.dtype != DType::fp16;
}

// The sink's logit of a head, -inf where there is none. Where kernels take base 2 it has to be one
// of fp32's numbers there, too (docs/contract.md).
inline float sink_of(const Problem& p, const AttentionTensors& t, int64_t h) noexcept {
  if (!p.sinks.present) return -HUGE_VALF;
  const float sink = static_cast<const float*>(t.sinks.data)[offset_of(p.sinks, 0, 0, 0, h)];
  return !has_wide_bias(p) && std::isinf(sink * algorithm::kLog2E) ? std::copysign(HUGE_VALF, sink)
                                                                   : sink;
}
// What the sum of a row's values begins with: 0, or NaN, which a sink of +inf or NaN makes of it,
// with keys or without.
inline float start_of_row(const Problem& p, const AttentionTensors& t, int64_t h) noexcept {
  return sink_of(p, t, h) < HUGE_VALF ? 0.0F : std::nanf("");
}

}  // namespace fulmen::reference
