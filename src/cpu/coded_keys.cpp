#include "cpu/coded_keys.h"

#include <algorithm>

#include "cpu/tile/sequence_tasks.h"

namespace fulmen::cpu {
namespace {

// Keys of a part, which a task codes: enough that the task's own cost is small, and no more parts
// than a mean is quickly added up from.
constexpr int64_t kPartKeys = 512, kMostParts = 64;

int64_t floats(int64_t count) { return round_up(count, 16); }

}  // namespace

CodedKeys::CodedKeys(const Problem& problem, const Int8Tasks& tasks, int lanes)
    : problem_(&problem), function_(tasks.code_keys[static_cast<int>(problem.dtype)]) {
  places_.dims = round_up(problem.head_dim, lanes);
  places_.key_stride = round_up(places_.dims / tasks.codes, tasks.unit_words);
  places_.kv_heads = problem.num_kv_heads;
  places_.part_keys =
      round_up(std::max(kPartKeys, (problem.seqlen_k + kMostParts - 1) / kMostParts), kCodedKeys);
  places_.parts = (problem.seqlen_k + places_.part_keys - 1) / places_.part_keys;
  places_.head_keys = round_up(problem.seqlen_k, kCodedKeys);
  places_.batch_keys = places_.head_keys * problem.num_kv_heads;
  keys_ = problem.packed_k()
              ? packed_codes_before(problem.total_k, problem.batch) * problem.num_kv_heads
              : places_.batch_keys * problem.batch;
}

int64_t CodedKeys::bytes() const noexcept {
  if (function_ == nullptr) return 0;
  const int64_t heads = problem_->batch * problem_->num_kv_heads;
  return static_cast<int64_t>(sizeof(float)) *
         (floats(keys_ * places_.key_stride) + floats(keys_ / kCodedKeys) +
          floats(heads * places_.parts * places_.dims));
}

KeyCodes CodedKeys::at(void* memory) const noexcept {
  if (function_ == nullptr) return {};
  KeyCodes codes = places_;
  codes.words = static_cast<float*>(memory);
  codes.scales = codes.words + floats(keys_ * places_.key_stride);
  codes.sums = codes.scales + floats(keys_ / kCodedKeys);
  return codes;
}

void CodedKeys::write(const ForwardCall& call, const ThreadSettings& threads, float* scratch,
                      int64_t scratch_floats) const {
  if (function_ == nullptr) return;
  const Problem& p = *problem_;
  const int64_t tasks = p.batch * p.num_kv_heads * places_.parts;
  for (const auto step : {KeyCodesTask::Step::sums, KeyCodesTask::Step::codes}) {
    parallel_tasks(threads, tasks, [&](int64_t index, int worker) {
      const int64_t head = index / places_.parts;
      const KeyCodesTask task{step, head / p.num_kv_heads, head % p.num_kv_heads,
                              index % places_.parts};
      float* mine = scratch + worker * scratch_floats;
      if (!p.variable_lengths()) return function_(call, task, mine);
      SequenceView view = sequence_view(p, *call.tensors);
      ForwardCall of_sequence = call;
      call_sequence(p, *call.tensors, task.batch, view, of_sequence);
      function_(of_sequence, task, mine);
    });
  }
}

Support codes_fit(const Problem& problem) {
  constexpr double kMostBytes = 0x1p46;
  const double keys = static_cast<double>(problem.batch) *
                      static_cast<double>(problem.num_kv_heads) *
                      (static_cast<double>(problem.seqlen_k) + kCodedKeys);
  if (keys * 4 * (static_cast<double>(problem.head_dim) + 1) < kMostBytes) return {};
  return Support::no("the codes of its keys would take 2^46 bytes or more");
}

}  // namespace fulmen::cpu
