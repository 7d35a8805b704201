// Options of the backward pass of `fulmen run`, and the tensors that they make.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/status.h"
#include "tools/files/npy.h"
#include "tools/options/problem_arguments.h"

namespace fulmen::tools {

struct BackwardArguments {
  bool backward = false;
  std::string dout, dlse, forward_out, forward_lse;  // paths to read; empty: not given
  std::string dq, dk, dv, dbias, dsinks;             // paths to write
};
void add_backward_options(CLI::App& app, BackwardArguments& arguments);

// Errors: an option of the backward pass without --backward; what --backward needs is missing.
Status check_backward(const BackwardArguments& arguments);

// Files in memory; the tensors of a LoadedProblem view them.
struct LoadedGradients {
  NpyArray dout, dlse, out, lse;
};
// Reads dout and what else is given, and sets problem's views. Those of dout, dlse, out and lse
// have data where they are files. Those of the wanted gradients have none, and the memory order of
// their tensors.
Status load_gradients(const ProblemArguments& problem_arguments, const BackwardArguments& arguments,
                      LoadedProblem& problem, LoadedGradients& files);

// A tensor to be written to a file.
struct OutputTensor {
  const char* option;
  std::string path;
  Tensor AttentionTensors::* tensor;
  std::vector<int64_t> shape;  // the file's
};
// The gradients that are wanted, once load_gradients() has set their views.
std::vector<OutputTensor> gradient_outputs(const ProblemArguments& problem_arguments,
                                           const BackwardArguments& arguments,
                                           const LoadedProblem& problem);

}  // namespace fulmen::tools
