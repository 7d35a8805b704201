#include <algorithm>
#include <atomic>
#include <string>

#include "cpu/choice.h"
#include "cpu/decode/call.h"
#include "cpu/families.h"
#include "cpu/tile/score_scale.h"
#include "cpu/tile/sequence_tasks.h"
#include "cpu/tuning.h"
#include "runtime/threading.h"

namespace fulmen::cpu {
namespace {

constexpr int64_t kMinSplitKeys = 1024;  // a shorter split costs more to merge than it gains
// Bytes of a block that is fetched during the one before it. A long block loads and stores the
// outputs less often, which counts where products take longer than memory.
constexpr int64_t kBlockBytes = 32 * 1024, kLongBlockBytes = 128 * 1024;
constexpr int64_t kLeastSplitKeys = 256;  // that may be asked for
constexpr int kMostSplits = 256;
// Enough for many cores to end together; fixed, so that results depend on no thread count.
constexpr int64_t kWantedTasks = 64;

// Whether a row of keys or values holds all heads, with no more between them than an interleaved
// layout has.
bool heads_fill_rows(const Problem& problem, const TensorSpec& spec, int64_t dim) {
  constexpr int64_t kInterleaved = 4;
  const int64_t head = spec.strides[2];
  return head <= kInterleaved * std::max<int64_t>(dim, 1) &&
         head <= spec.strides[1] / std::max<int64_t>(problem.num_kv_heads, 1);
}

// The only KV head, shared by more query rows than a tile has (latent attention), is as good as
// several in the same place, which share the query heads: that many, or 1 where there is no need or
// no way. Fewer rows than kFewestSharedRows, or one head's, would gain nothing by sharing.
constexpr int64_t kFewestSharedRows = 8;
int64_t heads_in_place(const Problem& p) {
  if (p.num_kv_heads != 1 || p.seqlen_q > kMaxDecodeRows / 2) return 1;
  for (int64_t heads = 1; heads < p.num_heads; ++heads) {
    const int64_t shared = p.num_heads / heads, rows = shared * p.seqlen_q;
    if (rows < kFewestSharedRows) break;
    if (p.num_heads % heads == 0 && rows <= kMaxDecodeRows) return heads;
  }
  return 1;
}
Problem with_heads_in_place(Problem p) {
  if (const int64_t heads = heads_in_place(p); heads > 1) {
    p.num_kv_heads = heads;
    p.k.strides[2] = p.v.strides[2] = 0;
  }
  return p;
}

class DecodeRunner final : public Runner {
 public:
  // splits: of the keys; 0: as many as make enough tasks.
  DecodeRunner(const Problem& asked, const InstructionSet& isa, std::string name,
               const AttentionOptions& options, int splits = 0)
      : problem_(with_heads_in_place(asked)),
        threads_(thread_settings(options)),
        table_(*isa.table) {
    const Problem& problem = problem_;
    call_.problem = &problem_;
    call_.band = {problem.seqlen_k, problem.diagonal, problem.window_left, problem.window_right};
    call_.scale = score_scale(problem);
    const bool in_tiles = !table_.amx_tiles && decode_rows(problem) > kFewDecodeRows;
    const bool unpacked = problem.quantized_kv();
    if (isa.fetch_blocks && !unpacked) call_.block_bytes = in_tiles ? kLongBlockBytes : kBlockBytes;
    call_.block_multiple = table_.amx_tiles ? 32 : isa.fetch_blocks || unpacked ? 16 : 64;
    // Heads that lie side by side in K's rows are streamed together; heads that lie apart are tasks
    // of their own.
    const bool side_by_side =
        heads_fill_rows(problem, problem.k, row_elements(problem.k_dtype, problem.head_dim)) &&
        heads_fill_rows(problem, problem.v, row_elements(problem.v_dtype, problem.head_dim_v));
    call_.heads_per_task =
        side_by_side
            ? static_cast<int>(std::min<int64_t>(
                  problem.num_kv_heads, table_.decode_slots / std::max(1, decode_slots(problem))))
            : 1;
    groups_ = (problem.num_kv_heads + call_.heads_per_task - 1) / call_.heads_per_task;
    layout_ = decode_scratch(call_, table_.lanes, table_.group[static_cast<int>(problem.dtype)]);
    call_.partial_stride = layout_.partial;
    const int group = table_.group[static_cast<int>(problem.dtype)];
    scratch_floats_ = table_.decode_floats != nullptr ? table_.decode_floats(call_)
                      : in_tiles ? decode_tile_scratch(call_, table_.lanes, group).total
                                 : layout_.total;
    call_.split_keys =
        splits > 0 ? keys_of_split(problem.seqlen_k, splits) : choose_split(problem.seqlen_k);
    call_.num_splits = splits_of(problem.seqlen_k, call_.split_keys);
    most_splits_ = problem.batch * call_.num_splits;
    if (problem.variable_lengths()) {
      // All sequences together have no more than those of equal ones, and a last one each.
      most_splits_ = problem.batch * (mean_splits(problem.seqlen_k) + 1);
    }
    const int block_n =
        in_tiles ? std::min(layout_.block_keys, kTileDecodeKeys) : layout_.block_keys;
    config_ = {std::move(name), decode_rows(problem), block_n, call_.num_splits,
               threads_.num_threads};
  }

  void set_parameters(tuning::Choice choice) {
    config_.parameters = std::move(choice.parameters);
    config_.notes = std::move(choice.notes);
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    if (empty()) return 0;
    const int64_t lists = problem_.variable_lengths() ? list_bytes() : 0;
    return static_cast<std::size_t>(counters_at() + counter_bytes() + lists);
  }

  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    if (empty()) return {};
    if (problem_.variable_lengths()) return run_sequences(tensors, workspace);
    ForwardCall call = call_;
    call.tensors = &tensors;
    auto* scratch = static_cast<float*>(workspace);
    float* partials = scratch + scratch_floats_ * threads_.num_threads;
    Counter* unfinished = counters(workspace);
    for (int64_t i = 0; i < problem_.batch * groups_; ++i)
      new (unfinished + i) Counter(call.num_splits);
    parallel_tasks(
        threads_, problem_.batch * groups_ * call.num_splits, [&](int64_t index, int worker) {
          const int64_t group = index / call.num_splits;
          const DecodeTask task =
              make_task(group / groups_, group % groups_, static_cast<int>(index % call.num_splits),
                        partials + group * call.num_splits * layout_.partial);
          attend(call, task, scratch + worker * scratch_floats_, unfinished[group]);
        });
    return {};
  }

 private:
  using Counter = std::atomic<int>;  // splits of a group of KV heads that are not done

  // Whether there is nothing to write, of however many sequences.
  bool empty() const noexcept { return problem_.batch == 0 || problem_.seqlen_q == 0; }

  int64_t mean_splits(int64_t keys) const noexcept {
    const int64_t most = std::max<int64_t>(1, keys / kMinSplitKeys);
    return std::clamp<int64_t>(kWantedTasks / std::max<int64_t>(1, problem_.batch * groups_), 1,
                               most);
  }
  // How many keys a split has, by the sequences' lengths alone. keys: of a sequence, or the mean
  // where they differ.
  int64_t choose_split(int64_t keys) const noexcept {
    return keys_of_split(keys, mean_splits(keys));
  }
  int64_t keys_of_split(int64_t keys, int64_t splits) const noexcept {
    const int64_t block = layout_.block_keys;
    return std::max<int64_t>(block, round_up((keys + splits - 1) / splits, block));
  }
  static int splits_of(int64_t keys, int64_t split_keys) noexcept {
    return static_cast<int>(std::max<int64_t>(1, (keys + split_keys - 1) / split_keys));
  }

  DecodeTask make_task(int64_t batch, int64_t group, int split, float* partials) const noexcept {
    DecodeTask task;
    task.batch = batch;
    task.kv_head = group * call_.heads_per_task;
    task.kv_heads = static_cast<int>(
        std::min<int64_t>(call_.heads_per_task, problem_.num_kv_heads - task.kv_head));
    task.split = split;
    task.partials = partials;
    return task;
  }

  void attend(const ForwardCall& call, const DecodeTask& task, float* scratch,
              Counter& unfinished) const noexcept {
    const int dtype = static_cast<int>(problem_.dtype);
    table_.decode_task[dtype](call, task, scratch);
    if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1)
      table_.decode_combine[dtype](call, task);
  }

  // A task is a split of one sequence and a group of heads. Long sequences have more splits than
  // short ones.
  Status run_sequences(const AttentionTensors& tensors, void* workspace) const {
    auto* scratch = static_cast<float*>(workspace);
    float* partials = scratch + scratch_floats_ * threads_.num_threads;
    Counter* unfinished = counters(workspace);
    auto* first_split =
        reinterpret_cast<int64_t*>(static_cast<char*>(workspace) + counters_at() + counter_bytes());
    auto* tasks = reinterpret_cast<SequenceTask*>(first_split + problem_.batch);
    const algorithm::SequenceTable table = sequence_table(problem_, tensors);
    int64_t keys = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) keys += table.sequence(b).k_len;
    const int64_t split_keys =
        choose_split((keys + problem_.batch - 1) / std::max<int64_t>(problem_.batch, 1));
    int64_t splits = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const int own = splits_of(table.sequence(b).k_len, split_keys);
      first_split[b] = splits;
      splits += own;
      for (int64_t g = 0; g < groups_; ++g) new (unfinished + b * groups_ + g) Counter(own);
    }
    const int64_t count = order_tasks(
        [&](const auto& put) {
          for (int64_t b = 0; b < problem_.batch; ++b) {
            const algorithm::Sequence s = table.sequence(b);
            if (s.q_len == 0) continue;
            const auto seen = s.band(problem_.top_left, problem_.window_left, problem_.window_right)
                                  .any(0, s.q_len);
            for (int64_t split = 0; split < splits_of(s.k_len, split_keys); ++split) {
              const int64_t begin = std::max<int64_t>(seen.begin, split * split_keys);
              put(b, split, std::min<int64_t>(seen.end, (split + 1) * split_keys) - begin);
            }
          }
        },
        tasks);
    parallel_tasks(
        threads_, count * groups_,
        [&](int64_t index, int worker) {
          const SequenceTask& split = tasks[index / groups_];
          const int64_t b = split.sequence, group = index % groups_;
          SequenceView view = sequence_view(problem_, tensors);
          ForwardCall call = call_;
          call_sequence(problem_, tensors, b, view, call);
          call.split_keys = split_keys;
          call.num_splits = splits_of(view.problem.seqlen_k, split_keys);
          const int64_t partial = first_split[b] * groups_ + group * call.num_splits;
          const DecodeTask task =
              make_task(b, group, split.part, partials + partial * layout_.partial);
          attend(call, task, scratch + worker * scratch_floats_, unfinished[b * groups_ + group]);
        },
        1);
    return {};
  }

  Counter* counters(void* workspace) const noexcept {
    return reinterpret_cast<Counter*>(static_cast<char*>(workspace) + counters_at());
  }
  int64_t counters_at() const noexcept {
    const int64_t floats =
        scratch_floats_ * threads_.num_threads + layout_.partial * groups_ * most_splits_;
    return floats * static_cast<int64_t>(sizeof(float));
  }
  int64_t counter_bytes() const noexcept {
    return round_up(problem_.batch * groups_ * static_cast<int64_t>(sizeof(Counter)), 64);
  }
  // Where each sequence's splits begin, and the tasks.
  int64_t list_bytes() const noexcept {
    return problem_.batch * static_cast<int64_t>(sizeof(int64_t)) +
           most_splits_ * static_cast<int64_t>(sizeof(SequenceTask));
  }

  Problem problem_;
  ThreadSettings threads_;
  const IsaTable& table_;
  ForwardCall call_;
  DecodeScratch layout_{};
  KernelConfig config_;
  int64_t scratch_floats_ = 0;
  int64_t groups_ = 0;       // of KV heads, a sequence
  int64_t most_splits_ = 0;  // of all sequences
};

class DecodeKernel final : public FamilyKernel {
 public:
  using FamilyKernel::FamilyKernel;
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    auto runner = std::make_unique<DecodeRunner>(problem, isa_, name_, options);
    // These decide themselves, in each run.
    if (problem.variable_lengths()) return std::unique_ptr<Runner>(std::move(runner));
    const int usual = runner->config().num_splits;
    if (!tuning::is_anything_asked(options, tuned_chip(), name_)) {
      runner->set_parameters({{usual}, {{"num_splits", usual, "default"}}, {}});
      return std::unique_ptr<Runner>(std::move(runner));
    }
    const int threads = thread_settings(options).num_threads;
    Result<tuning::Choice> asked = tuning::tuned_choice(
        problem, options, cpu_identity(name_, problem, threads), space(problem, usual));
    if (!asked.ok()) return asked.status();
    if (const int splits = asked->values[0]; splits != usual) {
      runner = std::make_unique<DecodeRunner>(problem, isa_, name_, options, splits);
      // Splits are whole blocks of keys: there may be fewer.
      asked->parameters[0].value = runner->config().num_splits;
    }
    runner->set_parameters(std::move(asked).value());
    return std::unique_ptr<Runner>(std::move(runner));
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& device,
                              const AttentionOptions& options) const override {
    if (problem.variable_lengths()) return Kernel::tuning(problem, device, options);
    const int usual = DecodeRunner(problem, isa_, name_, options).config().num_splits;
    return cpu_tuning(cpu_identity(name_, problem, thread_settings(options).num_threads),
                      space(problem, usual));
  }

 private:
  static tuning::Space space(const Problem& problem, int usual) {
    tuning::Space space;
    space.parameters = {{"num_splits", usual, {1}}};
    for (int splits = 2; splits <= kMostSplits; splits *= 2)
      space.parameters[0].values.push_back(splits);
    tuning::include_usual(space);
    space.takes = [usual, keys = problem.seqlen_k](std::span<const int> values) {
      if (values[0] == 1 || values[0] == usual || values[0] <= keys / kLeastSplitKeys)
        return Support{};
      return Support::no("a split has " + std::to_string(kLeastSplitKeys) +
                         " keys at least, and there are " + std::to_string(keys));
    };
    return space;
  }
};

}  // namespace

Support takes_decode(const Problem& problem) {
  const int64_t rows = shared_rows(problem);
  if (rows <= kMaxDecodeRows || heads_in_place(problem) > 1) return {};
  std::string why = std::to_string(rows) +
                    " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
                    std::to_string(kMaxDecodeRows) + " are served";
  if (problem.num_kv_heads == 1) {
    why += "; of one KV head more, where a number of query heads that divides num_heads (" +
           std::to_string(problem.num_heads) + ") has " + std::to_string(kFewestSharedRows) +
           " to " + std::to_string(kMaxDecodeRows) + " of them";
  }
  return Support::no(std::move(why));
}

std::unique_ptr<const Kernel> make_decode_kernel(const Family& family, const InstructionSet& isa) {
  return std::make_unique<DecodeKernel>(family, isa);
}

}  // namespace fulmen::cpu
