// A problem that the command line describes by files or by numbers, for `fulmen explain` and
// `fulmen bench --problem`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/status.h"
#include "tools/options/problem_arguments.h"

namespace fulmen::tools {

struct GivenProblem {
  ProblemArguments problem;
  // A problem by numbers, instead of files.
  int64_t batch = 1, seqlen_q = -1, seqlen_k = -1, head_dim = 0, head_dim_v = 0;
  std::vector<int64_t> bias_shape, keep_shape;
  std::string bias_dtype;
  bool alibi = false, sinks = false;
  bool values_in_keys = false;
  // Options of both.
  bool lse = false, backward = false, dlse = false;
  std::vector<std::string> gradients;  // empty: all of them
  std::vector<int64_t> dbias_shape;

  bool by_files() const { return !problem.q.empty() || !problem.k.empty() || !problem.v.empty(); }
};

// Adds the options of ProblemArguments and those above to a parser. `given` must outlive it.
void add_given_problem_options(CLI::App& parser, GivenProblem& given);

// Refuses an option that would say nothing here: a problem of numbers has no files, one of files no
// numbers.
Status check_use(const CLI::App& parser, const GivenProblem& given);

// The call: tensors of files with their data, all others as views without, which planning takes.
struct GivenCall {
  std::unique_ptr<LoadedProblem> files;  // that the tensors view; null for a problem by numbers
  AttentionTensors tensors;
  AttentionOptions options;
  bool values_in_keys = false;  // v has k's strides and, once there is memory, k's address
};
Result<GivenCall> make_call(const GivenProblem& given);

}  // namespace fulmen::tools
