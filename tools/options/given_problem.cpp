#include "tools/options/given_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fulmen/fulmen.h"
#include "tools/options/number_checks.h"
#include "tools/tensors/random_inputs.h"

namespace fulmen::tools {
namespace {

Tensor head_vector(int64_t heads) {
  Tensor tensor;
  tensor.shape = {1, 1, 1, heads};
  tensor.strides = {0, 0, 0, 1};
  return tensor;
}

// Views without data: planning looks at shapes only.
Result<AttentionTensors> tensors_by_numbers(const GivenProblem& given) {
  const ProblemArguments& problem = given.problem;
  if (given.seqlen_q < 0 || problem.heads <= 0 || given.head_dim <= 0) {
    return Status{
        StatusCode::invalid_argument,
        "the problem is given by files (--q, --k, --v) or by numbers: at least --seqlen-q, "
        "--heads and --head-dim"};
  }
  const Result<DType> dtype = parse_dtype(problem.dtype.empty() ? "fp32" : problem.dtype);
  if (!dtype.ok()) return dtype.status();
  const int64_t seqlen_k = given.seqlen_k < 0 ? given.seqlen_q : given.seqlen_k;
  const int64_t kv_heads = problem.kv_heads > 0 ? problem.kv_heads : problem.heads;
  const int64_t head_dim_v = given.head_dim_v > 0 ? given.head_dim_v : given.head_dim;
  const auto view = [&](const std::string& format, int64_t seqlen, int64_t heads, int64_t dim) {
    return view_in_layout(problem.layout, nullptr,
                          format.empty() ? dtype.value() : kv_format(format), given.batch, seqlen,
                          heads, dim);
  };
  AttentionTensors tensors;
  tensors.q = view({}, given.seqlen_q, problem.heads, given.head_dim);
  tensors.k = view(problem.k_format, seqlen_k, kv_heads, given.head_dim);
  tensors.v = view(problem.v_format, seqlen_k, kv_heads, head_dim_v);
  tensors.out = view({}, given.seqlen_q, problem.heads, head_dim_v);
  if (given.values_in_keys) {
    if (head_dim_v > given.head_dim) {
      return Status{StatusCode::invalid_argument,
                    fmt::format("--values-in-keys: --head-dim-v is {}, 1 to --head-dim, {}, are "
                                "accepted",
                                head_dim_v, given.head_dim)};
    }
    if (problem.k_format != problem.v_format) {
      return Status{StatusCode::invalid_argument,
                    "--values-in-keys: --k-format and --v-format must be the same"};
    }
    tensors.v.strides = tensors.k.strides;
  }
  if (!problem.k_format.empty()) tensors.k_scale = scale_of_heads(tensors.k);
  if (!problem.v_format.empty()) tensors.v_scale = scale_of_heads(tensors.v);
  if (const auto& s = given.bias_shape; !s.empty()) {
    const Result<DType> bias_dtype =
        given.bias_dtype.empty() ? dtype : parse_dtype(given.bias_dtype);
    if (!bias_dtype.ok()) return bias_dtype.status();
    tensors.bias = Tensor::bhqk(nullptr, bias_dtype.value(), s[0], s[1], s[2], s[3]);
  }
  if (const auto& s = given.keep_shape; !s.empty()) {
    tensors.keep_mask = Tensor::bhqk(nullptr, DType::boolean, s[0], s[1], s[2], s[3]);
  }
  if (given.alibi) tensors.alibi_slopes = head_vector(problem.heads);
  if (given.sinks) tensors.sinks = head_vector(problem.heads);
  return tensors;
}

// Views of what the backward pass reads and writes beside the forward tensors.
Status add_gradients(const GivenProblem& given, AttentionTensors& t) {
  t.dout = t.out;
  t.lse = Tensor::bhqk(nullptr, DType::fp32, t.q.shape[0], t.q.shape[2], t.q.shape[1], 1);
  if (given.dlse) t.dlse = t.lse;
  const bool has_bias = t.bias.shape != std::array<int64_t, 4>{},
             has_sinks = t.sinks.shape != std::array<int64_t, 4>{};
  Tensor dbias = t.bias;
  if (const auto& s = given.dbias_shape; !s.empty())
    dbias = Tensor::bhqk(nullptr, t.bias.dtype, s[0], s[1], s[2], s[3]);
  struct Gradient {
    const char* name;
    bool there;
    const Tensor& like;
    Tensor& gradient;
  };
  for (const Gradient& one :
       {Gradient{"dq", true, t.q, t.dq}, Gradient{"dk", true, t.k, t.dk},
        Gradient{"dv", true, t.v, t.dv}, Gradient{"dbias", has_bias, dbias, t.dbias},
        Gradient{"dsinks", has_sinks, t.sinks, t.dsinks}}) {
    const bool named = std::find(given.gradients.begin(), given.gradients.end(), one.name) !=
                       given.gradients.end();
    if (named && !one.there) {
      return {
          StatusCode::invalid_argument,
          fmt::format("--gradients {}: there is nothing here that it is a gradient of", one.name)};
    }
    if (named || (given.gradients.empty() && one.there)) one.gradient = one.like;
  }
  return {};
}

}  // namespace

void add_given_problem_options(CLI::App& parser, GivenProblem& given) {
  add_problem_options(parser, given.problem);
  parser.add_option("--batch", given.batch, "instead of files: the problem's numbers")
      ->transform(int64_from(0));
  parser.add_option("--seqlen-q", given.seqlen_q, "queries")->transform(int64_from(0));
  parser.add_option("--seqlen-k", given.seqlen_k, "--seqlen-q when not given")
      ->transform(int64_from(0));
  parser.add_option("--head-dim", given.head_dim, "of queries and keys")->transform(int64_from(1));
  parser.add_option("--head-dim-v", given.head_dim_v, "--head-dim when not given")
      ->transform(int64_from(1));
  parser
      .add_option("--bias-shape", given.bias_shape,
                  "a bias of batch,head,seqlen_q,seqlen_k, 1 where all are the same")
      ->delimiter(',')
      ->expected(4)
      ->transform(int64_from(0));
  parser.add_option("--bias-dtype", given.bias_dtype, "--dtype when not given")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  parser.add_option("--keep-shape", given.keep_shape, "a mask of batch,head,seqlen_q,seqlen_k")
      ->delimiter(',')
      ->expected(4)
      ->transform(int64_from(0));
  parser.add_flag("--values-in-keys", given.values_in_keys,
                  "v is the first dims of k, the same memory (latent attention)");
  parser.add_flag("--with-alibi", given.alibi, "ALiBi slopes, fp32 [head]");
  parser.add_flag("--with-sinks", given.sinks, "attention sinks, fp32 [head]");
  parser.add_flag("--with-lse", given.lse, "the log-sum-exp is wanted, too");
  parser.add_flag("--backward", given.backward, "the backward pass of the problem");
  parser
      .add_option("--gradients", given.gradients,
                  "backward: which of dq,dk,dv,dbias,dsinks; all that there are when not given")
      ->delimiter(',')
      ->check(CLI::IsMember({"dq", "dk", "dv", "dbias", "dsinks"}));
  parser
      .add_option("--dbias-shape", given.dbias_shape,
                  "backward: batch,head,seqlen_q,seqlen_k, the sum over those that are 1")
      ->delimiter(',')
      ->expected(4)
      ->transform(int64_from(0));
  parser.add_flag("--with-dlse", given.dlse, "backward: with a gradient by the log-sum-exp");
}

Status check_use(const CLI::App& parser, const GivenProblem& given) {
  const bool by_files = given.by_files();
  constexpr const char* kNumbers[] = {"--batch",      "--seqlen-q",      "--seqlen-k",
                                      "--head-dim",   "--head-dim-v",    "--bias-shape",
                                      "--bias-dtype", "--keep-shape",    "--with-alibi",
                                      "--with-sinks", "--values-in-keys"};
  std::vector<const char*> files{"--bias", "--keep", "--bf16", "--max-seqlen-q", "--max-seqlen-k"};
  for (const VectorFile& file : kVectorFiles) files.push_back(file.option);
  constexpr const char* kBackward[] = {"--gradients", "--dbias-shape", "--with-dlse"};
  const auto refuse = [&](const auto& options, const char* why) -> Status {
    for (const char* option : options) {
      if (parser.count(option) > 0)
        return {StatusCode::invalid_argument, fmt::format("{}: {}", option, why)};
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
    const auto& named = given.gradients;
    if (!named.empty() && std::find(named.begin(), named.end(), "dbias") == named.end()) {
      return {StatusCode::invalid_argument, "--dbias-shape: --gradients leaves dbias out"};
    }
  }
  Status status =
      by_files ? refuse(kNumbers, "the problem is given by files, which say it: leave it out")
               : refuse(files,
                        "it goes with a problem given by files (--q, --k, --v), this one is given "
                        "by numbers");
  if (status.ok() && !given.backward)
    status = refuse(kBackward, "it is of the backward pass, --backward is needed");
  return status;
}

Result<GivenCall> make_call(const GivenProblem& given) {
  GivenCall call;
  Result<AttentionOptions> options = attention_options(given.problem);
  if (!options.ok()) return options.status();
  call.options = std::move(options).value();
  if (given.by_files()) {
    Result<std::unique_ptr<LoadedProblem>> loaded = load_problem(given.problem);
    if (!loaded.ok()) return loaded.status();
    call.files = std::move(loaded).value();
    call.tensors = call.files->tensors;
    call.options = call.files->options;
  } else {
    const Result<AttentionTensors> numbers = tensors_by_numbers(given);
    if (!numbers.ok()) return numbers.status();
    call.tensors = numbers.value();
    call.values_in_keys = given.values_in_keys;
  }
  const auto& q = call.tensors.q.shape;
  if (given.lse) call.tensors.lse = Tensor::bhqk(nullptr, DType::fp32, q[0], q[2], q[1], 1);
  if (given.backward) {
    if (Status status = add_gradients(given, call.tensors); !status.ok()) return status;
  }
  return call;
}

}  // namespace fulmen::tools
