#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.h"
#include "device_tensors.h"
#include "fulmen/fulmen.h"
#include "problem_arguments.h"

namespace fulmen::tools {
namespace {

struct RunArguments {
  ProblemArguments problem;
  std::string out, lse;
};

Status write_outputs(const RunArguments& arguments, const AttentionTensors& tensors) {
  Result<OutputFile> out = OutputFile::create(arguments.out);
  if (!out.ok()) return out.status();
  Status status = write_npy(out.value(), tensors.out.dtype, file_shape(arguments.problem.layout, tensors.out), tensors.out.data);
  if (!status.ok()) return status;
  if (arguments.lse.empty()) return out->commit();

  Result<OutputFile> lse = OutputFile::create(arguments.lse);
  if (!lse.ok()) return lse.status();
  const auto& shape = tensors.lse.shape;
  status = write_npy(lse.value(), DType::fp32, std::array{shape[0], shape[1], shape[2]}, tensors.lse.data);
  if (!status.ok()) return status;
  // Both are complete on the disk before either gets its name.
  status = out->commit();
  return status.ok() ? lse->commit() : status;
}

Status compute(const RunArguments& arguments) {
  if (arguments.out.empty()) return {StatusCode::invalid_argument, "--out is needed: the .npy file to write"};
  if (arguments.out == arguments.lse) {
    return {StatusCode::invalid_argument, fmt::format("--out and --lse are both {}", arguments.out)};
  }
  Result<std::unique_ptr<LoadedProblem>> loaded = load_problem(arguments.problem);
  if (!loaded.ok()) return loaded.status();
  AttentionTensors& tensors = loaded.value()->tensors;
  const auto [batch, seqlen_q, heads, head_dim] = tensors.q.shape;

  // A plan first: it says what is wrong before anything is allocated.
  const AttentionOptions& options = loaded.value()->options;
  if (!arguments.lse.empty()) tensors.lse = Tensor::bhqk(nullptr, DType::fp32, batch, heads, seqlen_q, 1);
  const Result<Problem> problem = make_problem(tensors, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan(problem.value(), device_of(arguments.problem), options);
  if (!planned.ok()) return planned.status();

  const auto elements = [](const Tensor& t) { return static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]); };
  // One more byte each: a tensor without elements still has an address.
  Memory out(elements(tensors.out) * static_cast<std::size_t>(size_of(tensors.out.dtype)) + 1);
  Memory lse(elements(tensors.lse) * sizeof(float) + 1);
  if (out.data() == nullptr || lse.data() == nullptr) {
    return {StatusCode::out_of_memory, fmt::format("no memory for the result of {}", to_string(problem.value()))};
  }
  tensors.out.data = out.data();
  if (!arguments.lse.empty()) tensors.lse.data = lse.data();
  const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(planned.value().device(), tensors);
  if (!there.ok()) return there.status();
  const std::size_t scratch = planned.value().workspace_bytes();
  const DeviceMemory workspace = there.value()->workspace(scratch);
  if (scratch > 0 && workspace.data() == nullptr) {
    return {StatusCode::out_of_memory, fmt::format("no memory for a workspace of {} bytes", scratch)};
  }
  Status status = planned.value().run(nullptr, there.value()->tensors(), workspace.data(), scratch);
  if (status.ok()) status = there.value()->synchronize();
  if (status.ok()) status = there.value()->download();
  if (!status.ok()) return status;
  if (Status written = write_outputs(arguments, tensors); !written.ok()) return written;
  fmt::print("{} {} by {}\n", arguments.out, shape_text(file_shape(arguments.problem.layout, tensors.out)),
             to_string(planned.value().config()));
  return {};
}

}  // namespace

Command run_command(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* parser = app.add_subcommand("run", "compute attention from .npy files into a .npy file");
  add_problem_options(*parser, arguments->problem);
  parser->add_option("--out", arguments->out, "the output, in the layout and dtype of the computation (bf16 as uint16)");
  parser->add_option("--lse", arguments->lse, "also write the log-sum-exp of each row, fp32 [batch, head, seqlen_q]");
  parser->add_flag("--verify", arguments->problem.verify,
                   "check the result against the double-precision reference; exit 1 if it fails");
  return {parser, [arguments] { return compute(*arguments); }};
}

}  // namespace fulmen::tools
