#include "tools/bench/measure/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "fulmen/fulmen.h"
#include "tools/bench/measure/clock.h"
#include "tools/tensors/random_inputs.h"
#include "tools/verify/sampled.h"

namespace fulmen::tools {
namespace {

// Gradients that take too long are verified on problems of this size.
constexpr int64_t kShorterSeqlen = 512, kFewerBoards = 64;
constexpr double kStandardShare = 0.3;  // its share of the time that a case gets
constexpr std::size_t kMinRepetitions = 3;
// flop/s assumed of standard attention until it was seen to do better.
constexpr double kUnknownStandardRate = 5e9;
constexpr std::size_t kMaxStandardWorkspace = std::size_t{4} << 30;

CeilingKind ceiling_of(const BenchCase& bench_case, const std::string& kernel) {
  if (is_decode(bench_case)) return CeilingKind::read;
  if (kernel.find("amx") != std::string::npos) return CeilingKind::amx_bf16;
  if (kernel.find("bf16") != std::string::npos) return CeilingKind::bf16_dot;
  return CeilingKind::fma;
}

// The device's kernels <backend>.standard.* of a pass.
std::vector<std::string> standard_kernels(const std::string& device, Pass pass) {
  std::vector<std::string> names;
  const auto backend = backend_of(device);
  if (backend == nullptr) return names;
  for (const Kernel* kernel : backend->kernels()) {
    const bool standard = kernel->name().find(".standard.") != std::string_view::npos;
    if (standard && kernel->pass() == pass) names.emplace_back(kernel->name());
  }
  return names;
}

// A chess engine's attention: short rows, and a bias where there are gradients.
bool is_board(const BenchCase& c) {
  return c.suite == "boards" || (c.suite == "training" && c.bias);
}

std::size_t bytes_of_outputs(const AttentionTensors& tensors) {
  std::size_t bytes = 0;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (Tensor AttentionTensors::* const one : outputs_of(pass)) {
      bytes +=
          stored_elements(tensors.*one) * static_cast<std::size_t>(size_of((tensors.*one).dtype));
    }
  }
  return bytes;
}

// Plans of a case's passes. kernel: forced by name in the pass that it computes; the other is free.
Result<std::vector<Plan>> plan_case(const CaseData& data, const std::string& device,
                                    const std::string& kernel) {
  std::vector<Plan> plans;
  const bool backward_kernel = is_backward_kernel(device, kernel);
  for (const Problem* problem : {&data.problem, data.backward ? &*data.backward : nullptr}) {
    if (problem == nullptr) continue;
    AttentionOptions options = data.options;
    const bool both = data.backward.has_value();
    options.kernel = both && backward_kernel != (problem->pass == Pass::backward) ? "" : kernel;
    // --set applies to the pass that is asked for.
    if (both && problem->pass == Pass::forward) options.tuning.clear();
    Result<Plan> planned = plan(*problem, device, options);
    if (!planned.ok()) return planned.status();
    plans.push_back(std::move(planned).value());
  }
  return plans;
}

// Returns "2 x 8/2x64 S300,400 causal bias", which tells a problem of --problem from others.
std::string name_of(const Problem& p, bool backward, const AttentionOptions& options) {
  const auto two = [](int64_t a, int64_t b, const char* between) {
    return a == b ? fmt::format("{}", a) : fmt::format("{}{}{}", a, between, b);
  };
  std::string name =
      fmt::format("{}{}x{} S{}", p.batch == 1 ? "" : fmt::format("{} x ", p.batch),
                  two(p.num_heads, p.num_kv_heads, "/"), two(p.head_dim, p.head_dim_v, ","),
                  two(p.seqlen_q, p.seqlen_k, ","));
  if (options.causal != Causal::none)
    name += p.top_left || options.causal == Causal::top_left ? " top-left" : " causal";
  if (options.window_left >= 0 || options.window_right >= 0)
    name += fmt::format(" window {},{}", options.window_left, options.window_right);
  const std::pair<bool, const char*> features[] = {{p.bias.present, " bias"},
                                                   {p.keep_mask.present, " mask"},
                                                   {p.alibi_slopes.present, " alibi"},
                                                   {p.sinks.present, " sinks"},
                                                   {p.softcap > 0, " softcap"},
                                                   {p.dropout > 0, " dropout"},
                                                   {p.lse.present && !backward, " lse"},
                                                   {p.packed_q(), " packed"},
                                                   {p.seqlens_k.present, " padded"},
                                                   {p.paged(), " paged"},
                                                   {backward, " backward"}};
  for (const auto& [present, word] : features) name += present ? word : "";
  return name;
}

// Real input and --problem bring their own numbers.
void take_numbers(const CaseData& data, BenchCase& bench_case) {
  const Problem& problem = data.problem;
  bench_case.batch = problem.batch;
  bench_case.seqlen_q = problem.seqlen_q;
  bench_case.seqlen_k = problem.seqlen_k;
  bench_case.heads = problem.num_heads;
  bench_case.kv_heads = problem.num_kv_heads;
  bench_case.head_dim = problem.head_dim;
  if (bench_case.given == nullptr) return;
  bench_case.name = name_of(problem, data.backward.has_value(), data.options);
  bench_case.dtype = problem.dtype;
  bench_case.causal = data.options.causal != Causal::none;
  bench_case.bias = problem.bias.present;
  // Reading the keys then takes longer than computing.
  constexpr int64_t kFewQueries = 8, kKeysAQuery = 32;
  bench_case.few_queries = data.files == nullptr && !bench_case.training &&
                           problem.seqlen_q <= kFewQueries &&
                           problem.seqlen_k >= kKeysAQuery * std::max<int64_t>(1, problem.seqlen_q);
}

// A sample of rows is no problem of its own where lengths are tables, or with dropout, whose
// numbers belong to the whole.
SampledReport verify_whole_or_sampled(const Problem& problem, const AttentionTensors& tensors) {
  if (problem.variable_lengths() || problem.dropout > 0)
    return {verify_result(problem, tensors), true};
  return problem.pass == Pass::forward ? verify_sampled(problem, tensors)
                                       : verify_gradients_sampled(problem, tensors);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

bool is_backward_kernel(const std::string& device, const std::string& name) {
  const auto backend = backend_of(device);
  if (backend == nullptr) return false;
  return std::any_of(backend->kernels().begin(), backend->kernels().end(),
                     [&](const Kernel* kernel) {
                       return kernel->name() == name && kernel->pass() == Pass::backward;
                     });
}

BenchMeter::BenchMeter(BenchSettings settings, Yardsticks yardsticks, uint64_t seed)
    : settings_(std::move(settings)), yardsticks_(yardsticks), pool_(seed) {}

// Three-step attention where the backend has one: for each pass the first of its kernels
// <backend>.standard.* that takes the problem.
Status BenchMeter::prepare_standard(const CaseData& data, const DeviceTensors& there,
                                    const TimedPasses& ours, BenchRow& row,
                                    std::unique_ptr<TimedPasses>& standard) {
  std::vector<Plan> chosen;
  std::string refused;  // why a kernel that would be taken first was not
  for (const Plan& fused : ours.plans()) {
    AttentionOptions options = data.options;
    options.tuning.clear();
    // Its forward pass keeps no log-sum-exp; one that rounds its scores to the dtype could not give
    // it.
    Problem problem = fused.problem();
    if (problem.pass == Pass::forward) problem.lse = {};
    const std::vector<std::string> names = standard_kernels(settings_.device, problem.pass);
    const std::size_t before = chosen.size();
    for (const std::string& name : names) {
      options.kernel = name;
      Result<Plan> planned = plan(problem, settings_.device, options);
      if (planned.ok()) {
        chosen.push_back(std::move(planned).value());
        break;
      }
      row.standard_note = planned.status().message();
      refused = planned.status().message();
    }
    if (chosen.size() > before) continue;
    if (names.empty() && !chosen.empty())
      row.standard_note = "left out: it has no kernel for gradients here";
    return {};
  }
  row.standard_note.clear();
  row.standard_kernel = chosen.front().config().kernel;
  row.standard_refused = refused;
  const double known =
      std::max(kUnknownStandardRate, standard_flops_s_[static_cast<int>(data.problem.dtype)]);
  const double expected = ours.flops() / known;
  std::size_t workspace = 0;
  for (const Plan& one : chosen) workspace = std::max(workspace, one.workspace_bytes());
  if (data.backward) row.standard_extra_bytes = workspace + bytes_of_outputs(data.tensors);
  if (expected > settings_.max_standard_seconds) {
    row.standard_note =
        fmt::format("left out: {:.1f} s a call expected, --max-standard is {:.1f} s", expected,
                    settings_.max_standard_seconds);
    return {};
  }
  if (workspace > kMaxStandardWorkspace) {
    row.standard_note =
        fmt::format("left out: it needs {:.1f} GB", static_cast<double>(workspace) / 1e9);
    return {};
  }
  standard = std::make_unique<TimedPasses>(std::move(chosen), there);
  return standard->warm_up();
}

// The rate of reading is measured on the keys and values themselves, with cold caches, before a
// case and after it.
double BenchMeter::ceiling_slice(const CaseData& data, CeilingKind kind, double seconds) {
  if (kind != CeilingKind::read) return yardsticks_.cpu->measure(kind, seconds);
  const auto bytes = [](const Tensor& tensor) {  // as they are stored
    const auto& s = tensor.shape;
    const int64_t size =
        s[0] * s[1] * s[2] * row_elements(tensor.dtype, s[3]) * size_of(tensor.dtype);
    return std::span(static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(size));
  };
  const std::array buffers{bytes(data.tensors.k), bytes(data.tensors.v)};
  const double rate = yardsticks_.cpu->measure_read_of(buffers);
  yardsticks_.cpu->measure(kind);
  return rate;
}

// Checks the results on the host. Where the whole would take minutes, a sample of them is checked,
// or the same kernels on a shorter problem of the same kind.
Status BenchMeter::verify(const CaseData& data, const TimedPasses& ours, BenchRow& row) {
  const auto add = [&row](const SampledReport& check) {
    if (!check.report.ok && row.verified) row.verify_message = check.report.message;
    row.verified = row.verified && check.report.ok;
    if (!check.everything) row.verified_how = "sample";
  };
  row.verified = true;
  row.verified_how = "all";
  const bool given = row.bench_case.given != nullptr;
  add(given ? verify_whole_or_sampled(data.problem, data.tensors)
            : verify_sampled(data.problem, data.tensors));
  if (!data.backward) return {};
  const SampledReport gradients = given ? verify_whole_or_sampled(*data.backward, data.tensors)
                                        : verify_gradients_sampled(*data.backward, data.tensors);
  add(gradients);
  if (!row.verified || gradients.everything || gradients_are_affordable(*data.backward)) return {};
  if (given) {
    row.verified_how = "sample, dq alone";
    return {};
  }

  BenchCase shorter = row.bench_case;
  if (is_board(shorter)) {
    shorter.batch = kFewerBoards;
  } else {
    shorter.batch = 1;
    shorter.seqlen_q = shorter.seqlen_k = kShorterSeqlen;
  }
  shorter.heads = shorter.heads / shorter.kv_heads;
  shorter.kv_heads = 1;
  Result<std::unique_ptr<CaseData>> made =
      make_case_data(shorter, pool_, data.options, settings_.max_bytes);
  if (!made.ok()) return made.status();
  const CaseData& small = *made.value();
  const Result<std::unique_ptr<DeviceTensors>> there =
      DeviceTensors::make(settings_.device, small.tensors);
  if (!there.ok()) return there.status();
  std::vector<Plan> plans;
  for (const Problem& problem : {small.problem, *small.backward}) {
    AttentionOptions options = small.options;
    options.kernel = ours.plans()[static_cast<std::size_t>(problem.pass)].config().kernel;
    Result<Plan> planned = plan(problem, settings_.device, options);
    if (!planned.ok()) return planned.status();
    plans.push_back(std::move(planned).value());
  }
  Status status = TimedPasses(std::move(plans), *there.value()).call();
  if (status.ok()) status = there.value()->download(Pass::forward);
  if (status.ok()) status = there.value()->download(Pass::backward);
  if (!status.ok()) return status;
  const VerifyReport report = verify_result(*small.backward, small.tensors);
  row.verified = report.ok;
  row.verify_message = report.message;
  row.verified_how = is_board(shorter)
                         ? fmt::format("sample, all but dq on {} boards", kFewerBoards)
                         : fmt::format("sample, dk and dv at S{}", kShorterSeqlen);
  return {};
}

Result<BenchRow> BenchMeter::measure(const BenchCase& bench_case) {
  BenchRow row;
  row.bench_case = bench_case;
  row.device = settings_.device;
  AttentionOptions options;
  options.num_threads = settings_.num_threads;
  options.deterministic = settings_.deterministic;
  Result<std::unique_ptr<CaseData>> made =
      make_case_data(bench_case, pool_, options, settings_.max_bytes);
  if (!made.ok()) return made.status();
  const CaseData& data = *made.value();
  take_numbers(data, row.bench_case);
  Result<std::vector<Plan>> planned = plan_case(data, settings_.device, settings_.kernel);
  if (!planned.ok()) return planned.status();
  const Result<std::unique_ptr<DeviceTensors>> there =
      DeviceTensors::make(settings_.device, data.tensors);
  if (!there.ok()) return there.status();

  TimedPasses ours(std::move(planned).value(), *there.value());
  row.kernel = ours.plans().front().config().kernel;
  if (bench_case.given != nullptr) {
    const Plan& asked = ours.plans().back();
    row.problem = fmt::format("{}; {}", to_string(asked.problem()), to_string(asked.config()));
  }
  if (data.backward) row.backward_kernel = ours.plans().back().config().kernel;
  row.extra_bytes = ours.workspace_bytes() + (data.backward ? bytes_of_outputs(data.tensors) : 0);
  Status status = ours.call();
  for (const Plan& one : ours.plans()) {
    if (status.ok()) status = there.value()->download(one.problem().pass);
  }
  if (status.ok()) status = verify(data, ours, row);
  if (!status.ok()) return status;
  if (is_emulated(settings_.device)) return row;
  status = time_row(data, *there.value(), ours, row);
  if (!status.ok()) return status;
  return row;
}

Status BenchMeter::time_row(const CaseData& data, const DeviceTensors& there, TimedPasses& ours,
                            BenchRow& row) {
  if (Status status = ours.warm_up(); !status.ok()) return status;
  std::unique_ptr<TimedPasses> standard, backward;
  if (Status status = prepare_standard(data, there, ours, row, standard); !status.ok())
    return status;
  if (data.backward) {
    backward = std::make_unique<TimedPasses>(std::vector<Plan>{ours.plans().back()}, there);
    if (Status status = backward->warm_up(); !status.ok()) return status;
  }

  const bool decode = is_decode(row.bench_case);
  const CeilingKind kind =
      ceiling_of(row.bench_case, data.backward ? row.backward_kernel : row.kernel);
  // A GPU's matrix units are so fast that memory bounds boards, too.
  row.by_bytes = decode || (yardsticks_.cpu == nullptr && is_board(row.bench_case));
  if (yardsticks_.cpu == nullptr && row.by_bytes) row.ceiling = yardsticks_.copy_gb_s;
  const auto measure_ceiling = [&] {
    if (yardsticks_.cpu != nullptr)
      row.ceiling = std::max(row.ceiling, ceiling_slice(data, kind, ours.last_span_seconds()));
  };
  double standard_total =
      standard != nullptr && !standard->seconds().empty() ? standard->last_call_seconds() : 0;
  const auto start = Clock::now();
  while (ours.seconds().size() < kMinRepetitions || seconds_since(start) < settings_.seconds) {
    measure_ceiling();
    if (Status status = ours.span(); !status.ok()) return status;
    measure_ceiling();
    if (backward != nullptr) {
      if (Status status = backward->span(); !status.ok()) return status;
    }
    if (standard == nullptr ||
        (!standard->seconds().empty() && standard_total > kStandardShare * seconds_since(start)))
      continue;
    if (Status status = standard->span(); !status.ok()) return status;
    standard_total += standard->last_span_seconds();
  }

  row.median_s = median_of(ours.seconds());
  row.min_s = ours.min_seconds();
  const Problem& p = data.problem;
  const double kv_bytes = static_cast<double>(p.batch * p.num_kv_heads * p.seqlen_k *
                                              (p.head_dim + p.head_dim_v) * size_of(p.dtype));
  const double all_bytes = p.bytes() + (data.backward ? data.backward->bytes() : 0);
  row.tflops = ours.flops() / row.min_s / 1e12;
  row.gb_s = (decode ? kv_bytes : all_bytes) / row.min_s / 1e9;
  if (row.ceiling > 0) row.share_of_ceiling = (row.by_bytes ? row.gb_s : row.tflops) / row.ceiling;
  if (backward != nullptr) {
    row.backward_s = backward->min_seconds();
    row.backward_tflops = backward->flops() / row.backward_s / 1e12;
  }
  if (standard != nullptr) {
    row.standard_s = standard->min_seconds();
    row.speedup = row.standard_s / row.min_s;
    // Small problems are slow for reasons that long ones do not have.
    double& known = standard_flops_s_[static_cast<int>(p.dtype)];
    known = std::max(known, ours.flops() / row.standard_s);
  }
  return {};
}

}  // namespace fulmen::tools
