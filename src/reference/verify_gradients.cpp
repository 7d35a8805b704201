#include "reference/verify_gradients.h"

#include <cmath>
#include <utility>
#include <vector>

#include "reference/float_formats.h"
#include "reference/gradients.h"
#include "reference/score_row.h"
#include "reference/worst.h"

namespace fulmen::reference {
namespace {

// One gradient: what was computed, and the same in double and by standard attention.
struct Checked {
  const char* name;
  const char* order;
  const Tensor AttentionTensors::* tensor;
  const TensorSpec& spec;
  Shape shape;
  std::vector<double> exact{};
  std::vector<float> standard{};
  RowRange rows{};         // of dim 1: those that are computed
  double least_error = 0;  // that the baseline is taken to have before its result is rounded

  void allocate() {
    exact.resize(static_cast<std::size_t>(elements(shape)));
    standard.resize(exact.size());
  }
  double* exact_data() noexcept { return spec.present ? exact.data() : nullptr; }
  float* standard_data() noexcept { return spec.present ? standard.data() : nullptr; }

  // How far it is over its bound, relative to that: the report of the worst gradient is kept.
  double judge(const AttentionTensors& tensors, double extra, VerifyReport& report) const {
    const Tensor& values = tensors.*tensor;
    Worst worst;
    double standard_error = 0, largest = 0;
    for (int64_t at = 0; at < elements(shape); ++at) {
      const std::array<int64_t, 4> index{at / (shape[1] * shape[2] * shape[3]), at / (shape[2] * shape[3]) % shape[1],
                                         at / shape[3] % shape[2], at % shape[3]};
      if (!rows.contains(index[1])) continue;
      double expected = exact[static_cast<std::size_t>(at)];
      const double nearest = round_to(spec.dtype, static_cast<float>(expected));
      if (std::isinf(nearest)) expected = nearest;  // beyond the dtype's range infinity is right
      const double value = load_float(values.data, spec.dtype, offset_of(spec, index[0], index[1], index[2], index[3]));
      if (std::isfinite(expected)) largest = std::fmax(largest, std::fabs(expected));
      const double error = error_of(value, expected);
      if (error > worst.error) worst = {error, 0, index, value, expected};
      const double other = error_of(round_to(spec.dtype, standard[static_cast<std::size_t>(at)]), expected);
      if (std::isfinite(other)) standard_error = std::fmax(standard_error, other);
    }
    standard_error = std::fmax(standard_error, std::hypot(least_error, usual_rounding(spec.dtype) * largest));
    report.tensor = name;
    report.worst_error = std::fmax(0, worst.error);
    report.baseline_error = standard_error;
    report.bound = 3 * standard_error + kAbsolute * std::fmax(1, largest) + extra;
    report.ok = report.worst_error <= report.bound;
    if (!report.ok) report.message = describe(name, order, worst, report.bound, "3 P + 1e-5 max(1, |ref|)");
    return report.worst_error / report.bound;
  }
};

// dsinks has few elements, and the baseline's rounding errors may cancel in them by luck: its error is taken for at least what the
// rounding of out can do to a row, as the root of the rows' squares.
double rounding_of_sinks(const Problem& p, const std::vector<float>& rows) {
  double worst = 0;
  const Problem::Shape shape = p.lse_shape();
  for (int64_t h = 0; h < p.num_heads; ++h) {
    double squares = 0;
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t i = 0; i < shape[2]; ++i) {
        const auto row = static_cast<double>(rows[static_cast<std::size_t>((b * p.num_heads + h) * shape[2] + i)]);
        squares += row * row;
      }
    }
    if (std::isfinite(squares)) worst = std::fmax(worst, std::sqrt(squares));
  }
  return worst;
}

double largest_finite(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) {
    if (std::isfinite(value)) largest = std::fmax(largest, value);
  }
  return largest;
}

// dk and dbias may be sums over few rows, for which the same holds: the root of the squares of what the rounding does to each.
double rounding_of_sums(const std::vector<float>& squares) { return std::sqrt(largest_finite(squares)); }

}  // namespace

VerifyReport verify_gradients(const Problem& p, const AttentionTensors& tensors, const cpu::ThreadSettings& threads) {
  using T = AttentionTensors;
  const GradientShapes shapes(p);
  Checked all[] = {{"dq", "b, i, h, d", &T::dq, p.dq, shapes.dq},
                   {"dk", "b, j, h, d", &T::dk, p.dk, shapes.dk},
                   {"dv", "b, j, h, d", &T::dv, p.dv, shapes.dv},
                   {"dbias", "b, h, i, j", &T::dbias, p.dbias, shapes.dbias},
                   {"dsinks", "0, 0, 0, h", &T::dsinks, p.dsinks, shapes.dsinks}};
  for (Checked& one : all) one.allocate();
  auto& [dq, dk, dv, dbias, dsinks] = all;
  dq.rows = rows_of_queries(p, tensors);
  dk.rows = dv.rows = rows_of_keys(p, tensors);
  const auto rows = static_cast<std::size_t>(elements(p.lse_shape()));
  std::vector<float> sink_rows(p.dsinks.present ? rows : 0);
  std::vector<float> query_rows(p.dq.present ? rows : 0);  // a problem may have one row
  std::vector<float> bias_squares(static_cast<std::size_t>(elements(shapes.dbias)));
  std::vector<float> key_squares(static_cast<std::size_t>(elements(shapes.dk)));
  compute_gradients<double>(p, tensors, DType::fp32,
                            {dq.exact_data(), dk.exact_data(), dv.exact_data(), dbias.exact_data(), dsinks.exact_data()}, threads);
  compute_gradients<float>(
      p, tensors, p.dtype,
      {dq.standard_data(), dk.standard_data(), dv.standard_data(), dbias.standard_data(), dsinks.standard_data(),
       key_squares.empty() ? nullptr : key_squares.data(), bias_squares.empty() ? nullptr : bias_squares.data(),
       sink_rows.empty() ? nullptr : sink_rows.data(), query_rows.empty() ? nullptr : query_rows.data()},
      threads);
  dq.least_error = largest_finite(query_rows);
  dk.least_error = rounding_of_sums(key_squares);
  dbias.least_error = rounding_of_sums(bias_squares);
  if (!sink_rows.empty()) dsinks.least_error = rounding_of_sinks(p, sink_rows);

  VerifyReport worst;
  std::vector<TensorError> gradients;
  worst.ok = true;
  double worst_excess = -1;
  for (const Checked& one : all) {
    if (!one.spec.present) continue;
    VerifyReport report;
    const double excess = one.judge(tensors, p.softcap > 0 ? kSoftcapExtra : 0, report);
    gradients.push_back({report.tensor, report.worst_error, report.baseline_error, report.bound});
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = report;
    }
  }
  worst.gradients = std::move(gradients);
  return worst;
}

}  // namespace fulmen::reference
