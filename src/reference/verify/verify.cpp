// The tolerance rule of docs/contract.md, row by row beside the oracle and the same-precision
// standard attention.
#include "reference/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <new>

#include "fulmen/reference.h"
#include "reference/oracle/oracle_rows.h"
#include "reference/oracle/score_row.h"
#include "reference/standard/steps.h"
#include "reference/verify/gradients.h"
#include "reference/verify/worst.h"
#include "runtime/empty_tensors.h"
#include "runtime/threading.h"

namespace fulmen {
namespace {

using reference::describe;
using reference::error_of;
using reference::finite_or_zero;
using reference::kAbsolute;
using reference::mean_of;
using reference::OracleHead;
using reference::softcap_error;
using reference::StandardRows;
using reference::Worst;

constexpr double kRelativeToRow = 1e-5;    // fp32 only
constexpr double kRelativeToTerms = 1e-6;  // fp32 only, for rows whose terms cancel: a correct
                                           // result can't be closer
constexpr double kRelativeLse = 1e-5;

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

class Check {
 public:
  Check(const Problem& problem, const AttentionTensors& tensors)
      : p_(problem),
        scratch_(static_cast<std::size_t>(StandardRows::scratch_floats(problem))),
        oracle_(problem, tensors),
        standard_(problem, tensors, scratch_.data()),
        expected_(static_cast<std::size_t>(problem.head_dim_v)),
        rounding_(expected_.size()) {}

  void rows(int64_t b, int64_t kv_head, int64_t first, int64_t count) noexcept {
    oracle_.load(b, kv_head);
    standard_.load(b, kv_head);
    count = std::min(count, oracle_.sequence().problem.seqlen_q - first);
    if (count <= 0) return;
    for (int64_t h = kv_head * p_.group_size(); h < (kv_head + 1) * p_.group_size(); ++h) {
      const float* standard = standard_.rows(h, first, count);
      for (int64_t r = 0; r < count; ++r) row(b, h, first + r, standard + r * p_.head_dim_v);
    }
  }
  const Findings& findings() const noexcept { return findings_; }

 private:
  void row(int64_t b, int64_t h, int64_t i, const float* standard) noexcept {
    const double lse = oracle_.row(h, i, expected_.data());
    const OracleHead::Bounds bounds = oracle_.bounds(expected_.data(), rounding_.data());
    const AttentionTensors& t = oracle_.sequence().tensors;
    const int64_t out_row = reference::offset_of(p_.out, b, i, h);
    double row_max = 0;
    for (const double expected : expected_) row_max = std::fmax(row_max, std::fabs(expected));
    const double absolute = kAbsolute * static_cast<double>(p_.dropout_scale());
    const double of_row = std::fmax(kRelativeToRow * row_max, kRelativeToTerms * bounds.magnitude);
    const double extra = softcap_error(p_);
    const double slack = extra + (p_.dtype == DType::fp32 ? std::fmin(absolute, of_row) : absolute);
    for (int64_t d = 0; d < p_.head_dim_v; ++d) {
      double expected = expected_[static_cast<std::size_t>(d)];
      const double before = finite_or_zero(rounding_[static_cast<std::size_t>(d)]);
      const double rounding = before + reference::half_ulp(p_.dtype, std::fabs(expected) + before);
      const double rounded = reference::round_to(p_.dtype, static_cast<float>(expected));
      if (std::isinf(rounded)) expected = rounded;  // beyond the dtype's range infinity is right
      const double value = reference::load_float(t.out.data, p_.dtype, out_row + d);
      const double error = error_of(value, expected);
      findings_.add_out({error, slack, rounding, {b, i, h, d}, value, expected});
      findings_.sum += error;
      ++findings_.elements;
      const double standard_error = error_of(standard[d], expected);
      if (std::isfinite(standard_error))
        findings_.standard_error = std::fmax(findings_.standard_error, standard_error);
    }
    if (p_.lse.present) {
      const double value =
          static_cast<const float*>(t.lse.data)[reference::offset_of(p_.lse, b, h, i)];
      const double size = std::isfinite(lse) ? std::fmax(1, std::fabs(lse)) : 1;
      const double lse_slack = std::fmax(kRelativeLse, finite_or_zero(bounds.lse) / size) + extra;
      findings_.add_lse({error_of(value, lse) / size, lse_slack, 0, {b, h, i, 0}, value, lse});
    }
  }

  const Problem& p_;
  std::vector<float> scratch_;
  OracleHead oracle_;
  StandardRows standard_;
  std::vector<double> expected_;
  std::vector<double> rounding_;
  Findings findings_;
};

VerifyReport judge(const Findings& found) {
  VerifyReport report;
  report.tensor = "out";
  const double baseline = found.standard_error;
  const bool wrong = found.over.error > 2 * baseline + found.over.slack;
  const Worst& worst = wrong ? found.over : found.out;
  report.worst_error = std::fmax(0, worst.error);
  report.baseline_error = baseline;
  report.bound =
      worst.error < 0 ? kAbsolute : std::fmax(2 * baseline, worst.rounding) + worst.slack;
  report.lse_error = std::fmax(0, found.lse.error);
  report.elements = found.elements;
  report.mean_error = mean_of(found.sum, found.elements);
  if (wrong) {
    report.message = describe("out", "b, i, h, d", worst, report.bound,
                              fmt::format("max(2 P, R) + {:.3g}, P {:.3g}, R {:.3g}", worst.slack,
                                          baseline, worst.rounding));
  } else if (found.lse_over.error > 0) {
    report.message = describe("lse", "b, h, i, 0", found.lse_over, found.lse_over.slack,
                              "relative to max(1, |lse|)");
  } else {
    report.ok = true;
  }
  return report;
}

VerifyReport check_all(const Problem& p, const AttentionTensors& tensors,
                       const cpu::ThreadSettings& most_threads) {
  if (p.num_kv_heads == 0 || p.head_dim_v == 0) return judge({});
  const int64_t blocks = (p.seqlen_q + reference::kRowsPerTask - 1) / reference::kRowsPerTask;
  const int64_t tasks = p.batch * p.num_kv_heads * blocks;
  const cpu::ThreadSettings threads = cpu::at_most(tasks, most_threads);
  std::vector<Check> checks;
  checks.reserve(static_cast<std::size_t>(threads.num_threads));
  for (int worker = 0; worker < threads.num_threads; ++worker) checks.emplace_back(p, tensors);

  cpu::parallel_tasks(threads, tasks, [&](int64_t task, int worker) {
    const int64_t first = task % blocks * reference::kRowsPerTask;
    checks[static_cast<std::size_t>(worker)].rows(
        task / (p.num_kv_heads * blocks), task / blocks % p.num_kv_heads, first,
        std::min(reference::kRowsPerTask, p.seqlen_q - first));
  });
  Findings found;
  for (const Check& check : checks) found.merge(check.findings());
  return judge(found);
}

}  // namespace

namespace reference {

Result<VerifyReport> verify(const Problem& problem, const AttentionTensors& given,
                            const AttentionOptions& options) {
  try {
    if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
    if (Status status = check_sequences(problem, given); !status.ok()) return status;
    const AttentionTensors tensors = without_null(problem, given);
    const cpu::ThreadSettings threads = cpu::thread_settings(options);
    return problem.pass == Pass::forward ? check_all(problem, tensors, threads)
                                         : verify_gradients(problem, tensors, threads);
  } catch (const std::bad_alloc&) {
    return Status(
        StatusCode::out_of_memory,
        problem.pass == Pass::forward
            ? "not enough memory to verify: one KV head in double a thread is needed"
            : "not enough memory to verify: three times the gradients in double are needed");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, fmt::format("verifying failed: {}", error.what()));
  } catch (...) {
    return Status(StatusCode::internal, "verifying failed: parallel_for threw");
  }
}

}  // namespace reference

VerifyReport verify_result(const Problem& problem, const AttentionTensors& tensors,
                           const AttentionOptions& options) {
  Result<VerifyReport> made = reference::verify(problem, tensors, options);
  if (made.ok()) return std::move(made).value();
  VerifyReport report;
  report.message = made.status().message();
  return report;
}

}  // namespace fulmen
