#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "fulmen/fulmen.h"
#include "tools/commands.h"
#include "tools/number_checks.h"
#include "tools/problem_arguments.h"

namespace fulmen::tools {
namespace {

struct ExplainArguments {
  ProblemArguments problem;
  int64_t batch = 1, seqlen_q = -1, seqlen_k = -1, head_dim = 0, head_dim_v = 0;
  std::vector<int64_t> bias_shape, keep_shape;
  std::string bias_dtype;
  bool alibi = false, sinks = false, lse = false;
  bool backward = false, dlse = false;
  bool vary_batch = false, vary_seqlen_k = false;
  std::vector<std::string> gradients;  // empty: all that there are
  std::vector<int64_t> dbias_shape;
};

Tensor head_vector(int64_t heads) {
  Tensor tensor;
  tensor.shape = {1, 1, 1, heads};
  tensor.strides = {0, 0, 0, 1};
  return tensor;
}

// Views without data: planning looks at shapes only.
Result<AttentionTensors> tensors_by_numbers(const ExplainArguments& arguments) {
  const ProblemArguments& problem = arguments.problem;
  if (arguments.seqlen_q < 0 || problem.heads <= 0 || arguments.head_dim <= 0) {
    return Status{StatusCode::invalid_argument,
                  "the problem is given by files (--q, --k, --v) or by numbers: at least --seqlen-q, "
                  "--heads and --head-dim"};
  }
  const Result<DType> dtype = parse_dtype(problem.dtype.empty() ? "fp32" : problem.dtype);
  if (!dtype.ok()) return dtype.status();
  const int64_t seqlen_k = arguments.seqlen_k < 0 ? arguments.seqlen_q : arguments.seqlen_k;
  const int64_t kv_heads = problem.kv_heads > 0 ? problem.kv_heads : problem.heads;
  const int64_t head_dim_v = arguments.head_dim_v > 0 ? arguments.head_dim_v : arguments.head_dim;
  const auto view = [&](int64_t seqlen, int64_t heads, int64_t dim) {
    return view_in_layout(problem.layout, nullptr, dtype.value(), arguments.batch, seqlen, heads, dim);
  };
  AttentionTensors tensors;
  tensors.q = view(arguments.seqlen_q, problem.heads, arguments.head_dim);
  tensors.k = view(seqlen_k, kv_heads, arguments.head_dim);
  tensors.v = view(seqlen_k, kv_heads, head_dim_v);
  tensors.out = view(arguments.seqlen_q, problem.heads, head_dim_v);
  if (const auto& s = arguments.bias_shape; !s.empty()) {
    const Result<DType> bias_dtype = arguments.bias_dtype.empty() ? dtype : parse_dtype(arguments.bias_dtype);
    if (!bias_dtype.ok()) return bias_dtype.status();
    tensors.bias = Tensor::bhqk(nullptr, bias_dtype.value(), s[0], s[1], s[2], s[3]);
  }
  if (const auto& s = arguments.keep_shape; !s.empty()) {
    tensors.keep_mask = Tensor::bhqk(nullptr, DType::boolean, s[0], s[1], s[2], s[3]);
  }
  if (arguments.alibi) tensors.alibi_slopes = head_vector(problem.heads);
  if (arguments.sinks) tensors.sinks = head_vector(problem.heads);
  return tensors;
}

// Views of what the backward pass reads and writes beside the forward tensors.
Status add_gradients(const ExplainArguments& arguments, AttentionTensors& t) {
  t.dout = t.out;
  t.lse = Tensor::bhqk(nullptr, DType::fp32, t.q.shape[0], t.q.shape[2], t.q.shape[1], 1);
  if (arguments.dlse) t.dlse = t.lse;
  const bool has_bias = t.bias.shape != std::array<int64_t, 4>{}, has_sinks = t.sinks.shape != std::array<int64_t, 4>{};
  Tensor dbias = t.bias;
  if (const auto& s = arguments.dbias_shape; !s.empty()) dbias = Tensor::bhqk(nullptr, t.bias.dtype, s[0], s[1], s[2], s[3]);
  struct Gradient {
    const char* name;
    bool there;
    const Tensor& like;
    Tensor& gradient;
  };
  for (const Gradient& one : {Gradient{"dq", true, t.q, t.dq}, Gradient{"dk", true, t.k, t.dk}, Gradient{"dv", true, t.v, t.dv},
                              Gradient{"dbias", has_bias, dbias, t.dbias}, Gradient{"dsinks", has_sinks, t.sinks, t.dsinks}}) {
    const bool named = std::find(arguments.gradients.begin(), arguments.gradients.end(), one.name) != arguments.gradients.end();
    if (named && !one.there) {
      return {StatusCode::invalid_argument,
              fmt::format("--gradients {}: there is nothing here that it is a gradient of", one.name)};
    }
    if (named || (arguments.gradients.empty() && one.there)) one.gradient = one.like;
  }
  return {};
}

// An option that would say nothing here: a problem of numbers has no files, one of files no numbers.
Status check_use(const CLI::App& parser, const ExplainArguments& arguments, bool by_files) {
  constexpr const char* kNumbers[] = {"--batch",      "--seqlen-q",   "--seqlen-k",   "--head-dim",   "--head-dim-v",
                                      "--bias-shape", "--bias-dtype", "--keep-shape", "--with-alibi", "--with-sinks"};
  std::vector<const char*> files{"--bias", "--keep", "--bf16", "--max-seqlen-q", "--max-seqlen-k"};
  for (const VectorFile& file : kVectorFiles) files.push_back(file.option);
  constexpr const char* kBackward[] = {"--gradients", "--dbias-shape", "--with-dlse"};
  const auto refuse = [&](const auto& options, const char* why) -> Status {
    for (const char* option : options) {
      if (parser.count(option) > 0) return {StatusCode::invalid_argument, fmt::format("{}: {}", option, why)};
    }
    return {};
  };
  if (parser.count("--bias-dtype") > 0 && parser.count("--bias-shape") == 0 && !by_files) {
    return {StatusCode::invalid_argument, "--bias-dtype: it goes with --bias-shape"};
  }
  if (parser.count("--dbias-shape") > 0) {
    if (parser.count("--bias-shape") == 0 && parser.count("--bias") == 0) {
      return {StatusCode::invalid_argument, "--dbias-shape: it goes with a bias"};
    }
    const auto& named = arguments.gradients;
    if (!named.empty() && std::find(named.begin(), named.end(), "dbias") == named.end()) {
      return {StatusCode::invalid_argument, "--dbias-shape: --gradients leaves dbias out"};
    }
  }
  Status status = by_files ? refuse(kNumbers, "the problem is given by files, which say it: leave it out")
                           : refuse(files, "it goes with a problem given by files (--q, --k, --v), this one is given by numbers");
  if (status.ok() && !arguments.backward) status = refuse(kBackward, "it is of the backward pass, --backward is needed");
  return status;
}

Status explain(const CLI::App& parser, const ExplainArguments& arguments) {
  const ProblemArguments& given = arguments.problem;
  const bool by_files = !given.q.empty() || !given.k.empty() || !given.v.empty();
  if (Status status = check_use(parser, arguments, by_files); !status.ok()) return status;
  std::unique_ptr<LoadedProblem> files;
  AttentionTensors tensors;
  if (by_files) {
    Result<std::unique_ptr<LoadedProblem>> loaded = load_problem(given);
    if (!loaded.ok()) return loaded.status();
    files = std::move(loaded).value();
    tensors = files->tensors;
  } else {
    const Result<AttentionTensors> numbers = tensors_by_numbers(arguments);
    if (!numbers.ok()) return numbers.status();
    tensors = numbers.value();
  }
  if (arguments.lse) {
    tensors.lse = Tensor::bhqk(nullptr, DType::fp32, tensors.q.shape[0], tensors.q.shape[2], tensors.q.shape[1], 1);
  }
  Result<AttentionOptions> options = files != nullptr ? files->options : attention_options(given);
  if (!options.ok()) return options.status();
  options->vary_batch = arguments.vary_batch;
  options->vary_seqlen_k = arguments.vary_seqlen_k;
  if (arguments.backward) {
    if (Status status = add_gradients(arguments, tensors); !status.ok()) return status;
  }
  const Result<Problem> problem =
      arguments.backward ? make_backward_problem(tensors, options.value()) : make_problem(tensors, options.value());
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan(problem.value(), device_of(given), options.value());
  if (!planned.ok()) return planned.status();
  fmt::print("{}\n{:.4g} GFLOP, {:.4g} MB of inputs and outputs, {} bytes of workspace\n{}", to_string(problem.value()),
             problem->flops() / 1e9, problem->bytes() / 1e6, planned->workspace_bytes(), planned->explain());
  if (!planned->explain().ends_with('\n')) fmt::print("\n");
  return {};
}

}  // namespace

Command explain_command(CLI::App& app) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* parser = app.add_subcommand("explain", "say which kernel would run a problem and why each other one would not");
  add_problem_options(*parser, arguments->problem);
  parser->add_option("--batch", arguments->batch, "instead of files: the problem's numbers")->transform(int64_from(0));
  parser->add_option("--seqlen-q", arguments->seqlen_q, "queries")->transform(int64_from(0));
  parser->add_option("--seqlen-k", arguments->seqlen_k, "--seqlen-q when not given")->transform(int64_from(0));
  parser->add_option("--head-dim", arguments->head_dim, "of queries and keys")->transform(int64_from(1));
  parser->add_option("--head-dim-v", arguments->head_dim_v, "--head-dim when not given")->transform(int64_from(1));
  parser->add_option("--bias-shape", arguments->bias_shape, "a bias of batch,head,seqlen_q,seqlen_k, 1 where all are the same")
      ->delimiter(',')
      ->expected(4)
      ->transform(int64_from(0));
  parser->add_option("--bias-dtype", arguments->bias_dtype, "--dtype when not given")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  parser->add_option("--keep-shape", arguments->keep_shape, "a mask of batch,head,seqlen_q,seqlen_k")
      ->delimiter(',')
      ->expected(4)
      ->transform(int64_from(0));
  parser->add_flag("--with-alibi", arguments->alibi, "ALiBi slopes, fp32 [head]");
  parser->add_flag("--with-sinks", arguments->sinks, "attention sinks, fp32 [head]");
  parser->add_flag("--with-lse", arguments->lse, "the log-sum-exp is wanted, too");
  parser->add_flag("--backward", arguments->backward, "the backward pass of the problem");
  parser
      ->add_option("--gradients", arguments->gradients,
                   "backward: which of dq,dk,dv,dbias,dsinks; all that there are when not given")
      ->delimiter(',')
      ->check(CLI::IsMember({"dq", "dk", "dv", "dbias", "dsinks"}));
  parser
      ->add_option("--dbias-shape", arguments->dbias_shape, "backward: batch,head,seqlen_q,seqlen_k, the sum over those that are 1")
      ->delimiter(',')
      ->expected(4)
      ->transform(int64_from(0));
  parser->add_flag("--vary-batch", arguments->vary_batch, "a plan for batches of 0 to the problem's: which kernel runs each");
  parser->add_flag("--vary-seqlen-k", arguments->vary_seqlen_k, "the same of the number of keys");
  parser->add_flag("--with-dlse", arguments->dlse, "backward: with a gradient by the log-sum-exp");
  return {parser, [parser, arguments] { return explain(*parser, *arguments); }};
}

}  // namespace fulmen::tools
