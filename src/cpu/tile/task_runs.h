// Runs of short tasks: consecutive ones that one worker takes at once, each fetching the next one's
// memory. Tasks compute the same whatever the run.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fulmen/problem.h"
#include "runtime/threading.h"

namespace fulmen::cpu {

constexpr int64_t kMaxRun = 16;        // tasks, where a run is not a whole sequence
constexpr int64_t kRunsPerThread = 6;  // at least, so that threads end together
constexpr double kStreamBytes = 16e6;  // a call that moves more leaves nothing of its output in
                                       // most caches

// Whether there are enough sequences for runs of whole ones: threads then share no page of
// interleaved heads.
inline bool runs_are_sequences(const Problem& problem, int num_threads) {
  return problem.batch >= kRunsPerThread * num_threads;
}

// Whether a worker's next sequence is, but for its last one, the next of the batch.
inline bool next_sequence_is_own(const Problem& problem, int num_threads) {
  return runs_are_sequences(problem, num_threads) && num_threads <= TaskRanges::kMaxRanges;
}

// Tasks of a run, of all `tasks` and of those of one sequence; 1 at least.
inline int64_t choose_run(const Problem& problem, int num_threads, int64_t tasks,
                          int64_t of_sequence) {
  if (runs_are_sequences(problem, num_threads)) return std::max<int64_t>(of_sequence, 1);
  return std::clamp<int64_t>(tasks / (kRunsPerThread * num_threads), 1, kMaxRun);
}

}  // namespace fulmen::cpu
