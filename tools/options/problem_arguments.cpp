#include "tools/options/problem_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "fulmen/backend.h"
#include "fulmen/names.h"
#include "fulmen/printable.h"
#include "tools/options/number_checks.h"
#include "tools/tensors/float_conversion.h"

namespace fulmen::tools {
namespace {

// The formats of keys and values in files without a header.
constexpr DType kRawFormats[] = {
    DType::int8, DType::fp8_e4m3, DType::fp8_e5m2, DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz,
    DType::q8_0, DType::q4_0,     DType::q4_1,     DType::q5_0,         DType::q5_1};
std::vector<std::string> raw_format_names() {
  std::vector<std::string> names;
  for (const DType format : kRawFormats) names.emplace_back(to_string(format));
  return names;
}

// "L,R", each -1 or more.
bool parse_window(std::string_view text, AttentionOptions& options) {
  const char* end = text.data() + text.size();
  const auto left = std::from_chars(text.data(), end, options.window_left);
  if (left.ec != std::errc{} || left.ptr == end || *left.ptr != ',') return false;
  const auto right = std::from_chars(left.ptr + 1, end, options.window_right);
  return right.ec == std::errc{} && right.ptr == end && options.window_left >= -1 &&
         options.window_right >= -1;
}

// A file's array, converted to the dtype that was asked for when it is fp32.
Status read_file(const ProblemArguments& arguments, const std::string& path, NpyArray& array) {
  Result<NpyArray> read = read_npy(path, arguments.bf16 || arguments.dtype == "bf16");
  if (!read.ok()) return read.status();
  array = std::move(read).value();
  if (array.dtype == DType::boolean || array.dtype == DType::int32) {
    const char* name = array.dtype == DType::boolean ? "bool" : "int32";
    return invalid(
        fmt::format("{}: dtype {} is not accepted here: use a float type", printable(path), name));
  }
  if (arguments.dtype.empty()) return {};
  const Result<DType> dtype = parse_dtype(arguments.dtype);
  if (!dtype.ok()) return dtype.status();
  if (array.dtype == dtype.value()) return {};
  if (array.dtype != DType::fp32) {
    return invalid(fmt::format("{}: holds {}, and --dtype {} converts from fp32 only",
                               printable(path), to_string(array.dtype), arguments.dtype));
  }
  const std::size_t count = array.element_count();
  Memory converted(count * static_cast<std::size_t>(size_of(dtype.value())));
  if (count != 0 && converted.data() == nullptr)
    return {StatusCode::out_of_memory, fmt::format("{}: no memory to convert it", path)};
  convert_from_fp32(static_cast<const float*>(array.data.data()), dtype.value(), converted.data(),
                    count);
  array.data = std::move(converted);
  array.dtype = dtype.value();
  return {};
}

Result<Tensor> view_of_file(const ProblemArguments& arguments, const char* option,
                            const NpyArray& array, int64_t heads) {
  const auto& s = array.shape;
  if (arguments.layout == "interleaved") {
    if (s.size() != 3) {
      return invalid(fmt::format(
          "{} ({}): shape {} is not [batch, seqlen, heads * dim], which --layout interleaved takes",
          option, array.path, shape_text(s)));
    }
    if (heads <= 0)
      return invalid("--layout interleaved needs --heads, the number of query heads, 1 or more");
    if (s[2] % heads != 0 || s[2] == 0) {
      return invalid(fmt::format("{} ({}): the last size of shape {} is not a multiple of {} heads",
                                 option, array.path, shape_text(s), heads));
    }
    return view_in_layout(arguments.layout, array.data.data(), array.dtype, s[0], s[1], heads,
                          s[2] / heads);
  }
  const bool heads_first = arguments.layout == "bhsd";
  if (s.size() != 4) {
    return invalid(fmt::format(
        "{} ({}): shape {} is not [{}], which --layout {} takes", option, array.path, shape_text(s),
        heads_first ? "batch, head, seqlen, dim" : "batch, seqlen, head, dim", arguments.layout));
  }
  const int64_t file_heads = heads_first ? s[1] : s[2];
  if (heads > 0 && file_heads != heads) {
    return invalid(fmt::format("{} ({}): has {} heads in shape {}, but {} were asked for", option,
                               array.path, file_heads, shape_text(s), heads));
  }
  return view_in_layout(arguments.layout, array.data.data(), array.dtype, s[0],
                        heads_first ? s[2] : s[1], file_heads, s[3]);
}

// Views a bias or keep mask: [batch, head, seqlen_q, seqlen_k], 1 where it is the same for all.
// Fewer dims where the name says so.
Result<Tensor> view_of_scores(const char* option, const NpyArray& array,
                              bool two_dims_are_batch_key) {
  const auto& s = array.shape;
  void* data = array.data.data();
  if (s.size() == 4) return Tensor::bhqk(data, array.dtype, s[0], s[1], s[2], s[3]);
  if (s.size() == 2 && two_dims_are_batch_key)
    return Tensor::bhqk(data, array.dtype, s[0], 1, 1, s[1]);
  if (s.size() == 2) return Tensor::bhqk(data, array.dtype, 1, 1, s[0], s[1]);
  if (s.size() == 3 && !two_dims_are_batch_key)
    return Tensor::bhqk(data, array.dtype, 1, s[0], s[1], s[2]);
  return invalid(fmt::format(
      "{} ({}): shape {} is not [batch, head, seqlen_q, seqlen_k] (1 where all are the same){}",
      option, array.path, shape_text(s),
      two_dims_are_batch_key ? " or [batch, seqlen_k]"
                             : ", [head, seqlen_q, seqlen_k] or [seqlen_q, seqlen_k]"));
}

// Reads an optional file and stores a view of it.
template <class MakeView>
Status load_optional(const std::string& path, bool bf16, NpyArray& array, Tensor& tensor,
                     const MakeView& make_view) {
  if (path.empty()) return {};
  Result<NpyArray> read = read_npy(path, bf16);
  if (!read.ok()) return read.status();
  array = std::move(read).value();
  const Result<Tensor> view = make_view(array);
  if (!view.ok()) return view.status();
  tensor = view.value();
  return {};
}

Status load_optional_tensors(const ProblemArguments& arguments, LoadedProblem& problem) {
  const bool bf16 = arguments.bf16 || arguments.dtype == "bf16";
  AttentionTensors& tensors = problem.tensors;
  Status status =
      load_optional(arguments.bias, bf16, problem.bias, tensors.bias,
                    [](const NpyArray& array) -> Result<Tensor> {
                      if (array.dtype == DType::boolean) {
                        return invalid(fmt::format(
                            "--bias ({}): dtype bool is a mask: give it as --keep", array.path));
                      }
                      return view_of_scores("--bias", array, false);
                    });
  if (!status.ok()) return status;
  return load_optional(arguments.keep, true, problem.keep, tensors.keep_mask,
                       [](const NpyArray& array) -> Result<Tensor> {
                         if (array.dtype != DType::boolean) {
                           return invalid(fmt::format("--keep ({}): dtype {} is not bool or uint8",
                                                      array.path, to_string(array.dtype)));
                         }
                         return view_of_scores("--keep", array, true);
                       });
}

}  // namespace

DType kv_format(const std::string& name) {
  return *std::find_if(std::begin(kRawFormats), std::end(kRawFormats) - 1,
                       [&](DType format) { return name == to_string(format); });
}

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

std::vector<InputFile> input_files(const ProblemArguments& a) {
  std::vector<InputFile> files{
      {"--q", a.q}, {"--k", a.k}, {"--v", a.v}, {"--bias", a.bias}, {"--keep", a.keep}};
  for (std::size_t i = 0; i < kVectorFiles.size(); ++i)
    files.push_back({kVectorFiles[i].option, a.vectors.paths[i]});
  return files;
}

void add_problem_options(CLI::App& app, ProblemArguments& arguments) {
  app.add_option("--q", arguments.q, "queries, a .npy file in the layout");
  app.add_option("--k", arguments.k, "keys");
  app.add_option("--v", arguments.v, "values");
  for (const auto& [name, format] :
       {std::pair{"--k-format", &arguments.k_format}, {"--v-format", &arguments.v_format}}) {
    app.add_option(name, *format,
                   "the file is the bytes of this format, without a header, in the layout: "
                   "q says the batch and head_dim, the file's size seqlen_k. By numbers, where a "
                   "command takes them: this format, int8 and fp8 with a scale of each head")
        ->check(CLI::IsMember(raw_format_names()));
  }
  app.add_option("--bias", arguments.bias,
                 "additive bias [batch, head, seqlen_q, seqlen_k], 1 where all are the same; or "
                 "[head, q, k], [q, k]");
  app.add_option(
      "--keep", arguments.keep,
      "bool mask, true = attend: [batch, seqlen_k] or [batch, head, seqlen_q, seqlen_k]");
  // The value may be left out. There are no arguments without a name that it could be taken for.
  app.add_option("--causal", arguments.causal,
                 "causal mask: --causal (bottom-right), --causal top-left or --causal none")
      ->expected(0, 1)
      ->type_name("[ALIGNMENT]");
  app.add_option("--window", arguments.window,
                 "keys to attend left and right of the diagonal: L,R, -1 is unlimited");
  app.add_option("--dropout", arguments.dropout,
                 "probability, below 1, that an element of the softmax is dropped; 0 is off")
      ->check(finite_number());
  app.add_flag("--deterministic,!--no-deterministic", arguments.deterministic,
               "gradients are the same bits in every run, the default; without: also kernels that "
               "add them by atomics");
  app.add_option("--score-mod", arguments.score_mod,
                 "a function of scores, as \"score - 0.1 * abs(q - k)\"");
  app.add_option("--mask-mod", arguments.mask_mod, "which pairs are attended, as \"q >= k\"");
  app.add_option(
         "--precision", arguments.precision,
         "in which numbers the products are: exact, the default, or int8 or fp8, about 1 and "
         "5 % off: int8 has kernels on CPUs, AMD and NVIDIA, fp8 on AMD and NVIDIA, and plain "
         "loops on CPUs")
      ->check(CLI::IsMember({"exact", "int8", "fp8"}));
  app.add_option("--softcap", arguments.softcap,
                 "score = softcap * tanh(score / softcap); 0 is off")
      ->check(finite_number());
  app.add_option("--scale", arguments.scale, "of the scores; 1 / sqrt(head_dim) when not given")
      ->check(finite_number());
  app.add_option("--layout", arguments.layout,
                 "memory order: bshd, bhsd or interleaved ([batch, seqlen, heads * dim])")
      ->check(CLI::IsMember({"bshd", "bhsd", "interleaved"}));
  app.add_option("--heads", arguments.heads, "query heads (needed by interleaved)")
      ->transform(int64_from(1));
  app.add_option("--kv-heads", arguments.kv_heads,
                 "heads of keys and values; --heads when not given")
      ->transform(int64_from(1));
  app.add_option("--dtype", arguments.dtype,
                 "compute in fp32, fp16 or bf16: fp32 files are converted")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  app.add_flag("--bf16", arguments.bf16, "uint16 files hold bf16");
  add_vector_options(app, arguments.vectors);
  app.add_option("--device", arguments.device, "see `fulmen devices`");
  app.add_option("--kernel", arguments.kernel, "force a kernel by name, see `fulmen explain`");
  app.add_option(
      "--set", arguments.tuning,
      "the kernel's parameters, such as block_m=64,waves=4; `fulmen explain` names them");
  app.add_option("--threads", arguments.threads,
                 "CPU threads; 0 takes OMP_NUM_THREADS, else all processors")
      ->transform(int_from(0));
}

Precision precision_of(const std::string& name) {
  return name == "int8" ? Precision::int8 : name == "fp8" ? Precision::fp8 : Precision::exact;
}

Result<DType> parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    if (name == to_string(dtype)) return dtype;
  }
  return invalid(fmt::format("--dtype {}: fp32, fp16 and bf16 are accepted", name));
}

Status check_device_and_kernel(const std::string& device, const std::string& kernel) {
  const Tensor one = Tensor::bshd(nullptr, DType::fp32, 1, 1, 1, 1);
  const Result<Problem> any = make_problem({.q = one, .k = one, .v = one, .out = one}, {});
  const Result<std::vector<Candidate>> known = candidates(any.value(), device);
  if (!known.ok() || kernel.empty()) return known.status();
  if (std::any_of(known->begin(), known->end(),
                  [&](const Candidate& c) { return c.kernel == kernel; }))
    return {};
  std::vector<std::string> names;
  for (const Candidate& candidate : known.value()) names.push_back(candidate.kernel);
  return invalid(
      fmt::format("--kernel {}: {} has no kernel of that name; {}, see `fulmen devices --all`",
                  kernel, device, names_like(kernel, names)));
}

std::string device_of(const ProblemArguments& arguments) {
  return arguments.device.empty() ? default_device() : arguments.device;
}

Result<AttentionOptions> attention_options(const ProblemArguments& arguments) {
  AttentionOptions options;
  options.softmax_scale = arguments.scale;
  options.softcap = arguments.softcap;
  options.score_mod = arguments.score_mod;
  options.mask_mod = arguments.mask_mod;
  options.dropout = arguments.dropout;
  options.deterministic = arguments.deterministic;
  options.precision = precision_of(arguments.precision);
  options.kernel = arguments.kernel;
  options.tuning = arguments.tuning;
  options.num_threads = arguments.threads;
  options.verify = arguments.verify;
  options.validate = arguments.validate;
  if (arguments.causal.empty() || arguments.causal == "bottom-right" ||
      arguments.causal == "true") {
    options.causal = Causal::bottom_right;
  } else if (arguments.causal == "top-left") {
    options.causal = Causal::top_left;
  } else if (arguments.causal != "none" && arguments.causal != "false") {
    return invalid(
        fmt::format("--causal {}: bottom-right, top-left and none are accepted", arguments.causal));
  }
  if (!arguments.window.empty() && !parse_window(arguments.window, options)) {
    return invalid(
        fmt::format("--window {}: two numbers L,R are expected, each from -1 (unlimited) to {}",
                    printable(arguments.window), std::numeric_limits<int64_t>::max()));
  }
  return options;
}

Tensor view_in_layout(const std::string& layout, void* data, DType dtype, int64_t batch,
                      int64_t seqlen, int64_t heads, int64_t dim) {
  return layout == "bhsd" ? Tensor::bhsd(data, dtype, batch, seqlen, heads, dim)
                          : Tensor::bshd(data, dtype, batch, seqlen, heads, dim);
}

std::vector<int64_t> file_shape(const std::string& layout, const Tensor& tensor) {
  const auto [batch, seqlen, heads, dim] = tensor.shape;
  if (layout == "interleaved") return {batch, seqlen, heads * dim};
  if (layout == "bhsd") return {batch, heads, seqlen, dim};
  return {batch, seqlen, heads, dim};
}

Result<Tensor> read_operand(const ProblemArguments& arguments, const char* option,
                            const std::string& path, int64_t heads, NpyArray& array) {
  if (Status status = read_file(arguments, path, array); !status.ok()) return status;
  return view_of_file(arguments, option, array, heads);
}

namespace {

// Keys or values in a format that .npy files have no dtype for.
Result<Tensor> read_raw(const ProblemArguments& arguments, const char* option,
                        const std::string& path, DType format, const Tensor& q, int64_t heads,
                        NpyArray& array) {
  Result<NpyArray> read = read_bytes(path);
  if (!read.ok()) return read.status();
  array = std::move(read).value();
  const int64_t dim = q.shape[3], batch = q.shape[0], kv_heads = heads > 0 ? heads : q.shape[2];
  if (block_bytes(format) > 0 && dim % kBlockNumbers != 0) {
    return invalid(fmt::format("{} ({}): q has head_dim {}, and {} has blocks of {} numbers",
                               option, array.path, dim, to_string(format), kBlockNumbers));
  }
  const int64_t row = row_elements(format, dim), bytes = array.shape[0];
  int64_t of_all = 0;  // bytes of a row of all heads and sequences
  const bool too_many = __builtin_mul_overflow(batch, kv_heads, &of_all) ||
                        __builtin_mul_overflow(of_all, row, &of_all);
  const std::string product =
      fmt::format("batch {} x {} heads x rows of {} bytes, {} x head_dim {}", batch, kv_heads, row,
                  to_string(format), dim);
  if (!too_many && of_all <= 0) {
    return invalid(fmt::format("{} ({}): {} is nothing, so that its size does not say seqlen_k",
                               option, array.path, product));
  }
  if (too_many || bytes % of_all != 0) {
    return invalid(fmt::format("{} ({}): has {} bytes, no multiple of {} ({})", option, array.path,
                               bytes, too_many ? "2^63 and more" : std::to_string(of_all),
                               product));
  }
  array.dtype = format;
  return view_in_layout(arguments.layout, array.data.data(), format, batch, bytes / of_all,
                        kv_heads, dim);
}

}  // namespace

Status check_standard_input(const std::vector<InputFile>& files) {
  const InputFile* first = nullptr;
  for (const InputFile& file : files) {
    if (file.path != "-") continue;
    if (first != nullptr) {
      return invalid(
          fmt::format("{} and {} are both -, the standard input, which can be read once: a file's "
                      "name is needed for one",
                      first->option, file.option));
    }
    first = &file;
  }
  return {};
}

Result<std::unique_ptr<LoadedProblem>> load_problem(const ProblemArguments& arguments) {
  if (arguments.q.empty() || arguments.k.empty() || arguments.v.empty())
    return invalid("--q, --k and --v are all needed");
  if (Status status = check_standard_input(input_files(arguments)); !status.ok()) return status;
  if (!(arguments.k_format.empty() && arguments.v_format.empty()) &&
      arguments.vectors.given(&AttentionTensors::block_table)) {
    return invalid(
        "--k-format and --v-format do not go with --block-table: a file without a header does not "
        "say its pages");
  }
  auto problem = std::make_unique<LoadedProblem>();
  Result<AttentionOptions> options = attention_options(arguments);
  if (!options.ok()) return options.status();
  problem->options = std::move(options).value();

  const int64_t kv_heads = arguments.kv_heads > 0              ? arguments.kv_heads
                           : arguments.layout == "interleaved" ? arguments.heads
                                                               : 0;
  struct Operand {
    const char* option;
    const std::string& path;
    NpyArray& array;
    Tensor& tensor;
    int64_t heads;
    std::string format;
  };
  for (const Operand& operand :
       {Operand{"--q", arguments.q, problem->q, problem->tensors.q, arguments.heads, {}},
        Operand{"--k", arguments.k, problem->k, problem->tensors.k, kv_heads, arguments.k_format},
        Operand{"--v", arguments.v, problem->v, problem->tensors.v, kv_heads,
                arguments.v_format}}) {
    const Result<Tensor> view =
        operand.format.empty()
            ? read_operand(arguments, operand.option, operand.path, operand.heads, operand.array)
            : read_raw(arguments, operand.option, operand.path, kv_format(operand.format),
                       problem->tensors.q, operand.heads, operand.array);
    if (!view.ok()) return view.status();
    operand.tensor = view.value();
  }
  if (Status status = load_optional_tensors(arguments, *problem); !status.ok()) return status;
  Status status =
      load_vectors(arguments.vectors, problem->vectors, problem->tensors, problem->options);
  if (!status.ok()) return status;
  const auto [batch, seqlen, heads, dim] = problem->tensors.q.shape;
  problem->tensors.out = view_in_layout(arguments.layout, nullptr, problem->tensors.q.dtype, batch,
                                        seqlen, heads, problem->tensors.v.shape[3]);
  return problem;
}

}  // namespace fulmen::tools
