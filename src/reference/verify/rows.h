// The forward part of the tolerance rule, row by row: what a result is compared with, and how.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/oracle/oracle_rows.h"
#include "reference/oracle/score_row.h"
#include "reference/standard/steps.h"
#include "reference/verify/expected.h"
#include "reference/verify/worst.h"
#include "runtime/float_formats.h"
#include "runtime/sequence_view.h"

namespace fulmen::reference {

inline constexpr double kRelativeToRow = 1e-5;  // fp32 only
inline constexpr double kRelativeToTerms =
    1e-6;  // fp32 only, for rows whose terms cancel: a correct
           // result can't be closer
inline constexpr double kRelativeLse = 1e-5;

// An element is wrong when its error exceeds both R + slack and 2 P + slack. P is known last, so of
// the elements that exceed the first the one nearest to exceeding the second is kept.
struct Findings {
  Worst out;   // largest error
  Worst over;  // of the elements over R + slack the largest error - slack
  Worst lse;   // largest error relative to max(1, |lse|)
  Worst lse_over;
  double standard_error = 0;
  double sum = 0;  // of out's errors
  int64_t elements = 0;

  void add_out(const Worst& one) noexcept {
    if (one.error > out.error) out = one;
    if (one.error > one.rounding + one.slack &&
        (over.error < 0 || one.error - one.slack > over.error - over.slack))
      over = one;
  }
  void add_lse(const Worst& one) noexcept {
    if (one.error > lse.error) lse = one;
    if (one.error > one.slack && one.error > lse_over.error) lse_over = one;
  }
  void merge(const Findings& other) noexcept {
    add_out(other.out);
    add_out(other.over);
    add_lse(other.lse);
    add_lse(other.lse_over);
    standard_error = std::fmax(standard_error, other.standard_error);
    sum += other.sum;
    elements += other.elements;
  }
};

inline std::size_t index_of(int64_t at) noexcept { return static_cast<std::size_t>(at); }

// Computes what rows are compared with.
class Expecting {
 public:
  Expecting(const Problem& problem, const AttentionTensors& tensors)
      : p_(problem),
        scratch_(index_of(StandardRows::scratch_floats(problem))),
        oracle_(problem, tensors),
        standard_(problem, tensors, scratch_.data()) {}

  // Rows [first, first + count) of head h, which become rows `at` and on of `to`.
  void rows(int64_t b, int64_t h, int64_t first, int64_t count, Expected& to, int64_t at) noexcept {
    oracle_.load(b, h / p_.group_size());
    standard_.load(b, h / p_.group_size());
    std::copy_n(standard_.rows(h, first, count), count * p_.head_dim_v,
                to.standard.data() + at * p_.head_dim_v);
    for (int64_t r = 0; r < count; ++r) {
      double* out = to.out.data() + (at + r) * p_.head_dim_v;
      const double lse = oracle_.row(h, first + r, out);
      const OracleHead::Bounds bounds =
          oracle_.bounds(out, to.rounding.data() + (at + r) * p_.head_dim_v);
      to.rows[index_of(at + r)] = {lse, bounds.magnitude, bounds.lse};
    }
  }

 private:
  const Problem& p_;
  std::vector<float> scratch_;
  OracleHead oracle_;
  StandardRows standard_;
};

// Compares rows with them.
class Check {
 public:
  Check(const Problem& problem, const AttentionTensors& tensors)
      : p_(problem), all_tensors_(tensors), view_(sequence_view(problem, tensors)) {}

  // How many of `count` rows from `first` on the sequence has.
  int64_t rows_of(int64_t b, int64_t first, int64_t count) noexcept {
    select_sequence(p_, all_tensors_, b, view_);
    return std::min(count, view_.problem.seqlen_q - first);
  }
  // `count` of these, of which `expected` has rows `at` and on.
  void rows(int64_t b, int64_t h, int64_t first, int64_t count, const Expected& expected,
            int64_t at) noexcept {
    for (int64_t r = 0; r < count; ++r) row(b, h, first + r, expected, at + r);
  }
  const Findings& findings() const noexcept { return findings_; }

 private:
  void row(int64_t b, int64_t h, int64_t i, const Expected& of, int64_t at) noexcept {
    const Expected::Row& of_row = of.rows[index_of(at)];
    const double* out = of.out.data() + at * p_.head_dim_v;
    const double* roundings = of.rounding.data() + at * p_.head_dim_v;
    const float* standard = of.standard.data() + at * p_.head_dim_v;
    const AttentionTensors& t = view_.tensors;
    const int64_t out_row = offset_of(p_.out, b, i, h);
    double row_max = 0;
    for (int64_t d = 0; d < p_.head_dim_v; ++d) row_max = std::fmax(row_max, std::fabs(out[d]));
    const double absolute = kAbsolute * static_cast<double>(p_.dropout_scale());
    const double relative =
        std::fmax(kRelativeToRow * row_max, kRelativeToTerms * of_row.magnitude);
    const double extra = softcap_error(p_);
    const double slack =
        extra + (p_.dtype == DType::fp32 ? std::fmin(absolute, relative) : absolute);
    for (int64_t d = 0; d < p_.head_dim_v; ++d) {
      double expected = out[d];
      const double before = finite_or_zero(roundings[d]);
      const double rounding = before + half_ulp(p_.dtype, std::fabs(expected) + before);
      const double rounded = round_to(p_.dtype, static_cast<float>(expected));
      if (std::isinf(rounded)) expected = rounded;  // beyond the dtype's range infinity is right
      const double value = load_float(t.out.data, p_.dtype, out_row + d);
      const double error = error_of(value, expected);
      findings_.add_out({error, slack, rounding, {b, i, h, d}, value, expected});
      findings_.sum += error;
      ++findings_.elements;
      const double standard_error = error_of(standard[d], expected);
      if (std::isfinite(standard_error))
        findings_.standard_error = std::fmax(findings_.standard_error, standard_error);
    }
    if (p_.lse.present) {
      const double value = static_cast<const float*>(t.lse.data)[offset_of(p_.lse, b, h, i)];
      const double lse = of_row.lse;
      const double size = std::isfinite(lse) ? std::fmax(1, std::fabs(lse)) : 1;
      const double lse_slack =
          std::fmax(kRelativeLse, finite_or_zero(of_row.lse_rounding) / size) + extra;
      findings_.add_lse({error_of(value, lse) / size, lse_slack, 0, {b, h, i, 0}, value, lse});
    }
  }

  const Problem& p_;
  const AttentionTensors& all_tensors_;
  SequenceView view_;
  Findings findings_;
};

}  // namespace fulmen::reference
