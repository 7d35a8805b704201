// The tolerance rule of docs/contract.md, row by row beside the oracle and the same-precision
// standard attention.
#include "reference/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <new>
#include <optional>

#include "fulmen/reference.h"
#include "reference/verify/gradients.h"
#include "reference/verify/rows.h"
#include "reference/verify/worst.h"
#include "runtime/empty_tensors.h"
#include "runtime/threading.h"

namespace fulmen {
namespace {

using reference::Check;
using reference::describe;
using reference::Expected;
using reference::Expecting;
using reference::Findings;
using reference::index_of;
using reference::kAbsolute;
using reference::mean_of;
using reference::Worst;

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

void allocate(const Problem& p, int64_t rows, Expected& expected) {
  expected.rows.resize(index_of(rows));
  expected.out.resize(index_of(rows * p.head_dim_v));
  expected.rounding.resize(expected.out.size());
  expected.standard.resize(expected.out.size());
}

// One thread's; of a call whose expectations nobody keeps, a block of rows at a time.
struct Worker {
  Worker(const Problem& problem, const AttentionTensors& tensors, const Expected* kept)
      : check(problem, tensors) {
    if (kept == nullptr || !kept->known) expecting.emplace(problem, tensors);
    if (kept == nullptr)
      allocate(problem, std::min(reference::kRowsPerTask, problem.seqlen_q), block);
  }
  Check check;
  std::optional<Expecting> expecting;
  Expected block;
};

VerifyReport check_all(const Problem& p, const AttentionTensors& tensors,
                       const cpu::ThreadSettings& most_threads, Expected* kept) {
  if (p.num_kv_heads == 0 || p.head_dim_v == 0) return judge({});
  const int64_t blocks = (p.seqlen_q + reference::kRowsPerTask - 1) / reference::kRowsPerTask;
  const int64_t tasks = p.batch * p.num_kv_heads * blocks;
  const cpu::ThreadSettings threads = cpu::at_most(tasks, most_threads);
  if (kept != nullptr && !kept->known) allocate(p, p.batch * p.num_heads * p.seqlen_q, *kept);
  std::vector<Worker> workers;
  workers.reserve(index_of(threads.num_threads));
  for (int worker = 0; worker < threads.num_threads; ++worker)
    workers.emplace_back(p, tensors, kept);

  cpu::parallel_tasks(threads, tasks, [&](int64_t task, int index) {
    Worker& worker = workers[index_of(index)];
    const int64_t b = task / (p.num_kv_heads * blocks), kv_head = task / blocks % p.num_kv_heads,
                  first = task % blocks * reference::kRowsPerTask,
                  count = worker.check.rows_of(b, first, reference::kRowsPerTask);
    if (count <= 0) return;
    Expected& expected = kept == nullptr ? worker.block : *kept;
    for (int64_t h = kv_head * p.group_size(); h < (kv_head + 1) * p.group_size(); ++h) {
      const int64_t at = kept == nullptr ? 0 : (b * p.num_heads + h) * p.seqlen_q + first;
      if (worker.expecting) worker.expecting->rows(b, h, first, count, expected, at);
      worker.check.rows(b, h, first, count, expected, at);
    }
  });
  if (kept != nullptr) kept->known = true;
  Findings found;
  for (const Worker& worker : workers) found.merge(worker.check.findings());
  return judge(found);
}

}  // namespace

namespace reference {

Result<VerifyReport> verify(const Problem& problem, const AttentionTensors& given,
                            const AttentionOptions& options, Expected* expected) {
  try {
    if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
    if (Status status = check_sequences(problem, given); !status.ok()) return status;
    const AttentionTensors tensors = without_null(problem, given);
    const cpu::ThreadSettings threads = cpu::thread_settings(options);
    return problem.pass == Pass::forward ? check_all(problem, tensors, threads, expected)
                                         : verify_gradients(problem, tensors, threads, expected);
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
