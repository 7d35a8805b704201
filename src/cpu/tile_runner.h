// The runner of prefill and short, whose tasks are query tiles of one head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cpu/coded_keys.h"
#include "cpu/compiled_functions.h"
#include "cpu/isa/table.h"
#include "cpu/mask_tiles.h"
#include "cpu/tile/call.h"
#include "cpu/tile/sequence_tasks.h"
#include "fulmen/backend.h"
#include "runtime/threading.h"
#include "tuning/sources.h"

namespace fulmen::cpu {

constexpr int64_t query_tiles(const Problem& problem) {
  return (problem.seqlen_q + kBlockM - 1) / kBlockM;
}

// Returns true if a row of head_dim has few enough words that a task's tiles leave room in the
// caches.
bool has_narrow_rows(const Problem& problem, int group);

// Query tiles of a task. Tiles compute the same however many share a task, so the number of threads
// may decide.
int choose_tiles_per_task(const Problem& problem, const IsaTable& table, int threads);

// How a call is cut into tasks, and what each of them is told.
struct TileTasks {
  const IsaTable* table = nullptr;
  IsaTable::PrefillTaskFunction function = nullptr;
  int block_n = 64;            // key rows of a tile
  int tiles_per_task = 1;      // query tiles
  int64_t scratch_floats = 0;  // of a worker
  int64_t run_length = 1;      // tasks that a worker takes at once (tile/task_runs.h)
  bool summarises_mask = false;
  const Int8Tasks* int8 = nullptr;  // where keys are coded before
  int lanes = 1;                    // for them
  bool stream_output = false;       // these three: of ForwardCall
  bool fetch_batches = false;
  bool fetch_into_l2 = false;
};

class TileRunner final : public Runner {
 public:
  TileRunner(const Problem& problem, std::string name, const ThreadSettings& threads,
             const TileTasks& tasks);

  void set_parameters(tuning::Choice choice);
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override;
  Status run(void* stream, const AttentionTensors& tensors, void* workspace) const override;

 private:
  void run_sequences(const AttentionTensors& tensors, const ForwardCall& all, float* scratch,
                     SequenceTask* tasks) const;
  PrefillRows make_task(int64_t index) const;

  Problem problem_;
  ThreadSettings threads_;
  IsaTable::PrefillTaskFunction function_;
  ForwardCall call_;
  KernelConfig config_;
  int64_t scratch_floats_;
  int64_t run_length_;
  int64_t task_rows_;
  int64_t blocks_;          // of a head: tasks; 0 for no queries
  int64_t most_tasks_ = 0;  // of sequences of different lengths
  CompiledFunctions compiled_;
  MaskTiles mask_;
  CodedKeys coded_keys_;
};

}  // namespace fulmen::cpu
