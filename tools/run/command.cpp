#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fulmen/fulmen.h"
#include "fulmen/printable.h"
#include "tools/commands.h"
#include "tools/files/output_file.h"
#include "tools/options/number_checks.h"
#include "tools/options/problem_arguments.h"
#include "tools/run/backward_arguments.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

struct RunArguments {
  ProblemArguments problem;
  BackwardArguments backward;
  std::string out, lse;
  uint64_t dropout_seed = 0, dropout_offset = 0;
};

// Files to be written: the forward pass's, then the gradients.
std::vector<OutputTensor> wanted_files(const RunArguments& arguments,
                                       const LoadedProblem& problem) {
  const AttentionTensors& t = problem.tensors;
  std::vector<OutputTensor> wanted;
  if (!arguments.out.empty()) {
    wanted.push_back({"--out", arguments.out, &AttentionTensors::out,
                      file_shape(arguments.problem.layout, t.out)});
  }
  if (!arguments.lse.empty()) {
    wanted.push_back({"--lse",
                      arguments.lse,
                      &AttentionTensors::lse,
                      {t.lse.shape[0], t.lse.shape[1], t.lse.shape[2]}});
  }
  for (OutputTensor& gradient : gradient_outputs(arguments.problem, arguments.backward, problem)) {
    wanted.push_back(std::move(gradient));
  }
  return wanted;
}

Status check_names(const RunArguments& a) {
  if (Status status = check_backward(a.backward); !status.ok()) return status;
  if (a.out.empty() && !a.backward.backward)
    return invalid("--out is needed: the .npy file to write");
  if (!a.backward.forward_out.empty() && !(a.out.empty() && a.lse.empty())) {
    return invalid(
        fmt::format("{} would write what --forward-out and --forward-lse read: there is no forward "
                    "pass to compute",
                    a.out.empty() ? "--lse" : "--out"));
  }
  const BackwardArguments& g = a.backward;
  std::vector<InputFile> read = input_files(a.problem);
  for (const InputFile& file : {InputFile{"--dout", g.dout},
                                {"--dlse", g.dlse},
                                {"--forward-out", g.forward_out},
                                {"--forward-lse", g.forward_lse}}) {
    read.push_back(file);
  }
  if (Status status = check_standard_input(read); !status.ok()) return status;
  const InputFile written[] = {{"--out", a.out},      {"--lse", a.lse}, {"--dq", g.dq},
                               {"--dk", g.dk},        {"--dv", g.dv},   {"--dbias", g.dbias},
                               {"--dsinks", g.dsinks}};
  for (const InputFile& one : written) {
    if (one.path == "-") return check_writable(one.path);
    for (const InputFile* other = std::begin(written); other != &one; ++other) {
      if (!same_file(one.path, other->path)) continue;
      return invalid(fmt::format("{} and {} are both {}: a file of its own is needed for each",
                                 other->option, one.option, printable(one.path)));
    }
    for (const InputFile& input : read) {
      if (!same_file(one.path, input.path)) continue;
      return invalid(
          fmt::format("{} {}: {} reads it, and it would be replaced: another file is needed",
                      one.option, printable(one.path), input.option));
    }
  }
  return {};
}

// `say` prints the lines about them. If it fails, no file gets its name.
template <class Say>
Status write_outputs(const std::vector<OutputTensor>& outputs, const AttentionTensors& tensors,
                     const Say& say) {
  std::vector<OutputFile> files;
  for (const OutputTensor& output : outputs) {
    Result<OutputFile> file = OutputFile::create(output.path);
    if (!file.ok()) return file.status();
    const Tensor& tensor = tensors.*output.tensor;
    if (Status status = write_npy(file.value(), tensor.dtype, output.shape, tensor.data);
        !status.ok())
      return status;
    files.push_back(std::move(file).value());
  }
  // All are complete on the disk, and the lines are written, before any gets its name.
  if (Status status = say(); !status.ok()) return status;
  for (OutputFile& file : files) {
    if (Status status = file.commit(); !status.ok()) return status;
  }
  return {};
}

// The passes that a call asks for. Plans first: they say what is wrong before anything is
// allocated.
struct Passes {
  std::optional<Plan> forward, backward;
};

Result<Passes> plan_passes(const RunArguments& arguments, const LoadedProblem& loaded) {
  const std::string device = device_of(arguments.problem);
  Passes passes;
  AttentionOptions options = loaded.options;
  if (arguments.backward.backward) {
    const Result<Problem> problem = make_backward_problem(loaded.tensors, options);
    if (!problem.ok()) return problem.status();
    Result<Plan> planned = plan(problem.value(), device, options);
    if (!planned.ok()) return planned.status();
    passes.backward = std::move(planned).value();
    options.kernel.clear();  // --kernel is the backward one
    if (!arguments.backward.forward_out.empty()) return passes;
  }
  const Result<Problem> problem = make_problem(loaded.tensors, options);
  if (!problem.ok()) return problem.status();
  Result<Plan> planned = plan(problem.value(), device, options);
  if (!planned.ok()) return planned.status();
  passes.forward = std::move(planned).value();
  return passes;
}

// Memory for what is computed and not there yet: out, lse and the gradients.
// Zeros: packed rows that belong to no sequence are not computed.
Status allocate_outputs(AttentionTensors& tensors, std::vector<Memory>& memory) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (Tensor AttentionTensors::* const one : outputs_of(pass)) {
      Tensor& tensor = tensors.*one;
      if (tensor.data != nullptr || tensor.shape == std::array<int64_t, 4>{}) continue;
      std::size_t bytes = static_cast<std::size_t>(size_of(tensor.dtype));
      for (const int64_t size : tensor.shape) bytes *= static_cast<std::size_t>(size);
      // One more byte each: a tensor without elements still has an address.
      tensor.data = memory.emplace_back(bytes + 1).data();
      if (tensor.data == nullptr)
        return {StatusCode::out_of_memory,
                fmt::format("no memory for a result of {} bytes", bytes)};
      if (tensors.cu_seqlens_q.data != nullptr || tensors.cu_seqlens_k.data != nullptr)
        std::memset(tensor.data, 0, bytes);
    }
  }
  return {};
}

Status run_pass(const std::optional<Plan>& planned, const DeviceTensors& there) {
  if (!planned) return {};
  const std::size_t scratch = planned->workspace_bytes();
  const DeviceMemory workspace = there.workspace(scratch);
  if (scratch > 0 && workspace.data() == nullptr) {
    return {StatusCode::out_of_memory,
            fmt::format("no memory for a workspace of {} bytes", scratch)};
  }
  Status status = planned->run(nullptr, there.tensors(), workspace.data(), scratch);
  if (status.ok()) status = there.synchronize();
  if (status.ok()) status = there.download(planned->problem().pass);
  return status;
}

Status compute(const RunArguments& arguments) {
  if (Status status = check_names(arguments); !status.ok()) return status;
  Result<std::unique_ptr<LoadedProblem>> loaded = load_problem(arguments.problem);
  if (!loaded.ok()) return loaded.status();
  LoadedProblem& problem = *loaded.value();
  AttentionTensors& tensors = problem.tensors;
  tensors.dropout_seed = arguments.dropout_seed;
  tensors.dropout_offset = arguments.dropout_offset;
  const auto [batch, seqlen_q, heads, head_dim] = tensors.q.shape;
  if (!arguments.lse.empty())
    tensors.lse = Tensor::bhqk(nullptr, DType::fp32, batch, heads, seqlen_q, 1);
  LoadedGradients gradients;
  if (arguments.backward.backward) {
    if (Status status = load_gradients(arguments.problem, arguments.backward, problem, gradients);
        !status.ok())
      return status;
  }
  const Result<Passes> passes = plan_passes(arguments, problem);
  if (!passes.ok()) return passes.status();

  const auto& [forward, backward] = passes.value();
  std::vector<Memory> memory;
  if (Status status = allocate_outputs(tensors, memory); !status.ok()) return status;
  const Result<std::unique_ptr<DeviceTensors>> there =
      DeviceTensors::make(forward ? forward->device() : backward->device(), tensors);
  if (!there.ok()) return there.status();
  Status status = run_pass(forward, *there.value());
  if (status.ok()) status = run_pass(backward, *there.value());
  const std::vector<OutputTensor> outputs = wanted_files(arguments, problem);
  if (!status.ok()) return status;
  return write_outputs(outputs, tensors, [&] {
    for (const OutputTensor& output : outputs) {
      if (output.tensor == &AttentionTensors::lse) continue;
      const Plan& by =
          output.tensor == &AttentionTensors::out ? *passes->forward : *passes->backward;
      fmt::print("{} {} by {}\n", printable(output.path), shape_text(output.shape),
                 printable(to_string(by.config())));
    }
    return flush_standard_output();
  });
}

}  // namespace

Command run_command(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* parser = app.add_subcommand(
      "run", "compute attention, and its gradients, from .npy files into .npy files");
  add_problem_options(*parser, arguments->problem);
  parser->add_option("--out", arguments->out,
                     "the output, in the layout and dtype of the computation (bf16 as uint16)");
  parser->add_option("--lse", arguments->lse,
                     "also write the log-sum-exp of each row, fp32 [batch, head, seqlen_q]");
  parser
      ->add_option("--dropout-seed", arguments->dropout_seed,
                   "which random numbers dropout takes: the same mask for the same")
      ->transform(any_uint64());
  parser
      ->add_option("--dropout-offset", arguments->dropout_offset,
                   "seed and offset, forward and backward, on every device")
      ->transform(any_uint64());
  add_backward_options(*parser, arguments->backward);
  parser->add_flag("--verify", arguments->problem.verify,
                   "check the result against the double-precision reference; exit 1 if it fails");
  parser->add_flag("--validate", arguments->problem.validate,
                   "check lengths and page tables in a device's own memory before the run; exit 2 "
                   "if they are wrong");
  return {parser, [arguments] { return compute(*arguments); }};
}

}  // namespace fulmen::tools
