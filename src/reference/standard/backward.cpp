// "cpu.standard.backward": the gradients of three-step attention, with the matrices of scores in
// memory, over a BLAS where there is one, else by plain loops. The yardstick of the fused kernels,
// and what runs where none of them can.
#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference/baseline_kernels.h"
#include "reference/oracle/decode_rows.h"
#include "reference/oracle/gradients.h"
#include "reference/oracle/huge_scores.h"
#include "reference/oracle/score_row.h"
#include "reference/row_loops.h"
#include "reference/standard/blas.h"
#include "reference/standard/steps.h"
#include "runtime/fork_safe.h"
#include "runtime/threading.h"

namespace fulmen::reference {
namespace {

// A row-major matrix, or the transpose of one.
struct Matrix {
  const float* data;
  int64_t rows, columns;  // as stored
  bool transposed = false;
};

// c = alpha a b + beta c, with beta 0 or 1. sgemm is null where there is no BLAS.
void multiply(Sgemm sgemm, const Matrix& a, const Matrix& b, float alpha, float beta,
              float* c) noexcept {
  const int64_t m = a.transposed ? a.columns : a.rows, k = a.transposed ? a.rows : a.columns;
  const int64_t n = b.transposed ? b.rows : b.columns;
  if (m == 0 || n == 0) return;
  if (k > 0 && sgemm != nullptr) {
    constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
    sgemm(kRowMajor, a.transposed ? kTranspose : kNoTranspose,
          b.transposed ? kTranspose : kNoTranspose, static_cast<int>(m), static_cast<int>(n),
          static_cast<int>(k), alpha, a.data, static_cast<int>(a.columns), b.data,
          static_cast<int>(b.columns), beta, c, static_cast<int>(n));
    return;
  }
  for (int64_t i = 0; i < m; ++i) {
    float* row = c + i * n;
    if (beta == 0) std::fill(row, row + n, 0.0F);
    for (int64_t x = 0; x < k; ++x) {
      const float factor = alpha * a.data[a.transposed ? x * a.columns + i : i * a.columns + x];
      if (b.transposed) {
        for (int64_t j = 0; j < n; ++j) row[j] += factor * b.data[j * b.columns + x];
      } else {
        add_scaled(row, b.data + x * n, factor, n);
      }
    }
  }
}

// One worker's matrices.
struct Scratch {
  float *q, *dout, *dq;          // [seqlen_q, dim]
  float *k, *v, *dk, *dv;        // [seqlen_k, dim]
  float *scores, *dscores;       // [seqlen_q, seqlen_k]
  float *softcap_slope, *alive;  // [seqlen_q, seqlen_k] with a softcap, [seqlen_k]
  int64_t floats;

  Scratch(const Problem& p, float* start) noexcept {
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      float* here = start == nullptr ? nullptr : start + used;
      used += (count + 15) / 16 * 16;
      return here;
    };
    q = take(p.seqlen_q * p.head_dim);
    dq = take(p.seqlen_q * p.head_dim);
    dout = take(p.seqlen_q * p.head_dim_v);
    k = take(p.seqlen_k * p.head_dim);
    dk = take(p.seqlen_k * p.head_dim);
    v = take(p.seqlen_k * p.head_dim_v);
    dv = take(p.seqlen_k * p.head_dim_v);
    scores = take(p.seqlen_q * p.seqlen_k);
    dscores = take(p.seqlen_q * p.seqlen_k);
    softcap_slope = take(p.softcap > 0 ? p.seqlen_q * p.seqlen_k : 0);
    alive = take(p.seqlen_k);
    floats = used;
  }
};

// [rows, dim] -> a tensor's rows, rounded.
void store(const float* from, int64_t rows, int64_t dim, const Tensor& to, const TensorSpec& spec,
           int64_t b, int64_t h) noexcept {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = offset_of(spec, b, i, h);
    for (int64_t d = 0; d < dim; ++d) store_float(to.data, spec.dtype, at + d, from[i * dim + d]);
  }
}

// Decodes rows of a tensor; those whose mark is 0 become zeros, whatever they hold.
template <class Marked>
void load(const Tensor& from, const TensorSpec& spec, int64_t b, int64_t h, int64_t rows,
          int64_t dim, const Marked& marked, float* to) noexcept {
  for (int64_t i = 0; i < rows; ++i) {
    if (marked(i)) {
      decode_row(from.data, spec.dtype, offset_of(spec, b, i, h), dim, to + i * dim);
    } else {
      std::fill_n(to + i * dim, dim, 0.0F);
    }
  }
}

class StandardBackwardRunner final : public Runner {
 public:
  StandardBackwardRunner(const Problem& problem, const AttentionOptions& options)
      : p_(problem),
        no_dropout_(problem),
        threads_(cpu::thread_settings(options)),
        shapes_(problem),
        config_{.kernel = "cpu.standard.backward"} {
    no_dropout_.dropout = 0;
    if (const Result<Sgemm> found = find_sgemm(); found.ok()) sgemm_ = found.value();
    config_.num_threads = threads_.num_threads;
    scratch_floats_ = Scratch(problem, nullptr).floats;
    sums_batch_ = problem.dbias.present && problem.batch > 1 && problem.dbias.strides[0] == 0;
    sums_heads_ = problem.dbias.present && problem.num_heads > 1 && problem.dbias.strides[1] == 0;
    bias_floats_ = (elements(shapes_.dbias) + 15) / 16 * 16;
    sink_floats_ = problem.dsinks.present ? (problem.batch * problem.num_heads + 15) / 16 * 16 : 0;
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    return static_cast<std::size_t>(scratch_floats_ * threads_.num_threads + bias_floats_ +
                                    sink_floats_) *
           sizeof(float);
  }

  Status run(void* /*stream*/, const AttentionTensors& t, void* workspace) const override {
    auto* scratch = static_cast<float*>(workspace);
    float* bias = scratch + scratch_floats_ * threads_.num_threads;
    float* sinks = bias + bias_floats_;
    if (bias_floats_ > 0) std::fill_n(bias, bias_floats_, 0.0F);
    // A task takes all units that add to the same elements of dbias, in order.
    const int64_t batches = sums_batch_ ? 1 : p_.batch, heads = sums_heads_ ? 1 : p_.num_kv_heads;
    cpu::parallel_tasks(
        threads_, p_.batch == 0 ? 0 : batches * heads, [&](int64_t task, int worker) {
          const Scratch mine(p_, scratch + scratch_floats_ * worker);
          const int64_t first_b = sums_batch_ ? 0 : task / heads,
                        first_h = sums_heads_ ? 0 : task % heads;
          for (int64_t b = first_b; b < (sums_batch_ ? p_.batch : first_b + 1); ++b) {
            for (int64_t h = first_h; h < (sums_heads_ ? p_.num_kv_heads : first_h + 1); ++h)
              unit(t, b, h, mine, bias, sinks);
          }
        });
    if (p_.dbias.present) store_gradient(bias, shapes_.dbias, p_.dbias, t.dbias);
    for (int64_t h = 0; h < p_.num_heads && p_.dsinks.present; ++h) {
      float sum = 0;
      for (int64_t b = 0; b < p_.batch; ++b) sum += sinks[b * p_.num_heads + h];
      static_cast<float*>(t.dsinks.data)[offset_of(p_.dsinks, 0, 0, 0, h)] = sum;
    }
    return {};
  }

 private:
  void unit(const AttentionTensors& t, int64_t b, int64_t kv_head, const Scratch& s, float* bias,
            float* sinks) const noexcept {
    const int64_t first = kv_head * p_.group_size(), last = first + p_.group_size();
    mark_alive(t, b, first, last, s.alive);
    const auto key_is_alive = [&](int64_t j) { return s.alive[j] != 0; };
    load(t.k, p_.k, b, kv_head, p_.seqlen_k, p_.head_dim, key_is_alive, s.k);
    load(t.v, p_.v, b, kv_head, p_.seqlen_k, p_.head_dim_v, key_is_alive, s.v);
    for (int64_t h = first; h < last; ++h) head(t, b, h, h > first ? 1.0F : 0.0F, s, bias, sinks);
    if (p_.seqlen_q == 0) {
      std::fill_n(s.dk, p_.seqlen_k * p_.head_dim, 0.0F);
      std::fill_n(s.dv, p_.seqlen_k * p_.head_dim_v, 0.0F);
    }
    if (p_.dk.present) store(s.dk, p_.seqlen_k, p_.head_dim, t.dk, p_.dk, b, kv_head);
    if (p_.dv.present) store(s.dv, p_.seqlen_k, p_.head_dim_v, t.dv, p_.dv, b, kv_head);
  }

  // One query head; beta: whether dk and dv hold those of the KV head's other heads.
  void head(const AttentionTensors& t, int64_t b, int64_t h, float beta, const Scratch& s,
            float* bias, float* sinks) const noexcept {
    const float* lse = static_cast<const float*>(t.lse.data);
    const auto row_has_keys = [&](int64_t i) {
      return lse[offset_of(p_.lse, b, h, i)] != -HUGE_VALF;
    };
    load(t.q, p_.q, b, h, p_.seqlen_q, p_.head_dim, row_has_keys, s.q);
    load(t.dout, p_.dout, b, h, p_.seqlen_q, p_.head_dim_v, row_has_keys, s.dout);
    const Matrix q{s.q, p_.seqlen_q, p_.head_dim}, dout{s.dout, p_.seqlen_q, p_.head_dim_v};
    const Matrix k{s.k, p_.seqlen_k, p_.head_dim};
    multiply(sgemm_, q, {s.k, p_.seqlen_k, p_.head_dim, true}, p_.softmax_scale, 0, s.scores);
    multiply(sgemm_, dout, {s.v, p_.seqlen_k, p_.head_dim_v, true}, 1, 0, s.dscores);
    float dsink = 0;
    for (int64_t i = 0; i < p_.seqlen_q; ++i) {
      if (row_has_keys(i)) {
        dsink += row(t, b, h, i, s, bias);
      } else {
        std::fill_n(s.scores + i * p_.seqlen_k, p_.seqlen_k, 0.0F);
        std::fill_n(s.dscores + i * p_.seqlen_k, p_.seqlen_k, 0.0F);
      }
    }
    if (p_.dsinks.present) sinks[b * p_.num_heads + h] = dsink;
    if (p_.dv.present)
      multiply(sgemm_, {s.scores, p_.seqlen_q, p_.seqlen_k, true}, dout, 1, beta, s.dv);
    if (p_.dk.present)
      multiply(sgemm_, {s.dscores, p_.seqlen_q, p_.seqlen_k, true}, q, p_.softmax_scale, beta,
               s.dk);
    if (!p_.dq.present) return;
    if (p_.seqlen_k == 0) std::fill_n(s.dq, p_.seqlen_q * p_.head_dim, 0.0F);
    multiply(sgemm_, {s.dscores, p_.seqlen_q, p_.seqlen_k}, k, p_.softmax_scale, 0, s.dq);
    store(s.dq, p_.seqlen_q, p_.head_dim, t.dq, p_.dq, b, h);
  }

  // Step two of one row: scores -> probabilities (times dropout's factors), dscores: dout v -> the
  // gradients by q.k / scale. Returns the row's part of dsink.
  float row(const AttentionTensors& t, int64_t b, int64_t h, int64_t i, const Scratch& s,
            float* bias) const noexcept {
    const int64_t keys = p_.seqlen_k;
    float *p = s.scores + i * keys, *ds = s.dscores + i * keys, *slope = s.softcap_slope + i * keys;
    if (p_.softcap > 0) {
      for (int64_t j = 0; j < keys; ++j) {
        const float tanh = std::tanh(p[j] / p_.softcap);
        slope[j] = 1 - tanh * tanh;
      }
    }
    softmax_step(no_dropout_, t, b, h, i, DType::fp32, p, nullptr);
    const float sink = sink_of(p_, t, h),
                lse = static_cast<const float*>(t.lse.data)[offset_of(p_.lse, b, h, i)];
    // exp(sink - lse), which the rounding of a huge LSE would falsify.
    const float sink_weight = has_wide_bias(p_) && std::fabs(lse) > rounded_lse(p_)
                                  ? std::fmax(0.0F, 1 - std::accumulate(p, p + keys, 0.0F))
                                  : std::exp(sink - lse);
    float delta = p_.dlse.present
                      ? -static_cast<const float*>(t.dlse.data)[offset_of(p_.dlse, b, h, i)]
                      : 0.0F;
    for (int64_t d = 0; d < p_.head_dim_v; ++d) {
      delta += s.dout[i * p_.head_dim_v + d] *
               load_float(t.out.data, p_.out.dtype, offset_of(p_.out, b, i, h) + d);
    }
    const RowDropout dropout(p_, t, b, h, i);
    if (dropout.any()) {
      for (int64_t j = 0; j < keys; ++j) {
        const float factor = dropout.factor(j);
        ds[j] = p[j] * (ds[j] * factor - delta);
        p[j] *= factor;
      }
    } else {
      for (int64_t j = 0; j < keys; ++j) ds[j] = p[j] * (ds[j] - delta);
    }
    if (p_.dbias.present) add_scaled(bias + bias_row(shapes_.dbias, b, h, i), ds, 1, keys);
    for (int64_t j = 0; j < keys && p_.softcap > 0; ++j) ds[j] *= slope[j];
    if (!p_.dsinks.present || sink == -HUGE_VALF) return 0;
    return -sink_weight * delta;
  }

  // alive[j]: 1 where some query of the heads attends key j. What the others hold must not reach a
  // product.
  void mark_alive(const AttentionTensors& t, int64_t b, int64_t first, int64_t last,
                  float* alive) const noexcept {
    const bool masked = p_.keep_mask.present || p_.window_left >= 0 || p_.window_right >= 0;
    std::fill_n(alive, p_.seqlen_k, masked ? 0.0F : 1.0F);
    for (int64_t h = first; h < last && masked; ++h) {
      for (int64_t i = 0; i < p_.seqlen_q; ++i) {
        const AttendedKeys keys(p_, t, b, h, i);
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          if (keys.contains(j)) alive[j] = 1;
        }
      }
    }
  }

  Problem p_;
  Problem no_dropout_;
  cpu::ThreadSettings threads_;
  Sgemm sgemm_ = nullptr;
  GradientShapes shapes_;
  KernelConfig config_;
  bool sums_batch_ = false;
  bool sums_heads_ = false;
  int64_t scratch_floats_ = 0;
  int64_t bias_floats_ = 0;
  int64_t sink_floats_ = 0;
};

class StandardBackward final : public Kernel {
 public:
  std::string_view name() const noexcept override { return "cpu.standard.backward"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  Support supports(const Problem& p, const std::string& /*device*/) const override {
    if (std::max(p.seqlen_q, p.seqlen_k) > INT_MAX)
      return Support::no("its matrices exceed BLAS's 32-bit sizes");
    return {};
  }
  double rank(const Problem& /*problem*/) const override { return 0.75; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<StandardBackwardRunner>(problem, options));
  }
};

}  // namespace

const Kernel& standard_backward_kernel() {
  constinit static MadeOnce<const StandardBackward> made;
  return made.get();
}

}  // namespace fulmen::reference
