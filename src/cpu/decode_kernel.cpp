#include "cpu/decode_kernel.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "cpu/isa_support.h"
#include "cpu/threading.h"

namespace fulmen::cpu {
namespace {

constexpr int64_t kMinSplitKeys = 1024;  // a shorter split costs more to merge than it gains
constexpr int64_t kWantedTasks = 64;     // enough for many cores to end together; fixed, so that results depend on no thread count

class DecodeRunner final : public Runner {
 public:
  DecodeRunner(const Problem& problem, const InstructionSet& isa, std::string name, const AttentionOptions& options)
      : problem_(problem), threads_(thread_settings(options)), table_(*isa.table) {
    call_.problem = &problem_;
    call_.band = {problem.seqlen_k, problem.diagonal, problem.window_left, problem.window_right};
    call_.scale = score_scale(problem);
    // Heads that lie side by side in K's rows are streamed together; heads that lie apart are tasks of their own.
    const bool side_by_side = problem.k.strides[2] < problem.k.strides[1];
    call_.heads_per_task =
        side_by_side ? static_cast<int>(std::min<int64_t>(problem.num_kv_heads, kBlockM / std::max(1, decode_slots(problem)))) : 1;
    groups_ = (problem.num_kv_heads + call_.heads_per_task - 1) / call_.heads_per_task;
    layout_ = decode_scratch(problem, table_.lanes, table_.group[static_cast<int>(problem.dtype)], call_.heads_per_task);
    const int64_t most = std::max<int64_t>(1, problem.seqlen_k / kMinSplitKeys);
    const int64_t splits = std::clamp<int64_t>(kWantedTasks / std::max<int64_t>(1, problem.batch * groups_), 1, most);
    const int64_t block = layout_.block_keys;
    call_.split_keys = std::max<int64_t>(block, round_up((problem.seqlen_k + splits - 1) / splits, block));
    call_.num_splits = static_cast<int>(std::max<int64_t>(1, (problem.seqlen_k + call_.split_keys - 1) / call_.split_keys));
    config_ = {std::move(name), decode_rows(problem), layout_.block_keys, call_.num_splits, threads_.num_threads};
  }

  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    return static_cast<std::size_t>(counters_at() + round_up(problem_.batch * groups_ * static_cast<int64_t>(sizeof(Counter)), 64));
  }

  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    ForwardCall call = call_;
    call.tensors = &tensors;
    auto* scratch = static_cast<float*>(workspace);
    call.partials = scratch + layout_.total * threads_.num_threads;
    auto* unfinished = reinterpret_cast<Counter*>(static_cast<char*>(workspace) + counters_at());
    for (int64_t i = 0; i < problem_.batch * groups_; ++i) new (unfinished + i) Counter(call.num_splits);
    const int dtype = static_cast<int>(problem_.dtype);
    parallel_tasks(threads_, problem_.batch * groups_ * call.num_splits, [&](int64_t index, int worker) {
      const int64_t group = index / call.num_splits;
      DecodeTask task;
      task.batch = group / groups_;
      task.kv_head = group % groups_ * call.heads_per_task;
      task.kv_heads = static_cast<int>(std::min<int64_t>(call.heads_per_task, problem_.num_kv_heads - task.kv_head));
      task.split = static_cast<int>(index % call.num_splits);
      table_.decode_task[dtype](call, task, scratch + worker * layout_.total);
      if (unfinished[group].fetch_sub(1, std::memory_order_acq_rel) == 1) table_.decode_combine[dtype](call, task);
    });
    return {};
  }

 private:
  using Counter = std::atomic<int>;  // splits of a group of KV heads that are not done

  int64_t counters_at() const noexcept {
    const int64_t floats = layout_.total * threads_.num_threads + layout_.partial * problem_.batch * groups_ * call_.num_splits;
    return floats * static_cast<int64_t>(sizeof(float));
  }

  Problem problem_;
  ThreadSettings threads_;
  const IsaTable& table_;
  ForwardCall call_;
  DecodeScratch layout_{};
  KernelConfig config_;
  int64_t groups_ = 0;  // of KV heads, a sequence
};

class DecodeKernel final : public Kernel {
 public:
  explicit DecodeKernel(const InstructionSet& isa) : isa_(isa), name_(std::string("cpu.decode.") + isa.table->name) {}
  std::string_view name() const noexcept override { return name_; }
  Support supports(const Problem& problem, const std::string& /*device*/) const override {
    const int64_t rows = problem.group_size() * problem.seqlen_q;
    if (rows > kMaxDecodeRows) {
      return Support::no(std::to_string(rows) + " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
                         std::to_string(kMaxDecodeRows) + " are served");
    }
    return isa_support(isa_, isa_.table->decode_task[static_cast<int>(problem.dtype)] != nullptr, problem);
  }
  double rank(const Problem& /*problem*/) const override { return 30.0 + isa_.preference; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<DecodeRunner>(problem, isa_, name_, options));
  }

 private:
  const InstructionSet& isa_;
  std::string name_;
};

}  // namespace

std::unique_ptr<const Kernel> make_decode_kernel(const InstructionSet& isa) { return std::make_unique<DecodeKernel>(isa); }

}  // namespace fulmen::cpu
