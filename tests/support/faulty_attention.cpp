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
                            "key behind a mask counted",
                            "masked key of score zero",
                            "window left one key more",
                            "keep mask inverted",
                            "keep mask of the first head",
                            "keep mask of the first batch",
                            "keep mask of a tiles first key",
                            "keep mask of the key before",
                            "query of the wrong sign",
                            "key of the wrong sign",
                            "value of the wrong sign",
                            "query of the head before",
                            "rows of the block before",
                            "last row left zero",
                            "bias scaled",
                            "bias in base 2",
                            "bias before the softcap",
                            "bias of the first batch",
                            "bias of the key before",
                            "alibi signed",
                            "alibi of the head before",
                            "alibi from the row alone",
                            "sink of the first head",
                            "lse without the sink",
                            "lse of the row before stored",
                            "second half of the keys lost",
                            "huge bias in base 2",
                            "huge maximum rounded",
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
                            "dsink of the wrong sign",
                            "dk of the first query missing",
                            "dq of the first key missing",
                            "dq of a split missing",
                            "dk of the wrong sign",
                            "dk of the key before",
                            "dq without the slope",
                            "dbias with the scale",
                            "dbias of the first head",
                            "dbias of the first batch",
                            "dbias with the softcaps slope",
                            "dsink without the probability",
                            "delta of the head before",
                            "dlse of the wrong sign",
                            "dlse of the row before",
                            "dropout left out of ds",
                            "huge lse without the sum"};
static_assert(kNames.size() == static_cast<std::size_t>(Fault::end));

constexpr double kLog2E = 1.4426950408889634;

// One query row.
struct Row {
  // weights: exp(score - lse), 0 where masked; factors: dropout's.
  std::vector<double> scores, slopes, weights, factors;
  double lse = -HUGE_VAL, sink = 0;  // sink: its probability
};

class Faulty {
 public:
  Faulty(const Problem& problem, const AttentionTensors& tensors, Fault fault)
      : p_(problem), t_(tensors), fault_(fault) {}

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
  int64_t first(Fault fault, int64_t i) const { return is(fault) ? 0 : i; }
  double turned(Fault fault, double x) const { return is(fault) ? -x : x; }
  // A block of 16 keys is read in place of the next one, as from a wrong entry of a block table.
  int64_t read_key(int64_t j) const {
    return is(Fault::rows_of_the_block_before) && j >= 16 ? j - 16 : j;
  }
  int64_t kv_head(int64_t h) const {
    return is(Fault::wrong_kv_head) ? h % p_.num_kv_heads : h / (p_.num_heads / p_.num_kv_heads);
  }
  double rounded(double x) const { return reference::round_to(p_.dtype, static_cast<float>(x)); }
  double at(const Tensor& tensor, const TensorSpec& spec, int64_t b, int64_t i, int64_t h,
            int64_t d) const {
    return load_float(tensor.data, spec.dtype,
                      offset_of(spec, is(Fault::first_batch_for_all) ? 0 : b, i, h, d));
  }

  bool attended(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t diagonal = is(Fault::diagonal_top_left) ? 0 : p_.diagonal;
    int64_t left = p_.window_left, right = p_.window_right;
    if (right >= 0)
      right += is(Fault::mask_edge_one_key_more) ? 1 : is(Fault::mask_edge_one_key_less) ? -1 : 0;
    if (left >= 0 && is(Fault::window_left_one_key_less)) --left;
    if (left >= 0 && is(Fault::window_left_one_key_more)) ++left;
    if (p_.window_right >= 0 && j > i + diagonal + right) return false;
    if (p_.window_left >= 0 && j < i + diagonal - left) return false;
    if (is(Fault::first_key_lost) && j == 0) return false;
    if (is(Fault::last_key_lost) && j == p_.seqlen_k - 1) return false;
    if (is(Fault::second_half_of_the_keys_lost) && j >= (p_.seqlen_k + 1) / 2) return false;
    if (!p_.keep_mask.present || is(Fault::keep_mask_left_out)) return true;
    const int64_t row = before(Fault::keep_mask_of_the_row_before, i),
                  batch = first(Fault::keep_mask_of_the_first_batch, b);
    const int64_t head = first(Fault::keep_mask_of_the_first_head, h);
    const int64_t key = is(Fault::keep_mask_of_a_tiles_first_key)
                            ? j / 8 * 8
                            : before(Fault::keep_mask_of_the_key_before, j);
    const bool kept = static_cast<const uint8_t*>(
                          t_.keep_mask.data)[offset_of(p_.keep_mask, batch, head, row, key)] != 0;
    return kept != is(Fault::keep_mask_inverted);
  }

  double bias_of(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!p_.bias.present || is(Fault::bias_left_out)) return 0;
    const int64_t batch = first(Fault::bias_of_the_first_batch, b),
                  head = first(Fault::bias_of_the_first_head, h);
    const int64_t row = before(Fault::bias_of_the_row_before, i),
                  key = before(Fault::bias_of_the_key_before, j);
    const double bias =
        load_float(t_.bias.data, p_.bias.dtype, offset_of(p_.bias, batch, head, row, key));
    return bias * (is(Fault::bias_scaled)      ? static_cast<double>(p_.softmax_scale)
                   : is(Fault::bias_in_base_2) ? kLog2E
                                               : 1);
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j, double* slope) const {
    const int64_t row = before(Fault::query_of_the_row_before, i);
    const int64_t dims = p_.head_dim - (is(Fault::last_dim_of_the_product_dropped) ? 1 : 0);
    double x = 0;
    const int64_t head = before(Fault::query_of_the_head_before, h), key = read_key(j);
    for (int64_t d = 0; d < dims; ++d)
      x += at(t_.q, p_.q, b, row, head, d) * at(t_.k, p_.k, b, key, kv_head(h), d);
    x = turned(Fault::query_of_the_wrong_sign, turned(Fault::key_of_the_wrong_sign, x));
    x *= static_cast<double>(p_.softmax_scale) * (is(Fault::scale_off_by_1_percent) ? 1.01 : 1);
    *slope = 1;
    const double bias = bias_of(b, h, i, j);
    if (is(Fault::bias_before_the_softcap)) x += bias;
    if (p_.softcap > 0 && !is(Fault::softcap_left_out)) {
      const double tanh = std::tanh(x / p_.softcap);
      x = p_.softcap * tanh;
      if (!is(Fault::softcaps_slope_left_out)) *slope = 1 - tanh * tanh;
    }
    if (!is(Fault::bias_before_the_softcap)) x += bias;
    if (p_.alibi_slopes.present && !is(Fault::alibi_left_out)) {
      const int64_t head = before(Fault::alibi_of_the_head_before, h);
      const double alibi = static_cast<const float*>(
          t_.alibi_slopes.data)[offset_of(p_.alibi_slopes, b, 0, 0, head)];
      const auto distance =
          static_cast<double>(i + (is(Fault::alibi_from_the_row_alone) ? 0 : p_.diagonal) - j);
      x -= alibi * (is(Fault::alibi_signed) ? distance : std::fabs(distance));
    }
    // A score is an fp32 number: beside a bias of 1e9 it loses the product.
    const auto score = static_cast<float>(x);
    constexpr auto kFactor = static_cast<float>(kLog2E);
    return is(Fault::huge_bias_in_base_2) ? static_cast<double>(score * kFactor) / kLog2E : score;
  }

  // Two halves of the keys, as an online softmax visits them.
  Row row(int64_t b, int64_t h, int64_t i) const {
    const auto keys = static_cast<std::size_t>(p_.seqlen_k);
    Row r{std::vector<double>(keys, -HUGE_VAL), std::vector<double>(keys, 1),
          std::vector<double>(keys), std::vector<double>(keys)};
    const reference::RowDropout dropout(p_, t_, b, h, before(Fault::dropout_of_the_row_before, i));
    double first_max = -HUGE_VAL, max = -HUGE_VAL;
    bool before_attended = false, counted = false;
    for (std::size_t j = 0; j < keys; ++j) {
      const auto key = static_cast<int64_t>(j);
      r.factors[j] = dropout.factor(key);
      if (is(Fault::dropouts_scale_left_out) && r.factors[j] > 0) r.factors[j] = 1;
      const bool is_attended = attended(b, h, i, key);
      // The first key after some that are attended.
      const bool behind = before_attended && !is_attended;
      before_attended = is_attended;
      if (behind && is(Fault::masked_key_of_score_zero) && !counted) {
        counted = true;
        r.scores[j] = 0;
      } else if (is_attended || (behind && is(Fault::key_behind_a_mask_counted))) {
        r.scores[j] = score(b, h, i, key, &r.slopes[j]);
      } else {
        continue;
      }
      max = std::fmax(max, r.scores[j]);
      if (j < keys / 2) first_max = max;
    }
    double sink = is(Fault::sink_left_out)
                      ? -HUGE_VAL
                      : reference::sink_of(p_, t_, first(Fault::sink_of_the_first_head, h));
    if (is(Fault::sink_counted_twice)) sink += std::log(2.0);
    max = std::fmax(max, sink);
    if (max == -HUGE_VAL) return r;
    const double offset = is(Fault::stale_maximum) && first_max > -HUGE_VAL ? first_max : max;
    double sum = std::exp(sink - max);
    for (std::size_t j = 0; j < keys; ++j) {
      const bool first_half = j < keys / 2 && first_max > -HUGE_VAL;
      r.weights[j] = std::exp(r.scores[j] - (j < keys / 2 ? max : offset));
      if (is(Fault::huge_maximum_rounded))
        r.weights[j] = std::exp2(r.scores[j] * kLog2E - static_cast<float>(max * kLog2E));
      const double unscaled = first_half ? std::exp(r.scores[j] - first_max) : r.weights[j];
      if (is(Fault::key_counted_twice) && j == keys / 2) r.weights[j] *= 2;
      if (!(is(Fault::one_lanes_sum_missing) && j % 16 == 5))
        sum += is(Fault::sum_not_rescaled) ? unscaled : r.weights[j];
      if (is(Fault::output_not_rescaled)) r.weights[j] = unscaled;
    }
    for (double& weight : r.weights) weight /= sum;
    r.sink = std::exp(sink - max) / sum;
    if (is(Fault::lse_without_the_sink)) sum -= std::exp(sink - max);
    r.lse = (is(Fault::lse_without_maximum) ? first_max : max) + std::log(sum);
    if (is(Fault::lse_in_base_2)) r.lse *= kLog2E;
    return r;
  }

  void forward_row(int64_t b, int64_t h, int64_t i) const {
    const Row r = row(b, h, i);
    std::vector<double> out(static_cast<std::size_t>(p_.head_dim_v));
    for (int64_t j = 0; j < p_.seqlen_k; ++j) {
      const auto key = static_cast<std::size_t>(j);
      if (r.weights[key] == 0) continue;
      const double weight = rounded(r.weights[key]) * r.factors[key];
      const int64_t value = before(Fault::value_of_the_key_before, read_key(j));
      for (int64_t d = 0; d < p_.head_dim_v; ++d) {
        out[static_cast<std::size_t>(d)] +=
            weight *
            turned(Fault::value_of_the_wrong_sign, at(t_.v, p_.v, b, value, kv_head(h), d));
      }
    }
    if (is(Fault::last_value_dim_dropped)) out.back() = 0;
    if (is(Fault::last_row_left_zero) && i == p_.seqlen_q - 1) out.assign(out.size(), 0);
    for (int64_t d = 0; d < p_.head_dim_v; ++d) {
      const int64_t to = offset_of(p_.out, b, i, h, d);
      reference::store_float(t_.out.data, p_.dtype, to,
                             static_cast<float>(out[static_cast<std::size_t>(d)]));
    }
    const int64_t lse_row =
        is(Fault::lse_of_the_row_before_stored) && i + 1 < p_.seqlen_q ? i + 1 : i;
    if (p_.lse.present)
      static_cast<float*>(t_.lse.data)[offset_of(p_.lse, b, h, lse_row)] =
          static_cast<float>(r.lse);
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
                      dv = zeros({p_.batch, p_.seqlen_k, p_.num_kv_heads, p_.head_dim_v}),
                      dbias = zeros(shapes.dbias), dsinks = zeros(shapes.dsinks);
  for (int64_t b = 0; b < p_.batch; ++b) {
    for (int64_t h = 0; h < p_.num_heads; ++h) {
      const bool left_out = h % p_.group_size() == 1;
      for (int64_t i = 0; i < p_.seqlen_q; ++i) {
        Row r = row(b, h, i);
        if (r.lse == -HUGE_VAL) continue;
        const bool last = i == p_.seqlen_q - 1, first_query = i == 0;
        const int64_t of_lse = before(Fault::lse_of_the_row_before, i),
                      of_delta = before(Fault::delta_of_the_row_before, i);
        const double moved =
            r.lse - static_cast<const float*>(t_.lse.data)[offset_of(p_.lse, b, h, of_lse)];
        if (is(Fault::huge_lse_without_the_sum)) {
          for (std::size_t j = 0; j < r.weights.size(); ++j)
            r.weights[j] = std::exp(r.scores[j] - static_cast<float>(r.lse));
        }
        if (is(Fault::lse_of_the_row_before) && std::isfinite(moved)) {
          for (double& weight : r.weights) weight *= std::exp(moved);
        }
        double delta = 0;
        for (int64_t d = 0; d < p_.head_dim_v; ++d) {
          const int64_t head = before(Fault::delta_of_the_head_before, h);
          delta +=
              at(t_.dout, p_.dout, b, of_delta, head, d) * at(t_.out, p_.out, b, of_delta, head, d);
        }
        if (is(Fault::delta_left_out)) delta = 0;
        if (p_.dlse.present && !is(Fault::dlse_left_out)) {
          const double dlse = static_cast<const float*>(
              t_.dlse.data)[offset_of(p_.dlse, b, h, before(Fault::dlse_of_the_row_before, i))];
          delta -= turned(Fault::dlse_of_the_wrong_sign, dlse);
        }
        if (p_.dsinks.present) {
          dsinks[static_cast<std::size_t>(h)] +=
              (is(Fault::dsink_of_the_wrong_sign) ? 1 : -1) *
              (is(Fault::dsink_without_the_probability) ? 1 : r.sink) * delta;
        }
        for (int64_t j = 0; j < p_.seqlen_k; ++j) {
          const auto key = static_cast<std::size_t>(j);
          const double weight = r.weights[key];
          if (weight == 0) continue;
          const int64_t kv = kv_head(h),
                        k_row = (b * p_.seqlen_k + before(Fault::dk_of_the_key_before, j)) *
                                    p_.num_kv_heads +
                                kv,
                        v_row = (b * p_.seqlen_k + j) * p_.num_kv_heads + kv;
          const double kept = rounded(weight) * (is(Fault::dropout_not_in_dv) ? 1 : r.factors[key]);
          double dp = 0;
          for (int64_t d = 0; d < p_.head_dim_v; ++d) {
            const double dout = at(t_.dout, p_.dout, b, i, h, d);
            dp += dout * at(t_.v, p_.v, b, j, kv, d);
            if (is(Fault::dv_of_one_query_head_missing) && left_out) continue;
            if (is(Fault::dv_of_the_last_query_missing) && last) continue;
            dv[static_cast<std::size_t>(v_row * p_.head_dim_v + d)] += kept * dout;
          }
          const double ds =
              weight * (dp * (is(Fault::dropout_left_out_of_ds) ? 1 : r.factors[key]) - delta);
          if (p_.dbias.present && !(is(Fault::dbias_of_the_last_query_missing) && last)) {
            const int64_t batch = first(Fault::dbias_of_the_first_batch, b),
                          head = first(Fault::dbias_of_the_first_head, h);
            dbias[static_cast<std::size_t>(reference::bias_row(shapes.dbias, batch, head, i) +
                                           j)] +=
                ds * (is(Fault::dbias_with_the_scale) ? static_cast<double>(p_.softmax_scale) : 1) *
                (is(Fault::dbias_with_the_softcaps_slope) ? r.slopes[key] : 1);
          }
          const double scale = p_.softmax_scale, dx = rounded(ds * r.slopes[key]);
          const double dx_of_q = is(Fault::dq_without_the_slope) ? rounded(ds) : dx;
          const bool left_out_of_dq =
              (is(Fault::dq_of_the_last_key_missing) && j == p_.seqlen_k - 1) ||
              (is(Fault::dq_of_the_first_key_missing) && j == 0) ||
              (is(Fault::dq_of_a_split_missing) && j >= (p_.seqlen_k + 1) / 2);
          const bool left_out_of_dk = (is(Fault::dk_of_one_query_head_missing) && left_out) ||
                                      (is(Fault::dk_of_the_last_query_missing) && last) ||
                                      (is(Fault::dk_of_the_first_query_missing) && first_query);
          for (int64_t d = 0; d < p_.head_dim; ++d) {
            if (!left_out_of_dq) {
              dq[static_cast<std::size_t>(((b * p_.seqlen_q + i) * p_.num_heads + h) * p_.head_dim +
                                          d)] +=
                  dx_of_q * (is(Fault::dq_without_scale) ? 1 : scale) * at(t_.k, p_.k, b, j, kv, d);
            }
            if (left_out_of_dk) continue;
            dk[static_cast<std::size_t>(k_row * p_.head_dim + d)] +=
                turned(Fault::dk_of_the_wrong_sign, dx) *
                (is(Fault::dk_without_scale) ? 1 : scale) * at(t_.q, p_.q, b, i, h, d);
          }
        }
      }
    }
  }
  if (p_.dq.present) reference::store_gradient(dq.data(), shapes.dq, p_.dq, t_.dq);
  if (p_.dk.present) reference::store_gradient(dk.data(), shapes.dk, p_.dk, t_.dk);
  if (p_.dv.present) reference::store_gradient(dv.data(), shapes.dv, p_.dv, t_.dv);
  if (p_.dbias.present) reference::store_gradient(dbias.data(), shapes.dbias, p_.dbias, t_.dbias);
  if (p_.dsinks.present)
    reference::store_gradient(dsinks.data(), shapes.dsinks, p_.dsinks, t_.dsinks);
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
