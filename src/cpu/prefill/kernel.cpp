#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <string>

#include "cpu/families.h"
#include "cpu/short/call.h"
#include "cpu/tile/score_scale.h"
#include "cpu/tile/sequence_tasks.h"
#include "cpu/tile/task_runs.h"
#include "cpu/tuning.h"
#include "runtime/threading.h"

namespace fulmen::cpu {
namespace {

constexpr int kMostRunTasks = 4096;  // that may be asked for

// Words of head_dim up to which a task's tiles leave room in the caches for more.
constexpr int64_t kNarrowWords = 64;
bool narrow(const Problem& p, int group) { return (std::max(p.head_dim, p.head_dim_v) + group - 1) / group <= kNarrowWords; }

// Key rows of a prefill tile. More amortise the output's load and store; but scores, queries and values have to share L1 and a part
// of L2: both measured best on Zen 5.
int choose_block_n(const Problem& p, int group) { return narrow(p, group) ? 128 : 64; }

// Query tiles that share a packed key tile: queries and outputs of them all stay in L2, which is large where there are matrix
// tiles.
int max_tiles_per_task(const Problem& p, const IsaTable& table) {
  const int group = table.group[static_cast<int>(p.dtype)];
  if (table.amx_tiles && std::max(p.head_dim, p.head_dim_v) <= 64) return 32;
  return narrow(p, group) ? 16 : 8;
}

// How the work is cut. Tiles compute the same whatever the cut, so it may depend on the number of threads.
int choose_tiles_per_task(const Problem& p, const IsaTable& table, int threads) {
  const int64_t tiles = (p.seqlen_q + kBlockM - 1) / kBlockM;
  const int64_t heads = p.batch * p.num_heads;
  int per_task = static_cast<int>(std::clamp<int64_t>(tiles, 1, max_tiles_per_task(p, table)));
  while (per_task > 1 && heads * ((tiles + per_task - 1) / per_task) < 4LL * threads) per_task /= 2;
  return per_task;
}

// Whether a cache keeps the queries, keys and values of a batch element while the next one's are fetched.
bool two_fit(const Problem& p, int64_t cache_bytes) {
  const int64_t elements = p.num_heads * p.seqlen_q * p.head_dim + p.num_kv_heads * p.seqlen_k * (p.head_dim + p.head_dim_v);
  return 2 * elements * (p.dtype == DType::fp32 ? 4 : 2) <= cache_bytes;
}

// Whether short sequences fetch the next batch element. Intel: where two lie in L2 beside the worker's scratch. AMD: where the call
// comes from memory; what L2 has no room for waits in a core's share of L3, 4 MB. Elements that are in L3 already are 3 % slower
// so.
bool fetches_batches(const InstructionSet& isa, const Problem& problem, bool from_memory) {
  if (isa.fetch_blocks) return two_fit(problem, level2_cache_bytes() / 4 * 3);
  return isa.fetch_batches && from_memory && two_fit(problem, 4 << 20);
}

class TileRunner final : public Runner {
 public:
  TileRunner(const Problem& problem, const InstructionSet& isa, std::string name, const AttentionOptions& options, int block_n,
             IsaTable::PrefillTaskFunction function, bool short_sequence, int tiles_per_task = 0)
      : problem_(problem), threads_(thread_settings(options)), function_(function) {
    call_.problem = &problem_;
    call_.band = {problem.seqlen_k, problem.diagonal, problem.window_left, problem.window_right};
    call_.scale = score_scale(problem);
    call_.block_n = block_n;
    const IsaTable& table = *isa.table;
    const int group = table.group[static_cast<int>(problem.dtype)];
    // The short kernel's tasks have one tile, but on matrix tiles, where they are the same as others.
    call_.tiles_per_task = tiles_per_task > 0                   ? tiles_per_task
                           : short_sequence && !table.amx_tiles ? 1
                                                                : choose_tiles_per_task(problem, table, threads_.num_threads);
    const int64_t floats =
        short_sequence
            ? (table.short_floats != nullptr ? table.short_floats(problem) : short_scratch(problem, table.lanes, group).total)
        : table.scratch_floats != nullptr ? table.scratch_floats(problem, block_n, call_.tiles_per_task)
                                          : tile_scratch(problem, table.lanes, group, block_n, call_.tiles_per_task).total;
    scratch_floats_ = round_up(floats, 16);
    task_rows_ = static_cast<int64_t>(call_.tiles_per_task) * kBlockM;
    blocks_ = (problem.seqlen_q + task_rows_ - 1) / task_rows_;  // 0 for no queries: then there are no tasks
    if (short_sequence) {
      const int64_t heads = problem.num_heads * blocks_;
      call_.stream_output = problem.bytes() > kStreamBytes;
      run_length_ = choose_run(problem, threads_.num_threads, problem.batch * heads, heads);
      call_.fetch_batches = !table.amx_tiles && !problem.variable_lengths() &&
                            next_sequence_is_own(problem, threads_.num_threads) &&
                            fetches_batches(isa, problem, call_.stream_output);
      call_.fetch_into_l2 = isa.fetch_blocks;
    }
    if (problem.variable_lengths()) {
      const int64_t most = problem.batch * blocks_;
      most_tasks_ = problem.packed_q() ? std::min(most, problem.total_q / task_rows_ + problem.batch) : most;
      run_length_ = short_sequence ? std::min(problem.num_heads, kMaxRun) : 1;
    }
    config_ = {std::move(name), kBlockM, block_n, 1, threads_.num_threads};
  }

  // The schedule of short sequences: tasks that a worker takes at once, and whether each batch element is fetched during the one
  // before it.
  int run_tasks() const noexcept { return static_cast<int>(std::min<int64_t>(run_length_, kMostRunTasks)); }
  bool fetches_ahead() const noexcept { return call_.fetch_batches; }
  void set_run(int tasks, bool fetches_ahead) noexcept {
    if (tasks != run_tasks()) run_length_ = tasks;
    call_.fetch_batches = fetches_ahead;
  }
  void set_parameters(tuning::Choice choice) {
    config_.parameters = std::move(choice.parameters);
    config_.notes = std::move(choice.notes);
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    return static_cast<std::size_t>(scratch_floats_) * sizeof(float) * static_cast<std::size_t>(threads_.num_threads) +
           static_cast<std::size_t>(most_tasks_) * sizeof(SequenceTask);
  }

  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    if (problem_.variable_lengths()) return run_sequences(tensors, static_cast<float*>(workspace));
    ForwardCall call = call_;
    call.tensors = &tensors;
    auto* scratch = static_cast<float*>(workspace);
    const int64_t count = problem_.batch * problem_.num_heads * blocks_;
    parallel_tasks(threads_, (count + run_length_ - 1) / run_length_, [&](int64_t run, int worker) {
      const int64_t end = std::min(count, (run + 1) * run_length_);
      PrefillRows task = make_task(run * run_length_);
      for (int64_t index = run * run_length_; index < end; ++index) {
        const PrefillRows next = make_task(index + 1);
        task.next = index + 1 < end ? &next : nullptr;
        function_(call, task, scratch + worker * scratch_floats_);
        task = next;
      }
    });
    return {};
  }

 private:
  // A task is a block of queries of one sequence and run_length_ heads.
  Status run_sequences(const AttentionTensors& tensors, float* scratch) const {
    auto* tasks = reinterpret_cast<SequenceTask*>(scratch + scratch_floats_ * threads_.num_threads);
    const algorithm::SequenceTable table = sequence_table(problem_, tensors);
    const int64_t blocks = order_tasks(
        [&](const auto& put) {
          for (int64_t b = 0; b < problem_.batch; ++b) {
            const algorithm::Sequence s = table.sequence(b);
            const algorithm::Band band = s.band(problem_.top_left, problem_.window_left, problem_.window_right);
            for (int64_t row = 0; row < s.q_len; row += task_rows_) {
              const int64_t end = std::min<int64_t>(s.q_len, row + task_rows_);
              const auto keys = band.any(row, end);
              put(b, row / task_rows_, (end - row) * (keys.end - keys.begin + kBlockM));  // a row costs something, too
            }
          }
        },
        tasks);
    const int64_t runs = (problem_.num_heads + run_length_ - 1) / run_length_;
    parallel_tasks(
        threads_, blocks * runs,
        [&](int64_t index, int worker) {
          const SequenceTask& block = tasks[index / runs];
          SequenceView view = sequence_view(problem_, tensors);
          ForwardCall call = call_;
          call_sequence(problem_, tensors, block.sequence, view, call);
          const int64_t first = block.part * task_rows_, head_end = std::min(problem_.num_heads, (index % runs + 1) * run_length_);
          for (int64_t head = index % runs * run_length_; head < head_end; ++head) {
            const PrefillRows task{block.sequence, head, first, std::min(view.problem.seqlen_q, first + task_rows_)};
            function_(call, task, scratch + worker * scratch_floats_);
          }
        },
        1);
    return {};
  }

  PrefillRows make_task(int64_t index) const {
    const int64_t head = index / blocks_;
    const int64_t block = blocks_ - 1 - index % blocks_;  // causal: the longest rows of a head first
    return {head / problem_.num_heads, head % problem_.num_heads, block * task_rows_,
            std::min(problem_.seqlen_q, (block + 1) * task_rows_)};
  }

  Problem problem_;
  ThreadSettings threads_;
  IsaTable::PrefillTaskFunction function_;
  ForwardCall call_;
  KernelConfig config_;
  int64_t scratch_floats_ = 0;
  int64_t task_rows_ = 0;
  int64_t blocks_ = 0;
  int64_t most_tasks_ = 0;  // of sequences of different lengths
  int64_t run_length_ = 1;  // task_runs.h
};

class PrefillKernel final : public FamilyKernel {
 public:
  using FamilyKernel::FamilyKernel;
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    const int dtype = static_cast<int>(problem.dtype), threads = thread_settings(options).num_threads;
    int block_n = usual_block_n(problem), tiles = choose_tiles_per_task(problem, *isa_.table, threads);
    tuning::Choice choice{{block_n, tiles}, {{"block_n", block_n, "default"}, {"tiles_per_task", tiles, "default"}}, {}};
    if (tuning::is_anything_asked(options, tuned_chip(), name_)) {
      Result<tuning::Choice> asked =
          tuning::tuned_choice(problem, options, cpu_identity(name_, problem, threads), space(problem, threads));
      if (!asked.ok()) return asked.status();
      choice = std::move(asked).value();
      block_n = choice.values[0];
      tiles = choice.values[1];
    }
    auto runner =
        std::make_unique<TileRunner>(problem, isa_, name_, options, block_n, isa_.table->prefill_task[dtype], false, tiles);
    runner->set_parameters(std::move(choice));
    return std::unique_ptr<Runner>(std::move(runner));
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& /*device*/,
                              const AttentionOptions& options) const override {
    const int threads = thread_settings(options).num_threads;
    return cpu_tuning(cpu_identity(name_, problem, threads), space(problem, threads));
  }

 private:
  int usual_block_n(const Problem& problem) const {
    const IsaTable& table = *isa_.table;
    return table.block_n > 0 ? table.block_n : choose_block_n(problem, table.group[static_cast<int>(problem.dtype)]);
  }
  tuning::Space space(const Problem& problem, int threads) const {
    const int block_n = usual_block_n(problem);
    tuning::Space space;
    // Matrix tiles have a number of keys that is fixed.
    space.parameters = {
        {"block_n", block_n, isa_.table->block_n > 0 ? std::vector<int>{block_n} : std::vector<int>{64, kMaxBlockN}},
        {"tiles_per_task", choose_tiles_per_task(problem, *isa_.table, threads), {1, 2, 4, 8, 16, 32}}};
    tuning::include_usual(space);
    const int64_t tiles = (problem.seqlen_q + kBlockM - 1) / kBlockM;
    space.takes = [tiles](std::span<const int> values) {
      if (values[1] < 2 || values[1] < 2 * tiles) return Support{};
      return Support::no("the queries are " + std::to_string(tiles) + " tiles");
    };
    return space;
  }
};

class ShortKernel final : public FamilyKernel {
 public:
  using FamilyKernel::FamilyKernel;
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    auto runner = make_runner(problem, options);
    if (problem.variable_lengths()) return std::unique_ptr<Runner>(std::move(runner));  // their runs follow the lengths
    const int run = runner->run_tasks(), fetch = runner->fetches_ahead() ? 1 : 0;
    tuning::Choice choice{{run, fetch}, {{"run_tasks", run, "default"}, {"fetch_ahead", fetch, "default"}}, {}};
    if (tuning::is_anything_asked(options, tuned_chip(), name_)) {
      const int threads = thread_settings(options).num_threads;
      Result<tuning::Choice> asked =
          tuning::tuned_choice(problem, options, cpu_identity(name_, problem, threads), space(problem, *runner));
      if (!asked.ok()) return asked.status();
      choice = std::move(asked).value();
      runner->set_run(choice.values[0], choice.values[1] != 0);
    }
    runner->set_parameters(std::move(choice));
    return std::unique_ptr<Runner>(std::move(runner));
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& device, const AttentionOptions& options) const override {
    if (problem.variable_lengths()) return Kernel::tuning(problem, device, options);
    return cpu_tuning(cpu_identity(name_, problem, thread_settings(options).num_threads),
                      space(problem, *make_runner(problem, options)));
  }

 private:
  std::unique_ptr<TileRunner> make_runner(const Problem& problem, const AttentionOptions& options) const {
    return std::make_unique<TileRunner>(problem, isa_, name_, options,
                                        static_cast<int>(round_up(std::max<int64_t>(problem.seqlen_k, 1), 64)),
                                        isa_.table->short_task[static_cast<int>(problem.dtype)], true);
  }
  static tuning::Space space(const Problem& problem, const TileRunner& usual) {
    const int run = usual.run_tasks(), fetch = usual.fetches_ahead() ? 1 : 0;
    const int64_t tasks = problem.batch * problem.num_heads * ((problem.seqlen_q + kBlockM - 1) / kBlockM);
    tuning::Space space;
    space.parameters = {{"run_tasks", run, {1}}, {"fetch_ahead", fetch, {0}}};
    for (int n = 2; n <= std::min<int64_t>(tasks, kMostRunTasks); n *= 2) space.parameters[0].values.push_back(n);
    tuning::include_usual(space);
    space.takes = [run](std::span<const int> values) {
      if (values[1] == 0 || values[0] == run) return Support{};
      return Support::no("fetch_ahead is of runs of whole batch elements, " + std::to_string(run) + " tasks");
    };
    return space;
  }
};

}  // namespace

std::unique_ptr<const Kernel> make_prefill_kernel(const Family& family, const InstructionSet& isa) {
  return std::make_unique<PrefillKernel>(family, isa);
}

std::unique_ptr<const Kernel> make_short_kernel(const Family& family, const InstructionSet& isa) {
  return std::make_unique<ShortKernel>(family, isa);
}

}  // namespace fulmen::cpu
