#include "bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "fulmen/fulmen.h"
#include "sampled_verify.h"

namespace fulmen::tools {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr double kSpanSeconds = 1e-3;  // a timed span is at least so long: several calls where one is shorter
// On a GPU: what waiting at the span's end costs, some 10 us, is a thousandth of it.
constexpr double kDeviceSpanSeconds = 10e-3;
constexpr int kMaxWarmUps = 8;
constexpr double kLongSeconds = 20e-3;
constexpr double kCountsSeconds = 0.3;
constexpr double kStandardShare = 0.3;  // of the time a case gets
constexpr std::size_t kMinRepetitions = 3;
constexpr double kUnknownStandardRate = 5e9;  // flop/s assumed of standard attention until it was seen to do better
constexpr std::size_t kMaxStandardWorkspace = std::size_t{4} << 30;

CeilingKind ceiling_of(const BenchCase& bench_case, const std::string& kernel) {
  if (bench_case.suite == "decode") return CeilingKind::read;
  if (kernel.find("amx") != std::string::npos) return CeilingKind::amx_bf16;
  if (kernel.find("bf16") != std::string::npos) return CeilingKind::bf16_dot;
  return CeilingKind::fma;
}

std::vector<std::string> standard_kernels(const std::string& device) {
  std::vector<std::string> names;
  const auto backend = backend_of(device);
  if (backend == nullptr) return names;
  for (const Kernel* kernel : backend->kernels()) {
    if (kernel->name().find(".standard.") != std::string_view::npos) names.emplace_back(kernel->name());
  }
  return names;
}

// Real input brings its own numbers.
void take_numbers(const Problem& problem, BenchCase& bench_case) {
  bench_case.batch = problem.batch;
  bench_case.seqlen_q = problem.seqlen_q;
  bench_case.seqlen_k = problem.seqlen_k;
  bench_case.heads = problem.num_heads;
  bench_case.kv_heads = problem.num_kv_heads;
  bench_case.head_dim = problem.head_dim;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

// A plan with its workspace and the times of its spans.
struct BenchMeter::Timed {
  Plan plan;
  const DeviceTensors& there;
  bool on_host;
  Memory host_workspace;  // on huge pages
  DeviceMemory device_workspace;
  std::vector<double> seconds;  // a call's, of each span
  int64_t calls = 1;            // of a span
  double span_seconds = 0;      // of the last one

  Timed(Plan chosen, const DeviceTensors& tensors)
      : plan(std::move(chosen)), there(tensors), on_host(uses_host_memory(plan.device())) {
    if (on_host) {
      host_workspace = Memory(plan.workspace_bytes() + 1);
    } else {
      device_workspace = there.workspace(plan.workspace_bytes());
    }
  }

  Status call() const {
    void* workspace = on_host ? host_workspace.data() : device_workspace.data();
    if (workspace == nullptr && plan.workspace_bytes() > 0) {
      return {StatusCode::out_of_memory, fmt::format("no memory for a workspace of {} bytes", plan.workspace_bytes())};
    }
    return plan.run(nullptr, there.tensors(), workspace, plan.workspace_bytes());
  }
  // Calls one behind the other, then waits for the last.
  Status span() {
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      if (Status status = call(); !status.ok()) return status;
    }
    if (Status status = there.synchronize(); !status.ok()) return status;
    span_seconds = seconds_since(start);
    seconds.push_back(span_seconds / static_cast<double>(calls));
    return {};
  }
  // Calls until a span is long enough to be timed; its times are not kept, unless one is so long that being first changes nothing.
  Status warm_up() {
    const double target = on_host ? kSpanSeconds : kDeviceSpanSeconds;
    // A long first call has touched its memory in a small part of its time; a short one is measured by a second.
    for (int i = 0; i < 2 && (seconds.empty() || seconds.back() < kLongSeconds); ++i) {
      if (Status status = span(); !status.ok()) return status;
    }
    if (seconds.back() > kCountsSeconds) return {};
    const auto calls_for = [&](double length) {
      return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(length / std::max(seconds.back(), 1e-9))), 1, 1 << 20);
    };
    calls = calls_for(target);
    // One call on a GPU takes as long as waiting for it: only spans tell how short it is.
    for (int i = 0; !on_host && i < kMaxWarmUps; ++i) {
      if (Status status = span(); !status.ok()) return status;
      if (span_seconds >= target) break;
      calls = calls_for(1.2 * target);
    }
    seconds.clear();
    return {};
  }
};

BenchMeter::BenchMeter(BenchSettings settings, Yardsticks yardsticks, uint64_t seed)
    : settings_(std::move(settings)), yardsticks_(yardsticks), pool_(seed) {}

// Three-step attention where the backend has one: the first of its kernels <backend>.standard.* that takes the problem.
Status BenchMeter::prepare_standard(const CaseData& data, const DeviceTensors& there, BenchRow& row,
                                    std::unique_ptr<Timed>& standard) {
  AttentionOptions options = data.options;
  std::optional<Plan> chosen;
  for (const std::string& name : standard_kernels(settings_.device)) {
    options.kernel = name;
    Result<Plan> planned = plan(data.problem, settings_.device, options);
    if (planned.ok()) {
      chosen = std::move(planned).value();
      break;
    }
    row.standard_note = planned.status().message();
  }
  if (!chosen) return {};
  row.standard_kernel = chosen->config().kernel;
  const double known = std::max(kUnknownStandardRate, standard_flops_s_[static_cast<int>(data.problem.dtype)]);
  const double expected = data.problem.flops() / known;
  if (expected > settings_.max_standard_seconds) {
    row.standard_note =
        fmt::format("left out: {:.1f} s a call expected, --max-standard is {:.1f} s", expected, settings_.max_standard_seconds);
    return {};
  }
  if (chosen->workspace_bytes() > kMaxStandardWorkspace) {
    row.standard_note = fmt::format("left out: it needs {:.1f} GB", static_cast<double>(chosen->workspace_bytes()) / 1e9);
    return {};
  }
  row.standard_note.clear();
  standard = std::make_unique<Timed>(std::move(*chosen), there);
  return standard->warm_up();
}

// Reading is measured on the keys and values themselves, with cold caches before it and after it.
double BenchMeter::ceiling_slice(const CaseData& data, CeilingKind kind, double seconds) {
  if (kind != CeilingKind::read) return yardsticks_.cpu->measure(kind, seconds);
  const Problem& p = data.problem;
  const auto bytes = [&](const Tensor& tensor, int64_t dim) {
    const int64_t size = p.batch * p.seqlen_k * p.num_kv_heads * dim * static_cast<int64_t>(size_of(p.dtype));
    return std::span(static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(size));
  };
  const std::array buffers{bytes(data.tensors.k, p.head_dim), bytes(data.tensors.v, p.head_dim_v)};
  const double rate = yardsticks_.cpu->measure_read_of(buffers);
  yardsticks_.cpu->measure(kind);
  return rate;
}

Result<BenchRow> BenchMeter::measure(const BenchCase& bench_case) {
  BenchRow row;
  row.bench_case = bench_case;
  row.device = settings_.device;
  AttentionOptions options;
  options.num_threads = settings_.num_threads;
  options.kernel = settings_.kernel;
  Result<std::unique_ptr<CaseData>> made = make_case_data(bench_case, pool_, options, settings_.max_bytes);
  if (!made.ok()) return made.status();
  const CaseData& data = *made.value();
  take_numbers(data.problem, row.bench_case);
  Result<Plan> planned = plan(data.problem, settings_.device, data.options);
  if (!planned.ok()) return planned.status();
  const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(settings_.device, data.tensors);
  if (!there.ok()) return there.status();

  Timed ours(std::move(planned).value(), *there.value());
  row.kernel = ours.plan.config().kernel;
  row.extra_bytes = ours.plan.workspace_bytes();
  Status status = ours.call();
  if (status.ok()) status = there.value()->download();
  if (!status.ok()) return status;
  const SampledReport check = verify_sampled(data.problem, data.tensors);
  row.verified = check.report.ok;
  row.sampled = !check.everything;
  row.verify_message = check.report.message;
  if (is_emulated(settings_.device)) return row;
  status = time_row(data, *there.value(), ours, row);
  if (!status.ok()) return status;
  return row;
}

Status BenchMeter::time_row(const CaseData& data, const DeviceTensors& there, Timed& ours, BenchRow& row) {
  if (Status status = ours.warm_up(); !status.ok()) return status;
  std::unique_ptr<Timed> standard;
  if (Status status = prepare_standard(data, there, row, standard); !status.ok()) return status;

  const bool decode = row.bench_case.suite == "decode";
  const CeilingKind kind = ceiling_of(row.bench_case, row.kernel);
  // A GPU's matrix units are so fast that memory bounds boards, too.
  row.by_bytes = decode || (yardsticks_.cpu == nullptr && row.bench_case.suite == "boards");
  if (yardsticks_.cpu == nullptr && row.by_bytes) row.ceiling = yardsticks_.copy_gb_s;
  const auto measure_ceiling = [&] {
    if (yardsticks_.cpu != nullptr) row.ceiling = std::max(row.ceiling, ceiling_slice(data, kind, ours.span_seconds));
  };
  double standard_total = standard != nullptr && !standard->seconds.empty() ? standard->seconds.back() : 0;
  const auto start = Clock::now();
  while (ours.seconds.size() < kMinRepetitions || seconds_since(start) < settings_.seconds) {
    measure_ceiling();
    if (Status status = ours.span(); !status.ok()) return status;
    measure_ceiling();
    if (standard == nullptr || (!standard->seconds.empty() && standard_total > kStandardShare * seconds_since(start))) continue;
    if (Status status = standard->span(); !status.ok()) return status;
    standard_total += standard->seconds.back() * static_cast<double>(standard->calls);
  }

  row.median_s = median_of(ours.seconds);
  row.min_s = *std::min_element(ours.seconds.begin(), ours.seconds.end());
  const Problem& p = data.problem;
  const double kv_bytes =
      static_cast<double>(p.batch * p.num_kv_heads * p.seqlen_k * (p.head_dim + p.head_dim_v) * size_of(p.dtype));
  row.tflops = p.flops() / row.min_s / 1e12;
  row.gb_s = (decode ? kv_bytes : p.bytes()) / row.min_s / 1e9;
  if (row.ceiling > 0) row.share_of_ceiling = (row.by_bytes ? row.gb_s : row.tflops) / row.ceiling;
  if (standard != nullptr) {
    row.standard_s = *std::min_element(standard->seconds.begin(), standard->seconds.end());
    row.speedup = row.standard_s / row.min_s;
    // Small problems are slow for reasons that long ones do not have.
    double& known = standard_flops_s_[static_cast<int>(p.dtype)];
    known = std::max(known, p.flops() / row.standard_s);
  }
  return {};
}

}  // namespace fulmen::tools
