#include "cpu/tile_runner.h"

#include <algorithm>
#include <utility>

#include "cpu/bound_functions.h"
#include "cpu/tile/score_scale.h"

namespace fulmen::cpu {
namespace {

// Most query tiles that share a packed key tile: all stay in L2, large beside matrix tiles.
int max_tiles_per_task(const Problem& p, const IsaTable& table) {
  if (table.amx_tiles && std::max(p.head_dim, p.head_dim_v) <= 64) return 32;
  return has_narrow_rows(p, table.group[static_cast<int>(p.dtype)]) ? 16 : 8;
}

}  // namespace

bool has_narrow_rows(const Problem& problem, int group) {
  constexpr int64_t kNarrowWords = 64;
  return (std::max(problem.head_dim, problem.head_dim_v) + group - 1) / group <= kNarrowWords;
}

int choose_tiles_per_task(const Problem& problem, const IsaTable& table, int threads) {
  const int64_t tiles = query_tiles(problem);
  const int64_t heads = problem.batch * problem.num_heads;
  int per_task =
      static_cast<int>(std::clamp<int64_t>(tiles, 1, max_tiles_per_task(problem, table)));
  while (per_task > 1 && heads * ((tiles + per_task - 1) / per_task) < 4LL * threads) per_task /= 2;
  return per_task;
}

TileRunner::TileRunner(const Problem& problem, std::string name, const ThreadSettings& threads,
                       const TileTasks& tasks)
    : problem_(problem),
      threads_(threads),
      function_(tasks.function),
      scratch_floats_(round_up(tasks.scratch_floats, 16)),
      run_length_(tasks.run_length),
      task_rows_(static_cast<int64_t>(tasks.tiles_per_task) * kBlockM),
      blocks_((problem.seqlen_q + task_rows_ - 1) / task_rows_) {
  call_.problem = &problem_;
  call_.band = {problem.seqlen_k, problem.diagonal, problem.window_left, problem.window_right};
  call_.scale = score_scale(problem);
  call_.block_n = tasks.block_n;
  call_.tiles_per_task = tasks.tiles_per_task;
  call_.stream_output = tasks.stream_output;
  call_.fetch_batches = tasks.fetch_batches;
  call_.fetch_into_l2 = tasks.fetch_into_l2;
  if (tasks.summarises_mask) mask_ = MaskTiles(problem_, threads_.num_threads);
  if (tasks.int8 != nullptr) coded_keys_ = CodedKeys(problem_, *tasks.int8, tasks.lanes);
  if (problem.variable_lengths()) {
    const int64_t most = problem.batch * blocks_;
    most_tasks_ =
        problem.packed_q() ? std::min(most, problem.total_q / task_rows_ + problem.batch) : most;
  }
  config_ = {std::move(name), kBlockM, tasks.block_n, 1, threads_.num_threads};
  compiled_ = CompiledFunctions(problem_, *tasks.table, config_.notes);
}

void TileRunner::set_parameters(tuning::Choice choice) {
  config_.parameters = std::move(choice.parameters);
  config_.notes.insert(config_.notes.begin(), choice.notes.begin(), choice.notes.end());
}

std::size_t TileRunner::workspace_bytes() const noexcept {
  return static_cast<std::size_t>(scratch_floats_) * sizeof(float) *
             static_cast<std::size_t>(threads_.num_threads) +
         static_cast<std::size_t>(mask_.bytes()) + static_cast<std::size_t>(coded_keys_.bytes()) +
         static_cast<std::size_t>(most_tasks_) * sizeof(SequenceTask);
}

Status TileRunner::run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const {
  auto* scratch = static_cast<float*>(workspace);
  char* behind_scratch = static_cast<char*>(workspace) + scratch_floats_ * threads_.num_threads *
                                                             static_cast<int64_t>(sizeof(float));
  ForwardCall call = call_;
  call.tensors = &tensors;
  BoundFunctions functions(problem_, tensors, compiled_);
  call.score_function = functions.score();
  call.mask_function = functions.mask();
  call.mask = mask_.summarise(tensors, threads_, call.mask_function, behind_scratch);
  char* behind_mask = behind_scratch + mask_.bytes();
  call.codes = coded_keys_.at(behind_mask);
  coded_keys_.write(call, threads_, scratch, scratch_floats_);
  if (problem_.variable_lengths()) {
    run_sequences(tensors, call, scratch,
                  reinterpret_cast<SequenceTask*>(behind_mask + coded_keys_.bytes()));
    return {};
  }
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

// A task is a block of queries of one sequence and run_length_ heads.
void TileRunner::run_sequences(const AttentionTensors& tensors, const ForwardCall& all,
                               float* scratch, SequenceTask* tasks) const {
  const algorithm::SequenceTable table = sequence_table(problem_, tensors);
  const int64_t blocks = order_tasks(
      [&](const auto& put) {
        for (int64_t b = 0; b < problem_.batch; ++b) {
          const algorithm::Sequence s = table.sequence(b);
          const algorithm::Band band =
              s.band(problem_.top_left, problem_.window_left, problem_.window_right);
          for (int64_t row = 0; row < s.q_len; row += task_rows_) {
            const int64_t end = std::min<int64_t>(s.q_len, row + task_rows_);
            const auto keys = band.any(row, end);
            // A row costs something, too.
            put(b, row / task_rows_, (end - row) * (keys.end - keys.begin + kBlockM));
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
        ForwardCall call = all;
        call_sequence(problem_, tensors, block.sequence, view, call);
        const int64_t first = block.part * task_rows_,
                      head_end = std::min(problem_.num_heads, (index % runs + 1) * run_length_);
        for (int64_t head = index % runs * run_length_; head < head_end; ++head) {
          const PrefillRows task{block.sequence, head, first,
                                 std::min(view.problem.seqlen_q, first + task_rows_)};
          function_(call, task, scratch + worker * scratch_floats_);
        }
      },
      1);
}

PrefillRows TileRunner::make_task(int64_t index) const {
  const int64_t head = index / blocks_;
  const int64_t block = blocks_ - 1 - index % blocks_;  // causal: the longest rows of a head first
  return {head / problem_.num_heads, head % problem_.num_heads, block * task_rows_,
          std::min(problem_.seqlen_q, (block + 1) * task_rows_)};
}

}  // namespace fulmen::cpu
