#include "reference/verify/gradients.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "reference/oracle/gradients.h"
#include "reference/oracle/row_functions.h"
#include "reference/oracle/score_row.h"
#include "reference/verify/worst.h"
#include "runtime/float_formats.h"

namespace fulmen::reference {
namespace {

// R adds up squares of single roundings: three times their root is more than any nine of them, and
// of many, which are spread evenly, five standard deviations.
constexpr double kSquares = 3;

constexpr std::size_t kOwn = 5;  // gradients of every problem; functions' tensors follow

// One gradient: what was computed, and the same in double and by standard attention.
struct Checked {
  std::string name;
  const char* order;
  const Tensor& tensor;
  TensorSpec spec;
  Shape shape;
  Expected::Gradient expected{};
  RowRange rows{};  // of dim 1: those that are computed

  void allocate() {
    expected.exact.resize(static_cast<std::size_t>(elements(shape)));
    expected.standard.resize(expected.exact.size());
    expected.squares.resize(expected.exact.size());
  }
  double* exact_data() noexcept { return spec.present ? expected.exact.data() : nullptr; }
  double* squares_data() noexcept { return spec.present ? expected.squares.data() : nullptr; }
  float* standard_data() noexcept { return spec.present ? expected.standard.data() : nullptr; }

  // How far it is over its bound, relative to that: the report of the worst gradient is kept.
  double judge(double slack, VerifyReport& report) const {
    Worst worst, over;  // the largest error, and the largest of those over R + slack
    double standard_error = 0, sum = 0;
    for (int64_t at = 0; at < elements(shape); ++at) {
      const std::array<int64_t, 4> index{at / (shape[1] * shape[2] * shape[3]),
                                         at / (shape[2] * shape[3]) % shape[1],
                                         at / shape[3] % shape[2], at % shape[3]};
      if (!rows.contains(index[1])) continue;
      double exact = expected.exact[static_cast<std::size_t>(at)];
      const double nearest = round_to(spec.dtype, static_cast<float>(exact));
      if (std::isinf(nearest)) exact = nearest;  // beyond the dtype's range infinity is right
      const double value = load_float(tensor.data, spec.dtype,
                                      offset_of(spec, index[0], index[1], index[2], index[3]));
      const double before =
          kSquares * finite_or_zero(std::sqrt(expected.squares[static_cast<std::size_t>(at)]));
      const double rounding = before + half_ulp(spec.dtype, std::fabs(exact) + before);
      const double error = error_of(value, exact);
      const Worst one{error, slack, rounding, index, value, exact};
      if (error > worst.error) worst = one;
      sum += error;
      ++report.elements;
      if (error > rounding + slack && error > over.error) over = one;
      const double other =
          error_of(round_to(spec.dtype, expected.standard[static_cast<std::size_t>(at)]), exact);
      if (std::isfinite(other)) standard_error = std::fmax(standard_error, other);
    }
    const bool wrong = over.error > 3 * standard_error + slack;
    if (wrong) worst = over;
    report.tensor = name;
    report.worst_error = std::fmax(0, worst.error);
    report.mean_error = mean_of(sum, report.elements);
    report.baseline_error = standard_error;
    report.bound = std::fmax(3 * standard_error, worst.rounding) + slack;
    report.ok = !wrong;
    if (wrong) {
      report.message = describe(name.c_str(), order, worst, report.bound,
                                fmt::format("max(3 P, R) + {:.3g}, P {:.3g}, R {:.3g}", slack,
                                            standard_error, worst.rounding));
    }
    return report.worst_error / report.bound;
  }
};

// The gradient of a function's tensor, whose last dims are those that there are.
Checked of_function(const ScoreFunctions::Tensor& tensor, const Tensor& gradient) {
  Shape shape{1, 1, 1, 1};
  TensorSpec spec{tensor.gradient_dtype, tensor.has_gradient, {}};
  for (int d = 0; d < tensor.dims; ++d) {
    const auto from = static_cast<std::size_t>(d);
    const std::size_t to = from + 4 - static_cast<std::size_t>(tensor.dims);
    shape[to] = tensor.shape[from];
    spec.strides[to] = tensor.gradient_strides[from];
  }
  if (!tensor.has_gradient) shape = {};
  return {"gradient of " + tensor.name, "its last dims", gradient, spec, shape};
}

// Computes what the results are compared with.
void expect(const Problem& p, const AttentionTensors& tensors, const cpu::ThreadSettings& threads,
            std::vector<Checked>& all) {
  std::vector<double*> exact_functions, squares_functions;
  std::vector<float*> standard_functions;
  for (Checked& one : all) one.allocate();
  for (std::size_t i = kOwn; i < all.size(); ++i) {
    exact_functions.push_back(all[i].exact_data());
    squares_functions.push_back(all[i].squares_data());
    standard_functions.push_back(all[i].standard_data());
  }
  const bool functions = all.size() > kOwn;
  Checked &dq = all[0], &dk = all[1], &dv = all[2], &dbias = all[3], &dsinks = all[4];
  compute_gradients<double>(
      p, tensors, DType::fp32,
      {dq.exact_data(), dk.exact_data(), dv.exact_data(), dbias.exact_data(), dsinks.exact_data(),
       dq.squares_data(), dk.squares_data(), dv.squares_data(), dbias.squares_data(),
       dsinks.squares_data(), functions ? exact_functions.data() : nullptr,
       functions ? squares_functions.data() : nullptr},
      threads);
  compute_gradients<float>(
      p, tensors, p.dtype,
      {dq.standard_data(), dk.standard_data(), dv.standard_data(), dbias.standard_data(),
       dsinks.standard_data(), nullptr, nullptr, nullptr, nullptr, nullptr,
       functions ? standard_functions.data() : nullptr, nullptr},
      threads);
}

}  // namespace

VerifyReport verify_gradients(const Problem& p, const AttentionTensors& tensors,
                              const cpu::ThreadSettings& threads, Expected* expected) {
  const AttentionTensors& t = tensors;
  const GradientShapes shapes(p);
  std::vector<Checked> all{{"dq", "b, i, h, d", t.dq, p.dq, shapes.dq},
                           {"dk", "b, j, h, d", t.dk, p.dk, shapes.dk},
                           {"dv", "b, j, h, d", t.dv, p.dv, shapes.dv},
                           {"dbias", "b, h, i, j", t.dbias, p.dbias, shapes.dbias},
                           {"dsinks", "0, 0, 0, h", t.dsinks, p.dsinks, shapes.dsinks}};
  const auto functions = p.functions.tensors();
  for (std::size_t i = 0; i < functions.size(); ++i)
    all.push_back(of_function(functions[i], t.function_tensors[i].gradient));
  all[0].rows = rows_of_queries(p, tensors);
  all[1].rows = all[2].rows = rows_of_keys(p, tensors);
  if (expected != nullptr && expected->known) {
    expected->known = false;  // until they are there again
    for (std::size_t i = 0; i < all.size(); ++i) std::swap(all[i].expected, expected->gradients[i]);
  } else {
    expect(p, tensors, threads, all);
  }

  const double slack = kAbsolute * static_cast<double>(p.dropout_scale()) + softcap_error(p);
  VerifyReport worst;
  std::vector<TensorError> gradients;
  worst.ok = true;
  double worst_excess = -1, sum = 0;
  int64_t elements = 0;
  for (const Checked& one : all) {
    if (!one.spec.present) continue;
    VerifyReport report;
    const double excess = one.judge(slack, report);
    sum += report.mean_error * static_cast<double>(report.elements);
    elements += report.elements;
    gradients.push_back({report.tensor, report.worst_error, report.baseline_error, report.bound});
    if (excess > worst_excess || (worst.ok && !report.ok)) {
      worst_excess = excess;
      worst = report;
    }
  }
  if (expected != nullptr) {
    expected->gradients.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) std::swap(all[i].expected, expected->gradients[i]);
    expected->known = true;
  }
  worst.gradients = std::move(gradients);
  worst.elements = elements;
  worst.mean_error = mean_of(sum, elements);
  return worst;
}

}  // namespace fulmen::reference
