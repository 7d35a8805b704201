#include "support/huge_bias.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fulmen::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kLargestBf16 = 0x1.FEp127F;
constexpr float kLargestFp16 = 65504;

// Biases of even and odd keys; one more key, the fourth, may stand out.
struct RowKind {
  float even, odd, fourth;
};
constexpr RowKind all(float x) { return {x, x, x}; }
constexpr std::array kKinds{
    all(0.5F),
    all(-1e4F),
    all(-kLargestFp16),
    RowKind{-kLargestFp16, 1, -kLargestFp16},
    RowKind{-kInfinity, -kLargestFp16, -kLargestFp16},
    all(-1e9F),
    all(-1e10F),
    all(-1e30F),
    all(-0.7F * kLargest),
    all(-kLargestBf16),
    all(-kLargest),
    all(1e38F),
    all(2.5e38F),
    all(kLargest),
    RowKind{-1e9F, -2e9F, -1e9F},          // two values of the same size
    RowKind{-kLargestBf16, -1e30F, 0.5F},  // one ordinary score
    RowKind{-kLargest, -kLargest, -1e38F},
    RowKind{2e38F, -2e38F, 2e38F},  // their difference is beyond fp32
    RowKind{-kInfinity, -kLargestBf16, -kInfinity},
    RowKind{1e30F, 1e9F, -1e30F},
};

bool has(DType dtype, float x) {
  return std::isinf(x) || std::fabs(x) <= (dtype == DType::fp32   ? kLargest
                                           : dtype == DType::bf16 ? kLargestBf16
                                                                  : kLargestFp16);
}

struct SoftmaxRow {
  std::vector<double> probabilities;
  double lse = 0, of_sink = 0;
};

struct Expected {
  const Case& c;
  const CaseSpec& s = c.spec;
  double scale =
      s.scale != 0 ? static_cast<double>(s.scale) : 1 / std::sqrt(static_cast<double>(s.head_dim));

  static double get(const Tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
    const std::array<int64_t, 4> at{t.shape[0] == 1 ? 0 : a, t.shape[1] == 1 ? 0 : b,
                                    t.shape[2] == 1 ? 0 : c, d};
    return Case::get(t, at);
  }
  int64_t kv_head(int64_t h) const { return h / (s.num_heads / s.num_kv_heads); }
  int64_t keys_of(int64_t i) const {
    if (s.causal == Causal::none) return s.seqlen_k;
    const int64_t diagonal = s.causal == Causal::top_left ? 0 : s.seqlen_k - s.seqlen_q;
    return std::clamp<int64_t>(i + diagonal + 1, 0, s.seqlen_k);
  }
  double dot(const Tensor& a, const Tensor& b, int64_t n, int64_t i, int64_t h, int64_t j,
             int64_t dim) const {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += get(a, n, i, h, d) * get(b, n, j, kv_head(h), d);
    return sum;
  }

  SoftmaxRow row(int64_t n, int64_t h, int64_t i) const {
    SoftmaxRow r;
    const double sink = s.sinks ? get(c.tensors.sinks, 0, 0, 0, h) : -HUGE_VAL;
    double max = sink, sum = 0;
    for (int64_t j = 0; j < keys_of(i); ++j) {
      const double exact = scale * dot(c.tensors.q, c.tensors.k, n, i, h, j, s.head_dim) +
                           get(c.tensors.bias, n, h, i, j);
      r.probabilities.push_back(static_cast<float>(exact));
      max = std::fmax(max, r.probabilities.back());
    }
    if (max == -HUGE_VAL) return {std::vector<double>(r.probabilities.size(), 0.0), -HUGE_VAL, 0};
    for (double& p : r.probabilities) sum += p = std::exp(p - max);
    sum += std::exp(sink - max);
    for (double& p : r.probabilities) p /= sum;
    r.of_sink = std::exp(sink - max) / sum;
    r.lse = max + std::log(sum);
    return r;
  }
};

// Sums of a tensor's shape.
struct Sums {
  const Tensor& tensor;
  std::vector<double> values = std::vector<double>(static_cast<std::size_t>(
      tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3]));
  double& at(int64_t a, int64_t b, int64_t c, int64_t d) {
    const auto& n = tensor.shape;
    return values[static_cast<std::size_t>(
        (((n[0] == 1 ? 0 : a) * n[1] + (n[1] == 1 ? 0 : b)) * n[2] + (n[2] == 1 ? 0 : c)) * n[3] +
        d)];
  }
  // `size`: the smallest magnitude that values count as.
  ::testing::AssertionResult match(const char* name, double relative, double size) const {
    for (const double x : values) size = std::fmax(size, std::fabs(x));
    for (std::size_t index = 0; index < values.size(); ++index) {
      const auto& n = tensor.shape;
      const auto flat = static_cast<int64_t>(index);
      const std::array<int64_t, 4> at{flat / (n[1] * n[2] * n[3]), flat / (n[2] * n[3]) % n[1],
                                      flat / n[3] % n[2], flat % n[3]};
      const double value = Case::get(tensor, at), expected = values[index];
      if (!(std::fabs(value - expected) <= relative * size)) {
        return ::testing::AssertionFailure()
               << name << "[" << at[0] << ", " << at[1] << ", " << at[2] << ", " << at[3] << "] is "
               << value << ", expected " << expected << " within " << relative * size;
      }
    }
    return ::testing::AssertionSuccess();
  }
};

// Scores of 65504 are rounded by up to 0.004, which changes a probability by the same factor.
double tolerance(DType dtype) { return dtype == DType::bf16 ? 3e-2 : 8e-3; }

void add_forward(const Expected& e, Sums& out, std::vector<double>& lse) {
  const CaseSpec& s = e.s;
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      for (int64_t i = 0; i < s.seqlen_q; ++i) {
        const SoftmaxRow r = e.row(n, h, i);
        for (std::size_t j = 0; j < r.probabilities.size(); ++j) {
          for (int64_t d = 0; d < s.head_dim_v; ++d)
            out.at(n, i, h, d) +=
                r.probabilities[j] *
                Expected::get(e.c.tensors.v, n, static_cast<int64_t>(j), e.kv_head(h), d);
        }
        lse.push_back(r.lse);
      }
    }
  }
}

// Returns the magnitude of the terms of a head's dsinks. They may cancel, but each row's term is
// rounded by itself.
double add_backward(const Expected& e, Sums& dq, Sums& dk, Sums& dv, Sums& dbias, Sums& dsinks) {
  std::vector<double> squares(static_cast<std::size_t>(e.s.num_heads));
  const CaseSpec& s = e.s;
  const AttentionTensors& t = e.c.tensors;
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      for (int64_t i = 0; i < s.seqlen_q; ++i) {
        const SoftmaxRow r = e.row(n, h, i);
        const auto keys = static_cast<int64_t>(r.probabilities.size());
        std::vector<double> dp;
        double delta = s.dlse ? -Expected::get(t.dlse, n, h, i, 0) : 0;
        for (int64_t j = 0; j < keys; ++j) {
          dp.push_back(e.dot(t.dout, t.v, n, i, h, j, s.head_dim_v));
          delta += r.probabilities[static_cast<std::size_t>(j)] * dp.back();
        }
        if (t.dsinks.data != nullptr) dsinks.at(0, 0, 0, h) -= r.of_sink * delta;
        squares[static_cast<std::size_t>(h)] += std::pow(r.of_sink * delta, 2);
        for (int64_t j = 0; j < keys; ++j) {
          const double p = r.probabilities[static_cast<std::size_t>(j)],
                       ds = p * (dp[static_cast<std::size_t>(j)] - delta);
          const int64_t kv = e.kv_head(h);
          if (t.dbias.data != nullptr) dbias.at(n, h, i, j) += ds;
          for (int64_t d = 0; t.dq.data != nullptr && d < s.head_dim; ++d)
            dq.at(n, i, h, d) += e.scale * ds * Expected::get(t.k, n, j, kv, d);
          for (int64_t d = 0; t.dk.data != nullptr && d < s.head_dim; ++d)
            dk.at(n, j, kv, d) += e.scale * ds * Expected::get(t.q, n, i, h, d);
          for (int64_t d = 0; t.dv.data != nullptr && d < s.head_dim_v; ++d)
            dv.at(n, j, kv, d) += p * Expected::get(t.dout, n, i, h, d);
        }
      }
    }
  }
  return std::sqrt(*std::max_element(squares.begin(), squares.end()));
}

}  // namespace

void fill_huge_bias(const Tensor& bias) {
  std::vector<RowKind> kinds;
  for (const RowKind& kind : kKinds) {
    if (has(bias.dtype, kind.even) && has(bias.dtype, kind.odd) && has(bias.dtype, kind.fourth))
      kinds.push_back(kind);
  }
  std::size_t row = 0;
  for (int64_t n = 0; n < bias.shape[0]; ++n) {
    for (int64_t h = 0; h < bias.shape[1]; ++h) {
      for (int64_t i = 0; i < bias.shape[2]; ++i, ++row) {
        const RowKind& kind = kinds[row % kinds.size()];
        for (int64_t j = 0; j < bias.shape[3]; ++j)
          Case::set(bias, {n, h, i, j}, j == 3 ? kind.fourth : j % 2 == 0 ? kind.even : kind.odd);
      }
    }
  }
}

SoftmaxOfDifferences::SoftmaxOfDifferences(const Case& c) : c_(c) {
  const Expected expected{c};
  const AttentionTensors& t = c.tensors;
  Sums out{t.out}, dq{t.dq}, dk{t.dk}, dv{t.dv}, dbias{t.dbias}, dsinks{t.dsinks};
  if (c.spec.backward) {
    dsinks_size_ = add_backward(expected, dq, dk, dv, dbias, dsinks);
  } else {
    add_forward(expected, out, lse_);
  }
  sums_ = {out.values, dq.values, dk.values, dv.values, dbias.values, dsinks.values};
}

::testing::AssertionResult SoftmaxOfDifferences::matches() const {
  const AttentionTensors& t = c_.tensors;
  for (std::size_t row = 0; c_.spec.lse && row < lse_.size(); ++row) {
    const auto flat = static_cast<int64_t>(row), rows = c_.spec.seqlen_q, heads = c_.spec.num_heads;
    const double lse = Case::get(t.lse, {flat / rows / heads, flat / rows % heads, flat % rows, 0}),
                 right = lse_[row];
    if (lse != right && !(std::fabs(lse - right) <= 1e-5 + 2e-7 * std::fabs(right)))
      return ::testing::AssertionFailure()
             << "lse of row " << row << " is " << lse << ", expected " << right;
  }
  struct Named {
    const char* name;
    const Tensor& tensor;
    DType dtype;
  };
  // A gradient of the bias is rounded to the gradient's dtype.
  const DType dtype = c_.spec.dtype, dbias = t.dbias.dtype == DType::bf16 ? DType::bf16 : dtype;
  const std::array<Named, 6> all{{{"out", t.out, dtype},
                                  {"dq", t.dq, dtype},
                                  {"dk", t.dk, dtype},
                                  {"dv", t.dv, dtype},
                                  {"dbias", t.dbias, dbias},
                                  {"dsinks", t.dsinks, dtype}}};
  for (std::size_t n = c_.spec.backward ? 1 : 0; n < (c_.spec.backward ? all.size() : 1); ++n) {
    const auto& [name, tensor, of] = all[n];
    if (tensor.data == nullptr) continue;
    const double size = std::fmax(1e-2, tensor.data == t.dsinks.data ? dsinks_size_ : 0);
    if (auto result = Sums{tensor, sums_[n]}.match(name, (n == 0 ? 1 : 2) * tolerance(of), size);
        !result)
      return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace fulmen::testing
