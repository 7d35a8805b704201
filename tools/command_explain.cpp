#include <fmt/format.h>

#include <array>
#include <memory>

#include "fulmen/fulmen.h"
#include "tools/commands.h"
#include "tools/options/given_problem.h"

namespace fulmen::tools {
namespace {

struct ExplainArguments {
  GivenProblem given;
  bool vary_batch = false, vary_seqlen_k = false;
};

Status explain(const CLI::App& parser, const ExplainArguments& arguments) {
  const GivenProblem& given = arguments.given;
  if (Status status = check_use(parser, given); !status.ok()) return status;
  Result<GivenCall> made = make_call(given);
  if (!made.ok()) return made.status();
  GivenCall& call = made.value();
  // Planning reads no memory: any address says that v begins where k does.
  if (call.values_in_keys) call.tensors.k.data = call.tensors.v.data = &call;
  call.options.vary_batch = arguments.vary_batch;
  call.options.vary_seqlen_k = arguments.vary_seqlen_k;
  const Result<Problem> problem = given.backward ? make_backward_problem(call.tensors, call.options)
                                                 : make_problem(call.tensors, call.options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan(problem.value(), device_of(given.problem), call.options);
  if (!planned.ok()) return planned.status();
  fmt::print("{}\n{:.4g} GFLOP, {:.4g} MB of inputs and outputs, {} bytes of workspace\n{}",
             to_string(problem.value()), problem->flops() / 1e9, problem->bytes() / 1e6,
             planned->workspace_bytes(), planned->explain());
  if (!planned->explain().ends_with('\n')) fmt::print("\n");
  for (int dim = 0; dim < 4; ++dim) {
    constexpr std::array kDims{"batch", "seqlen_q", "heads", "head_dim_v"};
    const auto n = static_cast<std::size_t>(dim);
    if (call.tensors.out.shape[n] == 0)
      fmt::print("  nothing is computed: the output has no elements, its {} is 0\n", kDims[n]);
  }
  return {};
}

}  // namespace

Command explain_command(CLI::App& app) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* parser = app.add_subcommand(
      "explain", "say which kernel would run a problem and why each other one would not");
  add_given_problem_options(*parser, arguments->given);
  parser->add_flag("--vary-batch", arguments->vary_batch,
                   "a plan for batches of 0 to the problem's: which kernel runs each");
  parser->add_flag("--vary-seqlen-k", arguments->vary_seqlen_k, "the same of the number of keys");
  return {parser, [parser, arguments] { return explain(*parser, *arguments); }};
}

}  // namespace fulmen::tools
