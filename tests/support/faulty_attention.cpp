#include "support/faulty_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "reference/oracle/gradients.h"
#include "reference/oracle/score_row.h"

namespace fulmen::testing {
namespace {

using reference::load_float;
using reference::offset_of;

constexpr std::array kNames{"none",
                            "mask edge one key more",
                            "mask edge one key less",
                            "window left one key less",
                            "diagonal top left",
                            "keep mask left out",
                            "keep mask of the row before",
                            "first key lost",
                            "last key lost",
                            "key counted twice",
                            "scale off by 1 percent",
                            "one lanes sum missing",
                            "stale maximum",
                            "output not rescaled",
                            "sum not rescaled",
                            "wrong kv head",
                            "bias of the row before",
                            "bias of the first head",
                            "bias left out",
                            "last dim of the product dropped",
                            "softcap left out",
                            "sink left out",
                            "sink counted twice",
                            "alibi left out",
                            "value of the key before",
                            "last value dim dropped",
                            "query of the row before",
                            "first batch for all",
                            "lse in base 2",
                            "lse without maximum",
                            "forward faults",
                            "dq without scale",
                            "dk without scale",
                            "dk of one query head missing",
                            "dv of one query head missing",
                            "dk of the last query missing",
                            "dv of the last query missing",
                            "dq of the last key missing",
                            "delta of the row before",
                            "delta left out",
                            "dlse left out",
                            "lse of the row before",
                            "softcaps slope left out",
                            "dropouts scale left out",
                            "dropout of the row before",
                            "dropout not in dv",
                            "dbias of the last query missing",
                            "dsink of the wrong sign"};
static_assert(kNames.size() == static_cast<std::size_t>(Fault::end));

// One query row.
struct Row {
  std::vector<double> scores, slopes, weights, factors;  // weights: exp(score - lse), 0 where masked; factors: dropout's
  double lse = -HUGE_VAL, sink = 0;                      // sink: its probability
};

class Faulty {
 public:
  Faulty(const Problem& problem, const AttentionTensors& tensors, Fault fault) : p_(problem), t_(tensors), fault_(fault) {}

  void forward() const {
    for (int64_t b = 0; b < p_.batch; ++b) {
      for (int64_t h = 0; h < p_.num_heads; ++h) {
        for (int64_t i = 0; i < p_.seqlen_q; ++i) forward_row(b, h, i);
      }
    }
  }
  void backward() const;

 private:
  bool is(Fault fault) const { return fault_ == fault; }
  int64_t before(Fault fault, int64_t i) const { return is(fault) && i > 0 ? i - 1 : i; }
  int64_t kv_head(int64_t h) const { return is(Fault::wrong_kv_head) ? h % p_.num_kv_heads : h / (p_.num_heads / p_.num_kv_heads); }
  double rounded(double x) const { return reference::round_to(p_.dtype, static_cast<float>(x)); }
  double at(const Tensor& tensor, const TensorSpec& spec, int64_t b, int64_t i, int64_t h, int64_t d) const {
    return load_float(tensor.data, spec.dtype, offset_of(spec, is(Fault::first_batch_for_all) ? 0 : b, i, h, d));
  }

  bool attended(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t diagonal = is(Fault::diagonal_top_left) ? 0 : p_.diagonal;
    int64_t left = p_.window_left, right = p_.window_right;
    if (right >= 0) right += is(Fault::mask_edge_one_key_more) ? 1 : is(Fault::mask_edge_one_key_less) ? -1 : 0;
    if (left >= 0 && is(Fault::window_left_one_key_less)) --left;
    if (p_.window_right >= 0 && j > i + diagonal + right) return false;
    if (p_.window_left >= 0 && j < i + diagonal - left) return false;
    if (is(Fault::first_key_lost) && j == 0) return false;
    if (is(Fault::last_key_lost) && j == p_.seqlen_k - 1) return false;
    if (!p_.keep_mask.present || is(Fault::keep_mask_left_out)) return true;
    const int64_t row = before(Fault::keep_mask_of_the_row_before, i);
    return static_cast<const uint8_t*>(t_.keep_mask.data)[offset_of(p_.keep_mask, b, h, row, j)] != 0;
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j, double* slope) const {
    const int64_t row = before(Fault::query_of_the_row_before, i);
    const int64_t dims = p_.head_dim - (is(Fault::last_dim_of_the_product_dropped) ? 1 : 0);
    double x = 0;
    for (int64_t d = 0; d < dims; ++d) x += at(t_.q, p_.q, b, row, h, d) * at(t_.k, p_.k, b, j, kv_head(h), d);
    x *= static_cast<double>(p_.softmax_scale) * (is(Fault::scale_off_by_1_percent) ? 1.01 : 1);
    *slope = 1;
    if (p_.softcap > 0 && !is(Fault::softcap_left_out)) {
      const double tanh = std::tanh(x / p_.softcap);
      x = p_.softcap * tanh;
      if (!is(Fault::softcaps_slope_left_out)) *slope = 1 - tanh * tanh;
    }
    if (p_.bias.present && !is(Fault::bias_left_out)) {
      const int64_t bias_row = before(Fault::bias_of_the_row_before, i), head = is(Fault::bias_of_the_first_head) ? 0 : h;
      x += load_float(t_.bias.data, p_.bias.dtype, offset_of(p_.bias, b, head, bias_row, j));
    }
    if (p_.alibi_slopes.present && !is(Fault::alibi_left_out)) {
      const double alibi = static_cast<const float*>(t_.alibi_slopes.data)[offset_of(p_.alibi_slopes, b, 0, 0, h)];
      x -= alibi * static_cast<double>(std::abs(i + p_.diagonal - j));
    }
    return x;
  }

  // Two halves of the keys, as an online softmax goes through them.
  Row row(int64_t b, int64_t h, int64_t i) const {
    const auto keys = static_cast<std::size_t>(p_.seqlen_k);
    Row r{std::vector<double>(keys, -HUGE_VAL), std::vector<double>(keys, 1), std::vector<double>(keys), std::vector<double>(keys)};
    const reference::RowDropout dropout(p_, t_, b, h, before(Fault::dropout_of_the_row_before, i));
    double first_max = -HUGE_VAL, max = -HUGE_VAL;
    for (std::size_t j = 0; j < keys; ++j) {
      const auto key = static_cast<int64_t>(j);
      r.factors[j] = dropout.factor(key);
      if (is(Fault::dropouts_scale_left_out) && r.factors[j] > 0) r.factors[j] = 1;
      if (!attended(b, h, i, key)) continue;
      r.scores[j] = score(b, h, i, key, &r.slopes[j]);
      max = std::fmax(max, r.scores[j]);
      if (j < keys / 2) first_max = max;
    }
    double sink = is(Fault::sink_left_out) ? -HUGE_VAL : reference::sink_of(p_, t_, h);
    if (is(Fault::sink_counted_twice)) sink += std::log(2.0);
    max = std::fmax(max, sink);
    if (max == -HUGE_VAL) return r;
    const double offset = is(Fault::stale_maximum) && first_max > -HUGE_VAL ? first_max : max;
    double sum = std::exp(sink - max);
    for (std::size_t j = 0; j < keys; ++j) {
      const bool first_half = j < keys / 2 && first_max > -HUGE_VAL;
      r.weights[j] = std::exp(r.scores[j] - (j < keys / 2 ? max : offset));
      const double unscaled = first_half ? std::exp(r.scores[j] - first_max) : r.weights[j];
      if (is(Fault::key_counted_twice) && j == keys / 2) r.weights[j] *= 2;
      if (!(is(Fault::one_lanes_sum_missing) && j % 16 == 5)) sum += is(Fault::sum_not_rescaled) ? unscaled : r.weights[j];
      if (is(Fault::output_not_rescaled)) r.weights[j] = unscaled;
    }
    for (double& weight : r.weights) weight /= sum;
    r.sink = std::exp(sink - max) / sum;
    r.lse = (is(Fault::lse_without_maximum) ? first_max : max) + std::log(sum);
    if (is(Fault::lse_in_base_2)) r.lse *= 1.4426950408889634;
    return r;
  }

  void forward_row(int64_t b, int64_t h, int64_t i) const {
    const Row r = row(b, h, i);
    std::vector<double> out(static_cast<std::size_t>(p_.head_dim_v));
    for (int64_t j = 0; j < p_.seqlen_k; ++j) {
      const auto key = static_cast<std::size_t>(j);
      if (r.weights[key] == 0) continue;
      const double weight = rounded(r.weights[key]) * r.factors[key];
      const int64_t value = before(Fault::value_of_the_key_before, j);
      for (int64_t d = 0; d < p_.head_dim_v; ++d) {
        out[static_cast<std::size_t>(d)] += weight * at(t_.v, p_.v, b, value, kv_head(h), d);
      }
    }
    if (is(Fault::last_value_dim_dropped)) out.back() = 0;
    for (int64_t d = 0; d < p_.head_dim_v; ++d) {
      const int64_t to = offset_of(p_.out, b, i, h, d);
      reference::store_float(t_.out.data, p_.dtype, to, static_cast<float>(out[static_cast<std::size_t>(d)]));
    }
    if (p_.lse.present) static_cast<float*>(t_.lse.data)[offset_of(p_.lse, b, h, i)] = static_cast<float>(r.lse);
  }

  const Problem& p_;
  const AttentionTensors& t_;
  Fault fault_;
};

void Faulty::backward() const {
  const reference::GradientShapes shapes(p_);
  const auto zeros = [](const reference::Shape& shape) {
    return std::vector<double>(static_cast<std::size_t>(reference::elements(shape)));
  };
  std::vector<double> dq = zeros(p_.q_shape()), dk = zeros(p_.k_shape()),
                      dv = zeros({p_.batch, p_.seqlen_k, p_.num_kv_heads, p_.head_dim_v}), dbias = zeros(shapes.dbias),
                      dsinks = zeros(shapes.dsinks);
  for (int64_t b = 0; b < p_.batch; ++b) {
    for (int64_t h = 0; h < p_.num_heads; ++h) {
      const bool left_out = h % p_.group_size() == 1;
      for (int64_t i = 0; i < p_.seqlen_q; ++i) {
        Row r = row(b, h, i);
        if (r.lse == -HUGE_VAL) continue;
        const bool last = i == p_.seqlen_q - 1;
        const int64_t of_lse = before(Fault::lse_of_the_row_before, i), of_delta = before(Fault::delta_of_the_row_before, i);
        const double moved = r.lse - static_cast<const float*>(t_.lse.data)[offset_of(p_.lse, b, h, of_lse)];
        if (is(Fault::lse_of_the_row_before) && std::isfinite(moved)) {
          for (double& weight : r.weights) weight *= std::exp(moved);
        }
        double delta = 0;
        for (int64_t d = 0; d < p_.head_dim_v; ++d) {
          delta += at(t_.dout, p_.dout, b, of_delta, h, d) * at(t_.out, p_.out, b, of_delta, h, d);
        }
        if (is(Fault::delta_left_out)) delta = 0;
        if (p_.dlse.present && !is(Fault::dlse_left_out)) {
          delta -= static_cast<const float*>(t_.dlse.data)[offset_of(p_.dlse, b, h, i)];
        }
        if (p_.dsinks.present) {
          dsinks[static_cast<std::size_t>(h)] += (is(Fault::dsink_of_the_wrong_sign) ? 1 : -1) * r.sink * delta;
        }
        for (int64_t j = 0; j < p_.seqlen_k; ++j) {
          const auto key = static_cast<std::size_t>(j);
          const double weight = r.weights[key];
          if (weight == 0) continue;
          const int64_t kv = kv_head(h), k_row = (b * p_.seqlen_k + j) * p_.num_kv_heads + kv;
          const double kept = rounded(weight) * (is(Fault::dropout_not_in_dv) ? 1 : r.factors[key]);
          double dp = 0;
          for (int64_t d = 0; d < p_.head_dim_v; ++d) {
            const double dout = at(t_.dout, p_.dout, b, i, h, d);
            dp += dout * at(t_.v, p_.v, b, j, kv, d);
            if (is(Fault::dv_of_one_query_head_missing) && left_out) continue;
            if (is(Fault::dv_of_the_last_query_missing) && last) continue;
            dv[static_cast<std::size_t>(k_row * p_.head_dim_v + d)] += kept * dout;
          }
          const double ds = weight * (dp * r.factors[key] - delta);
          if (p_.dbias.present && !(is(Fault::dbias_of_the_last_query_missing) && last)) {
            dbias[static_cast<std::size_t>(reference::bias_row(shapes.dbias, b, h, i) + j)] += ds;
          }
          const double scale = p_.softmax_scale, dx = rounded(ds * r.slopes[key]);
          for (int64_t d = 0; d < p_.head_dim; ++d) {
            const double of_dq = dx * (is(Fault::dq_without_scale) ? 1 : scale),
                         of_dk = dx * (is(Fault::dk_without_scale) ? 1 : scale);
            if (!(is(Fault::dq_of_the_last_key_missing) && j == p_.seqlen_k - 1)) {
              dq[static_cast<std::size_t>(((b * p_.seqlen_q + i) * p_.num_heads + h) * p_.head_dim + d)] +=
                  of_dq * at(t_.k, p_.k, b, j, kv, d);
            }
            if (is(Fault::dk_of_one_query_head_missing) && left_out) continue;
            if (is(Fault::dk_of_the_last_query_missing) && last) continue;
            dk[static_cast<std::size_t>(k_row * p_.head_dim + d)] += of_dk * at(t_.q, p_.q, b, i, h, d);
          }
        }
      }
    }
  }
  if (p_.dq.present) reference::store_gradient(dq.data(), shapes.dq, p_.dq, t_.dq);
  if (p_.dk.present) reference::store_gradient(dk.data(), shapes.dk, p_.dk, t_.dk);
  if (p_.dv.present) reference::store_gradient(dv.data(), shapes.dv, p_.dv, t_.dv);
  if (p_.dbias.present) reference::store_gradient(dbias.data(), shapes.dbias, p_.dbias, t_.dbias);
  if (p_.dsinks.present) reference::store_gradient(dsinks.data(), shapes.dsinks, p_.dsinks, t_.dsinks);
}

}  // namespace

const char* name_of(Fault fault) { return kNames[static_cast<std::size_t>(fault)]; }

void faulty_attention(const Problem& problem, const AttentionTensors& tensors, Fault fault) {
  const Faulty attention(problem, tensors, fault);
  if (problem.pass == Pass::forward) {
    attention.forward();
  } else {
    attention.backward();
  }
}

}  // namespace fulmen::testing
