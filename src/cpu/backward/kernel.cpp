#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "algorithm/online_softmax.h"
#include "cpu/backward/call.h"
#include "cpu/bound_functions.h"
#include "cpu/families.h"
#include "cpu/mask_tiles.h"
#include "cpu/tile/score_scale.h"
#include "cpu/tile/sequence_tasks.h"
#include "cpu/tile/task_runs.h"
#include "runtime/float_formats.h"
#include "runtime/threading.h"

namespace fulmen::cpu {
namespace {

// Tasks that a problem is cut into where it can be: enough for the threads of small machines; and
// for those of most, where each split of the keys is so long that adding up its part of dQ costs
// less than 1 %.
constexpr int64_t kTasks = 16;
constexpr int64_t kManyTasks = 64;
constexpr int64_t kLongSplit = 2048;
// Each split has its own dQ in fp32: no more of them than take so many times the memory of inputs
// and outputs. That is fewer splits than tasks are wanted where one KV head has many query heads:
// 16 would take 8 times that memory in bf16.
constexpr double kMostSums = 4;
// Bytes of a block of keys: K, V, dK and dV stay in L2, beside the tiles. No fewer keys than that:
// each block reads and writes dQ. Processors with matrix tiles have 2 MB of L2; there as many as
// can be.
constexpr int64_t kHeldBytes = 512 << 10;
constexpr int64_t kMinHeldKeys = 256;
// Most floats of all parts of the sums of dbias together, unless one part is bigger.
constexpr int64_t kBiasSumFloats = 16 << 20;

// Bytes of the heads whose rows are fetched together: 512 to 1,536 were about as good.
constexpr int64_t kFetchedRow = 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Key rows of a tile, as in the forward pass: 128 where P, dS and the operands of narrow heads
// leave room for them. Measured on Zen 5: +1 % with 128 for narrow heads, -3 % for others. On
// matrix tiles 128 of all.
int choose_block_n(const Problem& p, int group, bool amx_tiles) {
  return p.seqlen_k > 64 && (amx_tiles || ceil_div(std::max(p.head_dim, p.head_dim_v), group) <= 64)
             ? 128
             : 64;
}

int64_t choose_held_keys(const Problem& p, int lanes, int group, int block_n, bool amx_tiles) {
  const int64_t operands = round_up(ceil_div(p.head_dim, group), lanes) +
                           round_up(ceil_div(p.head_dim_v, group), lanes) +
                           (group > 1 ? round_up(p.head_dim, lanes) / group : 0);
  const int64_t floats = operands + round_up(p.head_dim, lanes) + round_up(p.head_dim_v, lanes);
  const int64_t fitting = kHeldBytes / (floats * static_cast<int64_t>(sizeof(float)));
  const int64_t most =
      amx_tiles ? kMaxHeldKeys : std::clamp<int64_t>(fitting, kMinHeldKeys, kMaxHeldKeys);
  const int64_t tiles = std::max<int64_t>(most / block_n, 1);
  return std::min(tiles, std::max<int64_t>(ceil_div(p.seqlen_k, block_n), 1)) * block_n;
}

int64_t bias_rows(const Problem& p, const BackwardCut& cut) {
  return (cut.sums_batch ? 1 : p.batch) * (cut.sums_heads ? 1 : p.num_heads) *
         (cut.sums_queries ? 1 : p.seqlen_q);
}

int64_t most_splits(const Problem& p, int64_t slot_floats) {
  Problem all = p;  // whichever gradients are wanted, dq has the same bits
  all.dq.present = all.dk.present = all.dv.present = true;
  all.dbias.present = false;
  const double split_bytes =
      static_cast<double>(p.batch * p.num_kv_heads * slot_floats) * sizeof(float);
  return std::max<int64_t>(
      static_cast<int64_t>(kMostSums * all.bytes() / std::max(split_bytes, 1.0)), 1);
}

// Of the sums of all gradients of functions' tensors.
int64_t function_gradient_floats(const Problem& p) {
  int64_t floats = 0;
  for (const ScoreFunctions::Tensor& tensor : p.functions.tensors()) {
    if (tensor.has_gradient) floats += round_up(elements_of(tensor), 16);
  }
  return floats;
}

BackwardCut choose_cut(const Problem& p, int64_t held_keys, int64_t slot_floats) {
  BackwardCut cut;
  cut.held_keys = held_keys;
  if (p.dbias.present) {
    cut.sums_batch = p.dbias.strides[0] == 0 && p.batch > 1;
    cut.sums_heads = p.dbias.strides[1] == 0 && p.num_heads > 1;
    cut.sums_queries = p.dbias.strides[2] == 0 && p.seqlen_q > 1;
  }
  if (has_function_gradients(p)) cut.sums_batch = cut.sums_heads = true;
  cut.set_units = (cut.sums_batch ? p.batch : 1) * (cut.sums_heads ? p.num_kv_heads : 1);
  cut.sets = p.batch * p.num_kv_heads / std::max<int64_t>(cut.set_units, 1);
  const int64_t sum_floats = std::max<int64_t>(
      p.dbias.present ? bias_rows(p, cut) * p.seqlen_k : function_gradient_floats(p), 1);
  cut.bias_parts = std::min({cut.set_units, ceil_div(kTasks, std::max<int64_t>(cut.sets, 1)),
                             std::max<int64_t>(kBiasSumFloats / sum_floats, 1)});
  const int64_t blocks = std::max<int64_t>(ceil_div(p.seqlen_k, held_keys), 1);
  const int64_t unsplit = std::max<int64_t>(cut.sets * cut.bias_parts, 1);
  const int64_t long_splits = std::min(ceil_div(kManyTasks, unsplit), p.seqlen_k / kLongSplit);
  const int64_t splits = has_function_gradients(p) && sum_floats > kBiasSumFloats / kTasks
                             ? 1
                             : std::min({blocks, std::max(ceil_div(kTasks, unsplit), long_splits),
                                         most_splits(p, slot_floats)});
  cut.split_keys = ceil_div(blocks, splits) * held_keys;
  cut.num_splits = std::max<int64_t>(ceil_div(p.seqlen_k, cut.split_keys), 1);
  return cut;
}

double log2_of_e(const Problem& p, const ScoreScale& scale) {
  const double ratio = static_cast<double>(scale.log2_scale) / static_cast<double>(p.softmax_scale);
  return std::isnormal(scale.log2_scale) ? ratio : static_cast<double>(algorithm::kLog2E);
}

class BackwardRunner final : public Runner {
 public:
  BackwardRunner(const Problem& problem, const InstructionSet& isa, std::string name,
                 const AttentionOptions& options)
      : problem_(problem),
        threads_(thread_settings(options)),
        function_(isa.table->backward[static_cast<int>(problem.dtype)]) {
    const int lanes = isa.table->lanes, group = isa.table->group[static_cast<int>(problem.dtype)];
    const int block_n = choose_block_n(problem, group, isa.table->amx_tiles);
    call_.problem = &problem_;
    call_.band = {problem.seqlen_k, problem.diagonal, problem.window_left, problem.window_right};
    call_.scale = score_scale(problem);
    call_.lse_scale = log2_of_e(problem, call_.scale);
    call_.block_n = block_n;
    call_.slot_floats = query_sums(problem, lanes).total;
    call_.cut =
        choose_cut(problem, choose_held_keys(problem, lanes, group, block_n, isa.table->amx_tiles),
                   call_.slot_floats);
    has_functions_ = has_function_gradients(problem);
    call_.wants_dx =
        problem.dq.present || problem.dk.present || problem.dbias.present || has_functions_;
    const BackwardCut& cut = call_.cut;

    amx_tiles_ = isa.table->amx_tiles;
    choose_direct(call_);
    call_.stream_output = problem.bytes() > kStreamBytes;
    call_.fetch_into_l2 = isa.fetch_blocks;
    if (!problem.variable_lengths() && cut.num_splits == 1 && cut.set_units == 1 &&
        problem.seqlen_q <= kBlockM && problem.seqlen_k <= kMaxBlockN) {
      call_.cut.run_units =
          choose_run(problem, threads_.num_threads, cut.sets, problem.num_kv_heads);
      if (isa.fetch_blocks && next_sequence_is_own(problem, threads_.num_threads))
        call_.fetch_heads = choose_fetched(problem);
    }

    const auto floats = isa.table->backward_floats;
    scratch_floats_ = floats != nullptr
                          ? floats(problem, block_n, cut.held_keys)
                          : backward_scratch(problem, lanes, group, block_n, cut.held_keys).total;
    const int64_t units = problem.batch * problem.num_kv_heads;
    if (cut.num_splits > 1 || cut.held_keys < cut.split_keys) {
      const bool each = cut.num_splits > 1 || units <= threads_.num_threads;
      call_.unit_slots = each ? units * cut.num_splits : 0;
      sums_floats_ = call_.slot_floats * (each ? call_.unit_slots : threads_.num_threads);
    }
    if (cut.any_sum() && problem.dbias.present) choose_bias_sums();
    if (has_functions_) choose_function_sums();
    if (!call_.direct_keys && !call_.direct_queries)
      mask_ = MaskTiles(problem_, threads_.num_threads);
    config_ = {std::move(name), kBlockM, block_n, static_cast<int>(cut.num_splits),
               threads_.num_threads};
    compiled_ = CompiledFunctions(problem_, *isa.table, config_.notes);
  }

  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    const int64_t tasks = problem_.variable_lengths() ? most_tasks() : 0;
    return static_cast<std::size_t>(scratch_floats_ * threads_.num_threads + all_sums_floats()) *
               sizeof(float) +
           static_cast<std::size_t>(mask_.bytes()) +
           static_cast<std::size_t>(tasks) * sizeof(SequenceTask);
  }

  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    BackwardCall call = call_;
    call.tensors = &tensors;
    auto* scratch = static_cast<float*>(workspace);
    float* sums = scratch + scratch_floats_ * threads_.num_threads;
    call.sums = sums_floats_ > 0 ? sums : nullptr;
    auto* behind_sums = reinterpret_cast<char*>(sums + all_sums_floats());
    const BoundFunctions functions(problem_, tensors, compiled_);
    call.score_function = functions.gradient();
    call.mask_function = functions.mask();
    call.mask = mask_.summarise(tensors, threads_, call.mask_function, behind_sums);
    if (has_functions_) {
      call.function_sums = sums + sums_floats_ + bias_floats_;
      call.function_offsets = function_offsets_.data();
    }
    if (problem_.variable_lengths()) {
      run_sequences(tensors, call, scratch,
                    reinterpret_cast<SequenceTask*>(behind_sums + mask_.bytes()));
      return {};
    }
    if (call.cut.any_sum() && problem_.dbias.present) {
      call.bias_sums.data =
          bias_floats_ > 0 ? sums + sums_floats_ : static_cast<float*>(tensors.dbias.data);
    }
    const auto step = [&](BackwardStep kind, int64_t tasks) {
      parallel_tasks(threads_, tasks, [&](int64_t task, int worker) {
        function_(call, kind, task, worker, scratch + worker * scratch_floats_);
      });
    };
    if (problem_.dq.present || problem_.dk.present || problem_.dv.present ||
        problem_.dbias.present || has_functions_) {
      std::fill_n(call.function_sums, has_functions_ ? function_floats_ : 0, 0.0F);
      step(BackwardStep::attend, call.cut.tasks());
    }
    if (problem_.dq.present && call.cut.num_splits > 1) {
      step(BackwardStep::reduce_dq,
           problem_.batch * problem_.num_heads * ceil_div(problem_.seqlen_q, kBlockM));
    }
    if (bias_floats_ > 0) step(BackwardStep::reduce_bias, bias_rows(problem_, call.cut));
    if (problem_.dsinks.present) step(BackwardStep::sinks, problem_.num_heads);
    store_function_gradients(call, tensors);
    return {};
  }

 private:
  // Whether gradients of keys, or of queries, go straight from registers to memory.
  void choose_direct(BackwardCall& call) const {
    const Problem& p = *call.problem;
    // Then every product is over whole tiles.
    const bool all_keys = !amx_tiles_ && !p.functions.any() && !p.has_block_mask() &&
                          call.band.left < 0 && call.band.right < 0;
    call.direct_keys = all_keys && p.seqlen_q > 0 && p.seqlen_q <= kBlockM && p.group_size() == 1;
    // Where other sequences' keys are split, dQ is the sum of its parts in every one.
    call.direct_queries =
        all_keys && p.seqlen_k > 0 && p.seqlen_k <= call.block_n && call.cut.num_splits == 1;
  }

  void choose_function_sums() {
    int64_t at = 0;
    for (const ScoreFunctions::Tensor& tensor : problem_.functions.tensors()) {
      function_offsets_.push_back(at);
      if (tensor.has_gradient) at += round_up(elements_of(tensor), 16);
    }
    call_.function_slot = at;
    function_floats_ = at * call_.cut.bias_parts * call_.cut.num_splits;
  }

  // The gradients of functions' tensors from the sums of parts and splits, in order.
  void store_function_gradients(const BackwardCall& call, const AttentionTensors& tensors) const {
    constexpr int64_t kChunk = 1 << 14;  // elements of a task
    const auto specs = problem_.functions.tensors();
    for (std::size_t t = 0; t < specs.size(); ++t) {
      const ScoreFunctions::Tensor& spec = specs[t];
      if (!spec.has_gradient) continue;
      // Where no function reads a tensor there are no sums.
      const float* sums = has_functions_ ? call.function_sums + function_offsets_[t] : nullptr;
      const int64_t count = elements_of(spec);
      parallel_tasks(threads_, ceil_div(count, kChunk), [&](int64_t chunk, int /*worker*/) {
        const int64_t end = std::min(count, (chunk + 1) * kChunk);
        for (int64_t at = chunk * kChunk; at < end; ++at)
          reference::store_float(tensors.function_tensors[t].gradient.data, spec.gradient_dtype,
                                 gradient_offset(spec, at), sum_of_slots(call, sums, at));
      });
    }
  }
  static float sum_of_slots(const BackwardCall& call, const float* sums, int64_t at) {
    double sum = 0;
    const int64_t slots = call.cut.bias_parts * call.cut.num_splits;
    for (int64_t slot = 0; slot < slots && sums != nullptr; ++slot)
      sum += static_cast<double>(sums[slot * call.function_slot + at]);
    return static_cast<float>(sum);
  }

  // Whole cache lines: what is behind them is no floats.
  int64_t all_sums_floats() const {
    return round_up(sums_floats_ + bias_floats_ + function_floats_, int64_t{16});
  }

  // The most tasks of sequences of different lengths: splits of the keys, or tiles of queries.
  int64_t most_tasks() const {
    const int64_t tiles = ceil_div(problem_.seqlen_q, kBlockM);
    const int64_t query_tiles =
        problem_.packed_q() ? problem_.total_q / kBlockM + problem_.batch : problem_.batch * tiles;
    return std::max(problem_.batch * call_.cut.num_splits,
                    std::min(query_tiles, problem_.batch * tiles));
  }

  // The call of one of the sequences. The cut, and with it the scratch, stays the plan's.
  void call_of(const AttentionTensors& tensors, int64_t b, SequenceView& view,
               BackwardCall& call) const {
    select_sequence(problem_, tensors, b, view);
    const Problem& p = view.problem;
    call.problem = &p;
    call.tensors = &view.tensors;
    call.band = {p.seqlen_k, p.diagonal, p.window_left, p.window_right};
    choose_direct(call);
  }

  // A task is a split of one sequence and KV head, then a tile of queries of one head: the longest
  // first.
  void run_sequences(const AttentionTensors& tensors, const BackwardCall& all, float* scratch,
                     SequenceTask* tasks) const {
    const algorithm::SequenceTable table = sequence_table(problem_, tensors);
    const int64_t splits = call_.cut.num_splits, split_keys = call_.cut.split_keys,
                  kv_heads = problem_.num_kv_heads;
    const auto step = [&](BackwardStep kind, int64_t parts, int64_t heads, const auto& number) {
      parallel_tasks(
          threads_, parts * heads,
          [&](int64_t index, int worker) {
            SequenceView view = sequence_view(problem_, tensors);
            BackwardCall call = all;
            const SequenceTask& task = tasks[index / heads];
            call_of(tensors, task.sequence, view, call);
            const int64_t head = task.sequence * heads + index % heads;
            function_(call, kind, head * number(view.problem) + task.part, worker,
                      scratch + worker * scratch_floats_);
          },
          1);
    };
    if (problem_.dq.present || problem_.dk.present || problem_.dv.present) {
      const auto parts_of_keys = [&](const auto& put) {
        for (int64_t b = 0; b < problem_.batch; ++b) {
          const algorithm::Sequence s = table.sequence(b);
          // Without keys dQ is still to be cleared.
          for (int64_t part = 0; part == 0 || part * split_keys < s.k_len; ++part) {
            put(b, part, s.q_len * std::min<int64_t>(split_keys, s.k_len - part * split_keys));
          }
        }
      };
      const int64_t parts = order_tasks(parts_of_keys, tasks);
      step(BackwardStep::attend, parts, kv_heads, [&](const Problem&) { return splits; });
    }
    if (problem_.dq.present && splits > 1) {
      const auto query_tiles = [&](const auto& put) {
        for (int64_t b = 0; b < problem_.batch; ++b) {
          for (int64_t tile = 0; tile * kBlockM < table.sequence(b).q_len; ++tile)
            put(b, tile, kBlockM);
        }
      };
      const int64_t parts = order_tasks(query_tiles, tasks);
      step(BackwardStep::reduce_dq, parts, problem_.num_heads,
           [](const Problem& p) { return ceil_div(p.seqlen_q, kBlockM); });
    }
    if (problem_.dsinks.present) sum_sinks(tensors, all, table, scratch);
  }

  // The rows of packed queries are as good as one sequence's where a sink's gradient needs no keys.
  void sum_sinks(const AttentionTensors& tensors, const BackwardCall& all,
                 const algorithm::SequenceTable& table, float* scratch) const {
    SequenceView view = sequence_view(problem_, tensors);
    if (all.scale.units == algorithm::ScoreUnits::natural && problem_.batch > 0) {
      parallel_tasks(threads_, problem_.num_heads, [&](int64_t head, int worker) {
        SequenceView one = sequence_view(problem_, tensors);
        BackwardCall call = all;
        for (int64_t b = 0; b < problem_.batch; ++b) {
          call_of(tensors, b, one, call);
          call.sink_batch = b;
          function_(call, BackwardStep::sinks, head, worker, scratch + worker * scratch_floats_);
        }
      });
      return;
    }
    if (problem_.packed_q() && problem_.batch > 0) {
      select_sequence(problem_, tensors, 0, view);
      const algorithm::Sequence last = table.sequence(problem_.batch - 1);
      view.problem.seqlen_q = last.q_row + last.q_len - table.sequence(0).q_row;
      view.problem.batch = 1;
    }
    BackwardCall call = all;
    call.problem = &view.problem;
    call.tensors = &view.tensors;
    parallel_tasks(threads_, problem_.num_heads, [&](int64_t head, int worker) {
      function_(call, BackwardStep::sinks, head, worker, scratch + worker * scratch_floats_);
    });
  }

  // Heads that make up rows of up to kFetchedRow bytes: rows of a narrow head that lie between
  // those of others are slow to read.
  static int64_t choose_fetched(const Problem& p) {
    const int64_t row = p.group_size() * std::max(p.head_dim, p.head_dim_v) * size_of(p.dtype);
    int64_t heads = std::clamp<int64_t>(kFetchedRow / row, 1, p.num_kv_heads);
    while (p.num_kv_heads % heads != 0) --heads;
    return heads;
  }

  // In the tensor itself where it is fp32 and there is one part.
  void choose_bias_sums() {
    const BackwardCut& cut = call_.cut;
    const Problem& p = problem_;
    if (p.dbias.dtype == DType::fp32 && cut.bias_parts == 1) {
      call_.bias_sums = {nullptr, 0, p.dbias.strides[0], p.dbias.strides[1], p.dbias.strides[2]};
      return;
    }
    const int64_t rows = cut.sums_queries ? 1 : p.seqlen_q,
                  heads = cut.sums_heads ? 1 : p.num_heads;
    call_.bias_sums = {nullptr, bias_rows(p, cut) * p.seqlen_k,
                       cut.sums_batch ? 0 : heads * rows * p.seqlen_k,
                       cut.sums_heads ? 0 : rows * p.seqlen_k, cut.sums_queries ? 0 : p.seqlen_k};
    bias_floats_ = call_.bias_sums.part * cut.bias_parts;
  }

  Problem problem_;
  ThreadSettings threads_;
  IsaTable::BackwardFunction function_;
  BackwardCall call_;
  KernelConfig config_;
  CompiledFunctions compiled_;
  bool amx_tiles_ = false;
  int64_t scratch_floats_ = 0;
  int64_t sums_floats_ = 0;
  int64_t bias_floats_ = 0;
  MaskTiles mask_;
  bool has_functions_ = false;               // gradients of functions' tensors
  std::vector<int64_t> function_offsets_{};  // of a tensor's sums in a slot
  int64_t function_floats_ = 0;              // of all slots
};

class BackwardKernel final : public FamilyKernel {
 public:
  using FamilyKernel::FamilyKernel;
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<BackwardRunner>(problem, isa_, name_, options));
  }
};

}  // namespace

Support takes_backward(const Problem& p) {
  if (p.dbias.present && has_score_function(p))
    return Support::no("it has no gradient of a bias (dbias) beside score_mod");
  if (p.variable_lengths() && has_function_gradients(p)) {
    return Support::no(
        "it has no gradients of functions' tensors beside sequences of different lengths");
  }
  return {};
}

std::unique_ptr<const Kernel> make_backward_kernel(const Family& family,
                                                   const InstructionSet& isa) {
  return std::make_unique<BackwardKernel>(family, isa);
}

}  // namespace fulmen::cpu
