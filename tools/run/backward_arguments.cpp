#include "tools/run/backward_arguments.h"

#include <fmt/format.h>

#include <utility>

#include "fulmen/printable.h"

namespace fulmen::tools {
namespace {

// fp32 [batch, head, seqlen_q].
Status read_row_statistics(const char* option, const std::string& path, NpyArray& array,
                           Tensor& view) {
  Result<NpyArray> read = read_npy(path, true);
  if (!read.ok()) return read.status();
  array = std::move(read).value();
  const auto& s = array.shape;
  if (s.size() != 3 || array.dtype != DType::fp32) {
    return invalid(fmt::format("{} ({}): {} {} is not fp32 [batch, head, seqlen_q]", option,
                               printable(path), to_string(array.dtype), shape_text(s)));
  }
  view = Tensor::bhqk(array.data.data(), DType::fp32, s[0], s[1], s[2], 1);
  return {};
}

Tensor without_data(Tensor tensor) {
  tensor.data = nullptr;
  return tensor;
}

}  // namespace

void add_backward_options(CLI::App& app, BackwardArguments& arguments) {
  app.add_flag("--backward", arguments.backward,
               "also compute gradients: of --dout, into the files that --dq ... --dsinks name");
  app.add_option("--dout", arguments.dout,
                 "backward: the loss's gradient by the output, in its layout and dtype");
  app.add_option("--dlse", arguments.dlse,
                 "backward: its gradient by the log-sum-exp, fp32 [batch, head, seqlen_q]");
  app.add_option(
      "--forward-out", arguments.forward_out,
      "backward: read the forward pass's output instead of computing it; with --forward-lse");
  app.add_option("--forward-lse", arguments.forward_lse,
                 "backward: read its log-sum-exp, fp32 [batch, head, seqlen_q]");
  app.add_option("--dq", arguments.dq,
                 "backward: write the gradient by the queries, in their layout and dtype");
  app.add_option("--dk", arguments.dk, "backward: by the keys");
  app.add_option("--dv", arguments.dv, "backward: by the values");
  app.add_option("--dbias", arguments.dbias,
                 "backward: by the bias, in its shape (summed where that is 1) and dtype");
  app.add_option("--dsinks", arguments.dsinks, "backward: by the sinks, fp32 [head]");
}

Status check_backward(const BackwardArguments& a) {
  const std::pair<const char*, const std::string*> inputs[] = {{"--dout", &a.dout},
                                                               {"--dlse", &a.dlse},
                                                               {"--forward-out", &a.forward_out},
                                                               {"--forward-lse", &a.forward_lse}};
  const std::pair<const char*, const std::string*> outputs[] = {{"--dq", &a.dq},
                                                                {"--dk", &a.dk},
                                                                {"--dv", &a.dv},
                                                                {"--dbias", &a.dbias},
                                                                {"--dsinks", &a.dsinks}};
  if (!a.backward) {
    for (const auto& [option, path] : inputs) {
      if (!path->empty())
        return invalid(
            fmt::format("{} {}: it is of the backward pass, --backward is needed", option, *path));
    }
    for (const auto& [option, path] : outputs) {
      if (!path->empty())
        return invalid(
            fmt::format("{} {}: it is of the backward pass, --backward is needed", option, *path));
    }
    return {};
  }
  if (a.dout.empty())
    return invalid(
        "--backward needs --dout: the loss's gradient by the output, a .npy file in its layout");
  if (a.forward_out.empty() != a.forward_lse.empty()) {
    return invalid(
        fmt::format("{} is given alone: --forward-out and --forward-lse are of one forward pass, "
                    "both or neither",
                    a.forward_out.empty() ? "--forward-lse" : "--forward-out"));
  }
  for (const auto& [option, path] : outputs) {
    if (!path->empty()) return {};
  }
  return invalid(
      "--backward needs one of --dq, --dk, --dv, --dbias and --dsinks at least: the .npy file to "
      "write");
}

Status load_gradients(const ProblemArguments& problem_arguments, const BackwardArguments& a,
                      LoadedProblem& problem, LoadedGradients& files) {
  AttentionTensors& t = problem.tensors;
  const int64_t heads = t.q.shape[2];
  const Result<Tensor> dout = read_operand(problem_arguments, "--dout", a.dout, heads, files.dout);
  if (!dout.ok()) return dout.status();
  t.dout = dout.value();
  t.lse = Tensor::bhqk(nullptr, DType::fp32, t.q.shape[0], heads, t.q.shape[1], 1);
  if (!a.forward_out.empty()) {
    const Result<Tensor> out =
        read_operand(problem_arguments, "--forward-out", a.forward_out, heads, files.out);
    if (!out.ok()) return out.status();
    t.out = out.value();
    if (Status status = read_row_statistics("--forward-lse", a.forward_lse, files.lse, t.lse);
        !status.ok())
      return status;
  }
  if (!a.dlse.empty()) {
    if (Status status = read_row_statistics("--dlse", a.dlse, files.dlse, t.dlse); !status.ok())
      return status;
  }
  if (!a.dbias.empty() && problem_arguments.bias.empty()) {
    return invalid(fmt::format("--dbias {}: without --bias it has no gradient", a.dbias));
  }
  if (!a.dsinks.empty() && !problem_arguments.vectors.given(&AttentionTensors::sinks)) {
    return invalid(fmt::format("--dsinks {}: without --sinks they have no gradient", a.dsinks));
  }
  if (!a.dq.empty()) t.dq = without_data(t.q);
  if (!a.dk.empty()) t.dk = without_data(t.k);
  if (!a.dv.empty()) t.dv = without_data(t.v);
  if (!a.dbias.empty()) t.dbias = without_data(t.bias);
  if (!a.dsinks.empty()) t.dsinks = without_data(t.sinks);
  return {};
}

std::vector<OutputTensor> gradient_outputs(const ProblemArguments& problem_arguments,
                                           const BackwardArguments& a,
                                           const LoadedProblem& problem) {
  using T = AttentionTensors;
  const std::string& layout = problem_arguments.layout;
  std::vector<OutputTensor> wanted;
  const auto add = [&](const char* option, const std::string& path, Tensor T::* tensor,
                       const std::vector<int64_t>& shape) {
    if (!path.empty()) wanted.push_back({option, path, tensor, shape});
  };
  add("--dq", a.dq, &T::dq, file_shape(layout, problem.tensors.dq));
  add("--dk", a.dk, &T::dk, file_shape(layout, problem.tensors.dk));
  add("--dv", a.dv, &T::dv, file_shape(layout, problem.tensors.dv));
  add("--dbias", a.dbias, &T::dbias, problem.bias.shape);
  add("--dsinks", a.dsinks, &T::dsinks, {problem.tensors.sinks.shape[3]});
  return wanted;
}

}  // namespace fulmen::tools
