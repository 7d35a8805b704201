// attention_reference(): the oracle over all rows of a problem, in parallel.
#include <algorithm>
#include <exception>
#include <new>
#include <vector>

#include "fulmen/reference.h"
#include "reference/oracle/oracle_rows.h"
#include "reference/oracle/row_positions.h"
#include "runtime/empty_tensors.h"
#include "runtime/threading.h"

namespace fulmen {

Status attention_reference(const Problem& problem, const AttentionTensors& given, double* out,
                           double* lse, const AttentionOptions& options) {
  const int64_t blocks = (problem.seqlen_q + reference::kRowsPerTask - 1) / reference::kRowsPerTask;
  const int64_t group = problem.group_size();
  try {
    if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
    if (Status status = check_sequences(problem, given); !status.ok()) return status;
    const AttentionTensors tensors = without_null(problem, given);
    const Problem::Shape shape = problem.out_shape();
    if (out == nullptr && shape[0] * shape[1] * shape[2] * shape[3] > 0) {
      return {StatusCode::invalid_argument, "out is null: a pointer is needed"};
    }
    const int64_t tasks = problem.batch * problem.num_kv_heads * blocks;
    const cpu::ThreadSettings threads = cpu::at_most(tasks, cpu::thread_settings(options));
    std::vector<reference::OracleHead> heads;
    for (int worker = 0; worker < threads.num_threads; ++worker)
      heads.emplace_back(problem, tensors);
    cpu::parallel_tasks(threads, tasks, [&](int64_t task, int worker) {
      const int64_t b = task / (problem.num_kv_heads * blocks);
      const int64_t kv_head = task / blocks % problem.num_kv_heads;
      const int64_t first = task % blocks * reference::kRowsPerTask;
      reference::OracleHead& head = heads[static_cast<std::size_t>(worker)];
      head.load(b, kv_head);
      const SequenceView& sequence = head.sequence();
      const int64_t last = std::min(first + reference::kRowsPerTask, sequence.problem.seqlen_q);
      const reference::RowStatistics rows(problem, sequence, b);
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        for (int64_t i = first; i < last; ++i) {
          const double row_lse =
              head.row(h, i, out + (rows.q(i) * problem.num_heads + h) * problem.head_dim_v);
          if (lse != nullptr) lse[rows.lse(h, i)] = row_lse;
        }
      }
    });
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory for one KV head in double a thread"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, error.what()};
  } catch (...) {
    return {StatusCode::internal, "parallel_for threw"};
  }
}

}  // namespace fulmen
