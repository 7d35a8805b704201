#include <algorithm>
#include <memory>
#include <string>

#include "cpu/families.h"
#include "cpu/short/call.h"
#include "cpu/tile/task_runs.h"
#include "cpu/tile_runner.h"
#include "cpu/tuning.h"

namespace fulmen::cpu {
namespace {

constexpr int kMostRunTasks = 4096;  // that may be asked for

// Returns true if a cache keeps the queries, keys and values of a batch element while the next
// one's are fetched.
bool two_fit(const Problem& p, int64_t cache_bytes) {
  const int64_t elements = p.num_heads * p.seqlen_q * p.head_dim +
                           p.num_kv_heads * p.seqlen_k * (p.head_dim + p.head_dim_v);
  return 2 * elements * (p.dtype == DType::fp32 ? 4 : 2) <= cache_bytes;
}

// Returns true if the next batch element is fetched during this one. Intel: where two lie in L2
// beside the worker's scratch. AMD: where the call comes from memory; what L2 has no room for waits
// in a core's share of L3, 4 MB. Elements that are in L3 already are 3 % slower so.
bool fetches_batches(const InstructionSet& isa, const Problem& problem, bool from_memory) {
  if (isa.fetch_blocks) return two_fit(problem, level2_cache_bytes() / 4 * 3);
  return isa.fetch_batches && from_memory && two_fit(problem, 4 << 20);
}

TileTasks usual_tasks(const Problem& problem, const InstructionSet& isa, int threads) {
  const IsaTable& table = *isa.table;
  const int dtype = static_cast<int>(problem.dtype);
  TileTasks tasks;
  tasks.table = &table;
  tasks.function = table.short_task[dtype];
  tasks.block_n = static_cast<int>(round_up(std::max<int64_t>(problem.seqlen_k, 1), 64));
  // One tile, but on matrix tiles, where tasks are cut as those of prefill.
  tasks.tiles_per_task = table.amx_tiles ? choose_tiles_per_task(problem, table, threads) : 1;
  tasks.scratch_floats = table.short_floats != nullptr
                             ? table.short_floats(problem)
                             : short_scratch(problem, table.lanes, table.group[dtype]).total;
  tasks.stream_output = problem.bytes() > kStreamBytes;
  tasks.fetch_into_l2 = isa.fetch_blocks;
  if (problem.variable_lengths()) {
    tasks.run_length = std::min(problem.num_heads, kMaxRun);
    return tasks;
  }
  const int64_t blocks = (query_tiles(problem) + tasks.tiles_per_task - 1) / tasks.tiles_per_task;
  const int64_t of_sequence = problem.num_heads * blocks;
  tasks.run_length = choose_run(problem, threads, problem.batch * of_sequence, of_sequence);
  tasks.fetch_batches = !table.amx_tiles && next_sequence_is_own(problem, threads) &&
                        fetches_batches(isa, problem, tasks.stream_output);
  return tasks;
}

// The run length as a parameter.
int run_tasks(const TileTasks& tasks) {
  return static_cast<int>(std::min<int64_t>(tasks.run_length, kMostRunTasks));
}

class ShortKernel final : public FamilyKernel {
 public:
  using FamilyKernel::FamilyKernel;
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    const ThreadSettings threads = thread_settings(options);
    TileTasks tasks = usual_tasks(problem, isa_, threads.num_threads);
    tuning::Choice choice;  // none where lengths differ: runs follow them
    if (!problem.variable_lengths()) {
      Result<tuning::Choice> chosen = choose(problem, options, threads.num_threads, tasks);
      if (!chosen.ok()) return chosen.status();
      choice = std::move(chosen).value();
      if (choice.values[0] != run_tasks(tasks)) tasks.run_length = choice.values[0];
      tasks.fetch_batches = choice.values[1] != 0;
    }
    auto runner = std::make_unique<TileRunner>(problem, name_, threads, tasks);
    runner->set_parameters(std::move(choice));
    return std::unique_ptr<Runner>(std::move(runner));
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& device,
                              const AttentionOptions& options) const override {
    if (problem.variable_lengths()) return Kernel::tuning(problem, device, options);
    const int threads = thread_settings(options).num_threads;
    return cpu_tuning(cpu_identity(name_, problem, threads),
                      space(problem, usual_tasks(problem, isa_, threads)));
  }

 private:
  // The schedule: tasks that a worker takes at once, and whether the next batch element is fetched.
  Result<tuning::Choice> choose(const Problem& problem, const AttentionOptions& options,
                                int threads, const TileTasks& usual) const {
    if (tuning::is_anything_asked(options, tuned_chip(), name_)) {
      return tuning::tuned_choice(problem, options, cpu_identity(name_, problem, threads),
                                  space(problem, usual));
    }
    const int run = run_tasks(usual), fetch = usual.fetch_batches ? 1 : 0;
    return tuning::Choice{
        {run, fetch}, {{"run_tasks", run, "default"}, {"fetch_ahead", fetch, "default"}}, {}};
  }
  static tuning::Space space(const Problem& problem, const TileTasks& usual) {
    const int run = run_tasks(usual), fetch = usual.fetch_batches ? 1 : 0;
    const int64_t tasks = problem.batch * problem.num_heads * query_tiles(problem);
    tuning::Space space;
    space.parameters = {{"run_tasks", run, {1}}, {"fetch_ahead", fetch, {0}}};
    for (int n = 2; n <= std::min<int64_t>(tasks, kMostRunTasks); n *= 2)
      space.parameters[0].values.push_back(n);
    tuning::include_usual(space);
    space.takes = [run](std::span<const int> values) {
      if (values[1] == 0 || values[0] == run) return Support{};
      return Support::no("fetch_ahead is of runs of whole batch elements, " + std::to_string(run) +
                         " tasks");
    };
    return space;
  }
};

}  // namespace

// One score row holds them.
Support takes_short(const Problem& problem) {
  constexpr int64_t kShortKeys = 128;
  if (problem.seqlen_k <= kShortKeys) return {};
  return Support::no("seqlen_k is " + std::to_string(problem.seqlen_k) + ", at most " +
                     std::to_string(kShortKeys) + " fit one score row");
}

std::unique_ptr<const Kernel> make_short_kernel(const Family& family, const InstructionSet& isa) {
  return std::make_unique<ShortKernel>(family, isa);
}

}  // namespace fulmen::cpu
