#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "case_data.h"
#include "device_tensors.h"
#include "fulmen/fulmen.h"
#include "fulmen/printable.h"
#include "timed_passes.h"

namespace fulmen::tools {
namespace {

// The makers' figures, without sparsity. Hopper's warps do 0.63 of what its warpgroups do (measured by others and by the lab's
// runs).
constexpr ChipRates kChips[] = {
    {"gfx1100", "RX 7900 XTX", 96, 2.5, 122.8, 960, 16},       {"gfx1201", "RX 9070 XT", 64, 2.97, 194.6, 640, 16},
    {"gfx942", "Instinct MI300X", 304, 2.1, 1307.4, 5300, 16}, {"sm_80", "A100 SXM 80GB", 108, 1.41, 312, 2039, 16},
    {"sm_90", "H200 SXM, by warps", 132, 1.83, 623, 4800, 16}, {"sm_90a", "H200 SXM", 132, 1.83, 989.4, 4800, 16},
};

// Whole tiles of every kernel: 64, 128 or 192 rows.
constexpr int64_t kLength = 384;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

EmulatedWork operator*(double factor, const EmulatedWork& w) {
  return {factor * w.matrix_flops, factor * w.lds_cycles, factor * w.global_bytes, factor * w.barriers};
}
EmulatedWork operator+(const EmulatedWork& a, const EmulatedWork& b) {
  return {a.matrix_flops + b.matrix_flops, a.lds_cycles + b.lds_cycles, a.global_bytes + b.global_bytes, a.barriers + b.barriers};
}

// Tensors without memory: enough for a plan.
Result<Problem> problem_of(const BenchCase& c) {
  AttentionTensors t;
  t.q = t.out = Tensor::bshd(nullptr, c.dtype, c.batch, c.seqlen_q, c.heads, c.head_dim);
  t.k = t.v = Tensor::bshd(nullptr, c.dtype, c.batch, c.seqlen_k, c.kv_heads, c.head_dim);
  if (c.bias) t.bias = Tensor::bhqk(nullptr, c.dtype, c.batch, c.heads, c.seqlen_q, c.seqlen_k);
  AttentionOptions options;
  if (c.causal) options.causal = Causal::bottom_right;
  return make_problem(t, options);
}

// Counts of small cases by one kernel in one configuration.
class Emulation {
 public:
  Emulation(BenchCase small, std::string device, AttentionOptions options)
      : small_(std::move(small)), device_(std::move(device)), options_(std::move(options)) {}

  Result<EmulatedWork> run(int64_t seqlen_q, int64_t seqlen_k) {
    // Rows of a suite differ in lengths alone.
    static std::map<std::string, EmulatedWork> known;
    BenchCase c = small_;
    c.seqlen_q = seqlen_q;
    c.seqlen_k = seqlen_k;
    const std::string key = fmt::format("{} {} {} {} {} {} {} {} {} {}", device_, options_.kernel, options_.tuning,
                                        to_string(c.dtype), c.heads, seqlen_q, seqlen_k, c.head_dim, c.causal, c.bias);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    NormalPool pool(1);
    const auto data = make_case_data(c, pool, options_, kMaxBytes);
    if (!data.ok()) return data.status();
    const auto there = DeviceTensors::make(device_, data.value()->tensors);
    if (!there.ok()) return there.status();
    Result<Plan> planned = plan(data.value()->problem, device_, options_of(*data.value()));
    if (!planned.ok()) return planned.status();
    EmulatedWork work;
    count_emulated_work(&work);
    const Status status = TimedPasses({std::move(planned).value()}, *there.value()).call();
    count_emulated_work(nullptr);
    if (!status.ok()) return status;
    return known[key] = work;
  }

 private:
  AttentionOptions options_of(const CaseData& data) const {
    AttentionOptions options = data.options;
    options.kernel = options_.kernel;
    options.tuning = options_.tuning;
    return options;
  }
  BenchCase small_;
  std::string device_;
  AttentionOptions options_;
};

// What a head of KV and its query heads take, from one or two small lengths: rows have a cost each, and each of their keys has one.
Result<EmulatedWork> work_of(const BenchCase& c, Emulation& emulation) {
  const int64_t rows = std::min(c.seqlen_q, kLength);
  const double times = static_cast<double>(c.seqlen_q) / static_cast<double>(rows);
  const bool square = c.causal && c.seqlen_q > 1;
  if (c.seqlen_k <= 2 * kLength && !(square && c.seqlen_q > kLength)) {
    const auto work = emulation.run(rows, c.seqlen_k);
    return work.ok() ? Result<EmulatedWork>(times * work.value()) : work;
  }
  const auto one = emulation.run(rows, kLength), two = emulation.run(square ? 2 * rows : rows, 2 * kLength);
  if (!one.ok()) return one;
  if (!two.ok()) return two;
  const double n = static_cast<double>(c.seqlen_k) / kLength;
  if (square) {  // a n + b n^2
    const EmulatedWork b = 0.5 * (two.value() + -2.0 * one.value()), a = one.value() + -1.0 * b;
    return n * a + n * n * b;
  }
  const EmulatedWork b = two.value() + -1.0 * one.value(), a = one.value() + -1.0 * b;
  return times * (a + n * b);
}

}  // namespace

const ChipRates* chip_rates(const std::string& arch) {
  const auto* const found = std::find_if(std::begin(kChips), std::end(kChips), [&](const ChipRates& c) { return arch == c.arch; });
  return found == std::end(kChips) ? nullptr : found;
}

std::vector<std::string> modelled_chips() {
  std::vector<std::string> names;
  for (const ChipRates& chip : kChips) names.emplace_back(chip.arch);
  return names;
}

Result<ModelledRow> model_case(const BenchCase& c, const std::string& device, const std::string& kernel) {
  const std::string arch = device.substr(std::min(device.size(), device.find(':') + 1));
  const ChipRates* chip = chip_rates(arch);
  if (device.rfind("emulated:", 0) != 0 || chip == nullptr) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--model on {}: emulated:{{{}}} are modelled", printable(device), fmt::join(modelled_chips(), ",")));
  }
  if (c.training || c.page_size > 0 || !c.folder.empty() || c.dtype == DType::fp32 ||
      (c.causal && c.seqlen_q != c.seqlen_k && c.seqlen_q > 1)) {
    return Status(
        StatusCode::unsupported,
        "modelled are forward passes in fp16 and bf16 over rows one after the other, causal ones with as many queries as keys");
  }
  const Result<Problem> problem = problem_of(c);
  if (!problem.ok()) return problem.status();
  AttentionOptions options;
  options.kernel = kernel;
  const Result<Plan> whole = plan(problem.value(), device, options);
  if (!whole.ok()) return whole.status();
  options.kernel = whole->config().kernel;
  for (const KernelParameter& p : whole->config().parameters) {
    if (p.name == "num_splits") continue;  // of all keys
    options.tuning += fmt::format("{}{}={}", options.tuning.empty() ? "" : ",", p.name, p.value);
  }
  BenchCase small = c;
  small.batch = small.kv_heads = 1;
  small.heads = c.heads / c.kv_heads;
  Emulation emulation(small, device, options);
  const Result<EmulatedWork> of_head = work_of(c, emulation);
  if (!of_head.ok()) return of_head.status();
  const EmulatedWork work = static_cast<double>(c.batch * c.kv_heads) * of_head.value();

  ModelledRow row;
  row.bench_case = c;
  row.kernel = to_string(whole->config());
  row.flops = problem->flops();
  row.bytes = problem->bytes();
  const double cycles = chip->compute_units * chip->ghz * 1e9;  // of all compute units, a second
  constexpr double kCacheBytes = 64;                            // of L2, a cycle of a compute unit
  row.matrix_s = work.matrix_flops / (chip->matrix_tflops * 1e12);
  row.exponential_s = work.matrix_flops / (4.0 * static_cast<double>(c.head_dim)) / (chip->exponentials * cycles);
  row.lds_s = work.lds_cycles / cycles;
  row.cache_s = work.global_bytes / (kCacheBytes * cycles);
  row.memory_s = row.bytes / (chip->memory_gb_s * 1e9);
  // A wave's products and exponentials follow each other; copies go on beside them.
  const std::pair<double, const char*> limits[] = {{row.matrix_s + row.exponential_s, "matrix units and exponentials"},
                                                   {row.lds_s, "LDS"},
                                                   {row.cache_s, "caches"},
                                                   {row.memory_s, "memory"}};
  const auto& largest = *std::max_element(std::begin(limits), std::end(limits));
  row.seconds = largest.first;
  row.limit = largest.second;
  return row;
}

std::string model_head(const ChipRates& chip) {
  return fmt::format(
      "modelled, not measured: {}, {} compute units at {} GHz, {} TFLOP/s, {} GB/s\n{:35} {:>11} {:>9} {:>8}  {:>9} {:>9} {:>9} "
      "{:>9} "
      "{:>9}  limited by",
      chip.product, chip.compute_units, chip.ghz, chip.matrix_tflops, chip.memory_gb_s, "", "modelled us", "TFLOP/s", "GB/s",
      "matrix us", "exp us", "LDS us", "caches us", "memory us");
}

std::string model_line(const ModelledRow& r) {
  const BenchCase& c = r.bench_case;
  return fmt::format("{:8} {:5} {:20} {:11.1f} {:9.1f} {:8.0f}  {:9.1f} {:9.1f} {:9.1f} {:9.1f} {:9.1f}  {}; {}", c.suite,
                     to_string(c.dtype), c.name, 1e6 * r.seconds, r.flops / r.seconds / 1e12, r.bytes / r.seconds / 1e9,
                     1e6 * r.matrix_s, 1e6 * r.exponential_s, 1e6 * r.lds_s, 1e6 * r.cache_s, 1e6 * r.memory_s, r.limit, r.kernel);
}

}  // namespace fulmen::tools
