// "cpu.standard.plain" and "cpu.reference.double": the plain loops as kernels that can be forced by
// name.
#include <algorithm>
#include <new>
#include <vector>

#include "reference/baseline_kernels.h"
#include "reference/oracle/oracle_rows.h"
#include "reference/oracle/score_row.h"
#include "reference/standard/steps.h"
#include "runtime/fork_safe.h"
#include "runtime/threading.h"

namespace fulmen::reference {
namespace {

// What both runners share: tasks of (batch, KV head, block of rows).
struct RowTasks {
  int64_t blocks = 0;
  int64_t count = 0;

  explicit RowTasks(const Problem& p) noexcept
      : blocks((p.seqlen_q + kRowsPerTask - 1) / kRowsPerTask),
        count(p.batch * p.num_kv_heads * blocks) {}
};

class PlainRunner final : public Runner {
 public:
  PlainRunner(const Problem& problem, const AttentionOptions& options)
      : p_(problem),
        threads_(cpu::thread_settings(options)),
        config_{.kernel = "cpu.standard.plain"} {
    config_.block_m = static_cast<int>(std::min(kRowsPerTask, p_.seqlen_q));
    config_.num_threads = threads_.num_threads;
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    return floats_per_worker() * sizeof(float) * static_cast<std::size_t>(threads_.num_threads);
  }

  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    const RowTasks tasks(p_);
    cpu::parallel_tasks(threads_, tasks.count, [&](int64_t task, int worker) {
      const int64_t b = task / (p_.num_kv_heads * tasks.blocks);
      const int64_t kv_head = task / tasks.blocks % p_.num_kv_heads;
      const int64_t first = task % tasks.blocks * kRowsPerTask;
      StandardRows rows(
          p_, tensors,
          static_cast<float*>(workspace) + floats_per_worker() * static_cast<std::size_t>(worker));
      rows.load(b, kv_head);
      const SequenceView& sequence = rows.sequence();
      const int64_t count = std::min(kRowsPerTask, sequence.problem.seqlen_q - first);
      if (count <= 0) return;
      for (int64_t h = kv_head * p_.group_size(); h < (kv_head + 1) * p_.group_size(); ++h) {
        const float* out = rows.rows(h, first, count);
        store_rows(sequence.problem, sequence.tensors, b, h, first, count, out, rows.lse());
      }
    });
    return {};
  }

 private:
  std::size_t floats_per_worker() const noexcept {
    // Workers share no cache line.
    return (static_cast<std::size_t>(StandardRows::scratch_floats(p_)) + 15) / 16 * 16;
  }

  Problem p_;
  cpu::ThreadSettings threads_;
  KernelConfig config_;
};

class StandardPlain final : public Kernel {
 public:
  std::string_view name() const noexcept override { return "cpu.standard.plain"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool paged() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool takes(Precision /*precision*/) const noexcept override { return true; }
  Support supports(const Problem& problem, const std::string& /*device*/) const override {
    if (problem.dtype != DType::fp32 && problem.lse.present) {
      return Support::no(std::string("it rounds its scores to ") + to_string(problem.dtype) +
                         ", so an LSE would not be exact");
    }
    return {};
  }
  double rank(const Problem& /*problem*/) const override { return 0.5; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<PlainRunner>(problem, options));
  }
};

class OracleRunner final : public Runner {
 public:
  OracleRunner(const Problem& problem, const AttentionOptions& options)
      : p_(problem),
        threads_(cpu::thread_settings(options)),
        config_{.kernel = "cpu.reference.double"} {
    config_.num_threads = threads_.num_threads;
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override { return 0; }

  // Allocates, unlike every other kernel: it is there to be right, and is chosen only by name.
  Status run(void* /*stream*/, const AttentionTensors& tensors,
             void* /*workspace*/) const override {
    struct Worker {
      OracleHead head;
      std::vector<double> row;
      std::vector<float> out;
    };
    const RowTasks tasks(p_);
    const cpu::ThreadSettings threads = cpu::at_most(tasks.count, threads_);
    std::vector<Worker> workers;
    try {
      workers.reserve(static_cast<std::size_t>(threads.num_threads));
      const auto dims = static_cast<std::size_t>(p_.head_dim_v);
      for (int worker = 0; worker < threads.num_threads; ++worker) {
        workers.push_back(
            {OracleHead(p_, tensors), std::vector<double>(dims), std::vector<float>(dims)});
      }
    } catch (const std::bad_alloc&) {
      return {StatusCode::out_of_memory,
              "cpu.reference.double: one KV head in double a thread does not fit in memory"};
    }
    cpu::parallel_tasks(threads, tasks.count, [&](int64_t task, int worker) {
      Worker& mine = workers[static_cast<std::size_t>(worker)];
      const int64_t b = task / (p_.num_kv_heads * tasks.blocks);
      const int64_t kv_head = task / tasks.blocks % p_.num_kv_heads;
      const int64_t first = task % tasks.blocks * kRowsPerTask;
      mine.head.load(b, kv_head);
      const SequenceView& sequence = mine.head.sequence();
      const int64_t last = std::min(first + kRowsPerTask, sequence.problem.seqlen_q);
      for (int64_t h = kv_head * p_.group_size(); h < (kv_head + 1) * p_.group_size(); ++h) {
        for (int64_t i = first; i < last; ++i) {
          const auto lse = static_cast<float>(mine.head.row(h, i, mine.row.data()));
          std::copy(mine.row.begin(), mine.row.end(), mine.out.begin());
          store_rows(sequence.problem, sequence.tensors, b, h, i, 1, mine.out.data(), &lse);
        }
      }
    });
    return {};
  }

 private:
  Problem p_;
  cpu::ThreadSettings threads_;
  KernelConfig config_;
};

class ReferenceDouble final : public Kernel {
 public:
  std::string_view name() const noexcept override { return "cpu.reference.double"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  bool paged() const noexcept override { return true; }
  bool quantized_kv() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool block_masks() const noexcept override { return true; }
  Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
    return {};
  }
  // Last of all where functions or a block mask leave few kernels.
  double rank(const Problem& problem) const override {
    return problem.functions.any() || problem.has_block_mask() ? 0.1 : 0;
  }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<OracleRunner>(problem, options));
  }
};

}  // namespace

const Kernel& standard_plain_kernel() {
  constinit static MadeOnce<const StandardPlain> made;
  return made.get();
}

const Kernel& reference_double_kernel() {
  constinit static MadeOnce<const ReferenceDouble> made;
  return made.get();
}

}  // namespace fulmen::reference
