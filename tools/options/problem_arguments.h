// Options that describe an attention problem, shared by run and explain, and the problem that they
// make.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "tools/files/npy.h"
#include "tools/options/vector_files.h"

namespace fulmen::tools {

struct ProblemArguments {
  std::string q, k, v, bias, keep;  // paths; empty: not given
  // Of raw files, or of a problem by numbers; empty: .npy files, or q's dtype.
  std::string k_format, v_format;
  std::string causal = "none";
  std::string window;
  std::string layout = "bshd";
  std::string dtype;  // empty: the files' own
  std::string device;
  std::string kernel;
  std::string tuning;
  std::optional<float> scale;
  float softcap = 0.0F;
  std::string score_mod, mask_mod;
  std::string precision;  // empty: exact
  float dropout = 0.0F;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int threads = 0;
  bool bf16 = false;
  bool deterministic = true;
  bool verify = false;
  bool validate = false;
  VectorArguments vectors;
};

// The files that the options name, those that are not given with an empty path.
struct InputFile {
  const char* option;
  const std::string& path;
};
std::vector<InputFile> input_files(const ProblemArguments& arguments);

// Adds the options to a parser. The arguments must outlive it.
void add_problem_options(CLI::App& app, ProblemArguments& arguments);

// The error of an option that cannot be taken.
Status invalid(std::string message);
// Names of the command line to values: Errors name the option, its value and what is accepted.
Result<DType> parse_dtype(const std::string& name);
// Of k and v: one of the names that --k-format takes.
DType kv_format(const std::string& name);
// Of "int8" and "fp8"; else exact.
Precision precision_of(const std::string& name);
Result<AttentionOptions> attention_options(const ProblemArguments& arguments);
std::string device_of(const ProblemArguments& arguments);
// Checks that the device can be used and has the kernel of that name, if one is given.
Status check_device_and_kernel(const std::string& device, const std::string& kernel);

// The standard input can be read once: one file at most may be "-".
Status check_standard_input(const std::vector<InputFile>& files);

// Files in memory with views of them. out and lse are filled in by whoever wants them.
struct LoadedProblem {
  NpyArray q, k, v, bias, keep;
  VectorArrays vectors;
  AttentionTensors tensors;
  AttentionOptions options;
};
// Reads q, k, v and what else is given. tensors.out has its shape and no data.
Result<std::unique_ptr<LoadedProblem>> load_problem(const ProblemArguments& arguments);

// Reads a file like q, k, v and out into array and views it. heads: what the tensor must have, 0:
// any number. Errors name option.
Result<Tensor> read_operand(const ProblemArguments& arguments, const char* option,
                            const std::string& path, int64_t heads, NpyArray& array);

// A view of q, k, v or out in the layout's memory order.
Tensor view_in_layout(const std::string& layout, void* data, DType dtype, int64_t batch,
                      int64_t seqlen, int64_t heads, int64_t dim);
// The shape of a .npy file in the layout.
std::vector<int64_t> file_shape(const std::string& layout, const Tensor& tensor);

}  // namespace fulmen::tools
