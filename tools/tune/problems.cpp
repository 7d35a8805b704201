#include "tools/tune/problems.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "fulmen/printable.h"
#include "tools/options/problem_arguments.h"

namespace fulmen::tools {
namespace {

struct Layer {
  const char* model;
  const char* suite;
  int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
  bool causal, bias, backward;
  bool full;  // only where --full asks for it
};

// T82: a chess engine of 24 heads of 32 dims. Llama 3 8B: prefill and decode. SDXL: self-attention
// of its two resolutions.
const std::vector<Layer>& layers() {
  static const auto* const kLayers = new std::vector<Layer>{
      {"t82", "boards", 64, 64, 64, 24, 24, 32, false, true, false, false},
      {"t82", "boards", 256, 64, 64, 24, 24, 32, false, true, false, true},
      {"t82", "training", 64, 64, 64, 24, 24, 32, false, true, true, true},
      {"llama3-8b", "prefill", 1, 4096, 4096, 32, 8, 128, true, false, false, false},
      {"llama3-8b", "decode", 1, 1, 8192, 32, 8, 128, false, false, false, false},
      {"llama3-8b", "decode", 16, 1, 8192, 32, 8, 128, false, false, false, true},
      {"llama3-8b", "training", 1, 2048, 2048, 32, 8, 128, true, false, true, true},
      {"sdxl", "prefill", 2, 4096, 4096, 10, 10, 64, false, false, false, false},
      {"sdxl", "prefill", 2, 1024, 1024, 20, 20, 64, false, false, false, true},
      {"sdxl", "prefill", 2, 4096, 77, 10, 10, 64, false, false, false, true},
  };
  return *kLayers;
}

// A processor has minutes for what a GPU does in seconds, an emulated GPU for a small case of each.
void shrink(BenchCase& c, CaseSize size) {
  constexpr int64_t kCpuLength = 2048, kEmulatedLength = 128, kEmulatedKeys = 512;
  if (size == CaseSize::cpu && c.seqlen_q > kCpuLength) {
    c.seqlen_q = kCpuLength;
    c.seqlen_k = std::min(c.seqlen_k, kCpuLength);
  }
  if (size != CaseSize::emulated) return;
  const int64_t group = c.heads / c.kv_heads;
  c.batch = 1;
  c.kv_heads = 1;
  c.heads = group;
  c.seqlen_k = std::min(c.seqlen_k, c.seqlen_q == 1 ? kEmulatedKeys : kEmulatedLength);
  c.seqlen_q = std::min(c.seqlen_q, kEmulatedLength);
}

}  // namespace

std::string tune_problem_name(const BenchCase& c, Pass pass) {
  return fmt::format("{} {} x {}{} x {} q{}{}{}{}{}{}", to_string(c.dtype), c.batch, c.heads,
                     c.kv_heads == c.heads ? "" : fmt::format("/{}", c.kv_heads), c.head_dim,
                     c.seqlen_q, c.seqlen_k == c.seqlen_q ? "" : fmt::format(" k{}", c.seqlen_k),
                     c.causal ? " causal" : "", c.bias ? " bias" : "",
                     c.page_size > 0 ? fmt::format(" pages of {}", c.page_size) : "",
                     pass == Pass::backward ? " backward" : "");
}

std::string tune_problem_text(const BenchCase& c, Pass pass) {
  return fmt::format(
      "batch={},seqlen_q={},seqlen_k={},heads={},kv_heads={},head_dim={}{}{}{}{},dtype={}", c.batch,
      c.seqlen_q, c.seqlen_k, c.heads, c.kv_heads, c.head_dim, c.causal ? ",causal" : "",
      c.bias ? ",bias" : "", pass == Pass::backward ? ",backward" : "",
      c.page_size > 0 ? fmt::format(",page_size={}", c.page_size) : "", to_string(c.dtype));
}

std::vector<std::string> tune_models() { return {"t82", "llama3-8b", "sdxl"}; }

Result<std::vector<TuneProblem>> tune_problems(const std::string& model, DType dtype, CaseSize size,
                                               bool full) {
  std::vector<TuneProblem> problems;
  for (const Layer& l : layers()) {
    if ((model != "all" && model != l.model) || (l.full && !full)) continue;
    TuneProblem problem;
    problem.bench_case = {.suite = l.suite,
                          .name = {},
                          .dtype = dtype,
                          .batch = l.batch,
                          .seqlen_q = l.seqlen_q,
                          .seqlen_k = l.seqlen_k,
                          .heads = l.heads,
                          .kv_heads = l.kv_heads,
                          .head_dim = l.head_dim,
                          .causal = l.causal,
                          .bias = l.bias,
                          .training = l.backward};
    problem.pass = l.backward ? Pass::backward : Pass::forward;
    shrink(problem.bench_case, size);
    problem.bench_case.name =
        fmt::format("{} {}", l.model, tune_problem_name(problem.bench_case, problem.pass));
    problems.push_back(problem);
  }
  if (!problems.empty()) return problems;
  return Status(StatusCode::invalid_argument,
                fmt::format("--model {}: all, {} are known", printable(model),
                            fmt::join(tune_models(), ", ")));
}

Result<TuneProblem> parse_tune_problem(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    return Status{StatusCode::invalid_argument,
                  fmt::format("--problem {}: {}; such as "
                              "\"batch=1,seqlen_q=4096,heads=32,kv_heads=8,head_dim=128,causal,"
                              "bias,backward,page_size=16,"
                              "dtype=bf16\"",
                              printable(text), why)};
  };
  TuneProblem problem;
  BenchCase& c = problem.bench_case;
  c.dtype = DType::bf16;
  c.seqlen_k = c.kv_heads = 0;
  const std::map<std::string, int64_t*> numbers{
      {"batch", &c.batch},        {"seqlen_q", &c.seqlen_q}, {"seqlen_k", &c.seqlen_k},
      {"heads", &c.heads},        {"kv_heads", &c.kv_heads}, {"head_dim", &c.head_dim},
      {"page_size", &c.page_size}};
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at), name = one.substr(0, one.find('='));
    const std::string value = one.size() > name.size() ? one.substr(name.size() + 1) : "";
    at = end + 1;
    if (const auto number = numbers.find(name); number != numbers.end()) {
      const char* last = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), last, *number->second);
      if (error != std::errc() || stop != last || *number->second < 1 ||
          *number->second > kMostNumber)
        return refuse(fmt::format("{} is a number from 1 to {}", name, kMostNumber));
    } else if (name == "dtype") {
      const Result<DType> dtype = parse_dtype(value);
      if (!dtype.ok()) return refuse("dtype is fp32, fp16 or bf16");
      c.dtype = dtype.value();
    } else if (one == "causal") {
      c.causal = true;
    } else if (one == "bias") {
      c.bias = true;
    } else if (one == "backward") {
      problem.pass = Pass::backward;
    } else {
      return refuse(printable(one) + " is not known");
    }
  }
  if (c.seqlen_q == 0 || c.head_dim == 0) return refuse("seqlen_q and head_dim are needed");
  if (c.seqlen_k == 0) c.seqlen_k = c.seqlen_q;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.heads % c.kv_heads != 0) return refuse("heads is no multiple of kv_heads");
  c.training = problem.pass == Pass::backward;
  if (c.training && c.page_size > 0)
    return refuse("gradients are of rows one after the other: page_size or backward");
  c.suite = c.training        ? "training"
            : c.page_size > 0 ? "paged"
            : c.seqlen_q == 1 ? "decode"
                              : "prefill";
  c.name = tune_problem_name(c, problem.pass);
  return problem;
}

}  // namespace fulmen::tools
