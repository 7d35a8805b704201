#include "tools/bench/model/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "fulmen/compile.h"
#include "fulmen/emulated_work.h"
#include "fulmen/fulmen.h"
#include "fulmen/printable.h"
#include "tools/bench/case_data.h"
#include "tools/bench/measure/timed_passes.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

// The makers' figures, without sparsity. Hopper's warps do 0.63 of what its warpgroups do (measured
// by others and by the lab's runs). A compute unit of RDNA has two SIMDs of 32 lanes, one of CDNA
// four of 16 for waves of 64.
constexpr ChipRates kChips[] = {
    {"gfx1100", "RX 7900 XTX", 96, 2.5, 122.8, 960, 16, 2},
    {"gfx1201", "RX 9070 XT", 64, 2.97, 194.6, 640, 16, 2},
    {"gfx908", "Instinct MI100", 120, 1.502, 184.6, 1228.8, 16, 1, 0.5},
    {"gfx90a", "Instinct MI210", 104, 1.7, 181, 1638.4, 16, 1},
    {"gfx942", "Instinct MI300X", 304, 2.1, 1307.4, 5300, 16, 1},
    {"gfx950", "Instinct MI355X", 256, 2.4, 2516.6, 8000, 16, 1},
    {"sm_80", "A100 SXM 80GB", 108, 1.41, 312, 2039, 16, 0},
    {"sm_90", "H200 SXM, by warps", 132, 1.83, 623, 4800, 16, 0},
    {"sm_90a", "H200 SXM", 132, 1.83, 989.4, 4800, 16, 0},
};
constexpr double kCacheBytes = 64;  // L2's, a cycle and compute unit
// A launch with next to no work: a board on an H200, in a graph.
constexpr double kLaunchSeconds = 1.7e-6;

// Whole tiles of every kernel: 64, 128 or 192 rows.
constexpr int64_t kLength = 384;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

// The counts that grow with the lengths.
struct Work {
  double matrix_flops = 0, exponentials = 0, vector = 0, lds_cycles = 0, global_bytes = 0;
};
Work operator*(double factor, const Work& w) {
  return {factor * w.matrix_flops, factor * w.exponentials, factor * w.vector,
          factor * w.lds_cycles, factor * w.global_bytes};
}
Work operator+(const Work& a, const Work& b) {
  return {a.matrix_flops + b.matrix_flops, a.exponentials + b.exponentials, a.vector + b.vector,
          a.lds_cycles + b.lds_cycles, a.global_bytes + b.global_bytes};
}

// Counts of small cases by one kernel in one configuration.
class Emulation {
 public:
  // options: the kernel's name on "emulated:<arch>", and its parameters.
  Emulation(BenchCase small, Pass pass, const ChipRates& chip, AttentionOptions options)
      : small_(std::move(small)), pass_(pass), chip_(chip), options_(std::move(options)) {}

  Result<Work> run(int64_t seqlen_q, int64_t seqlen_k) {
    // Rows of a suite differ in lengths alone.
    static std::map<std::string, EmulatedWork> known;
    static std::map<std::string, double> known_vector;
    BenchCase c = small_;
    c.seqlen_q = seqlen_q;
    c.seqlen_k = seqlen_k;
    const std::string key = fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {}", chip_.arch, options_.kernel, options_.tuning,
        to_string(c.dtype), c.heads, seqlen_q, seqlen_k, c.head_dim, c.causal, c.bias, c.page_size);
    if (!known.contains(key)) {
      EmulatedWork work;
      if (Status status = run_on("emulated", c, &work); !status.ok()) return status;
      known[key] = work;
      if (chip_.vector > 0) {
        if (Status status = run_on("emulated-isa", c, nullptr); !status.ok()) return status;
        for (const ExecutedInstructions& launch : take_executed_instructions()) {
          known_vector[key] += static_cast<double>(launch.vector);
        }
      }
    }
    const EmulatedWork& work = known[key];
    launches_ = std::max(launches_, work.launches);
    return Work{work.matrix_flops, work.exponentials, known_vector[key], work.lds_cycles,
                work.global_bytes};
  }
  // The counts of a call.
  double launches() const { return launches_; }

 private:
  Status run_on(const std::string& backend, const BenchCase& c, EmulatedWork* work) const {
    const std::string device = fmt::format("{}:{}", backend, chip_.arch);
    AttentionOptions options = options_;
    options.kernel.clear();
    options.tuning.clear();
    NormalPool pool(1);
    const auto data = make_case_data(c, pool, options, kMaxBytes);
    if (!data.ok()) return data.status();
    const auto there = DeviceTensors::make(device, data.value()->tensors);
    if (!there.ok()) return there.status();
    const auto call = [&](const Problem& problem, const AttentionOptions& with) -> Status {
      Result<Plan> planned = plan(problem, device, with);
      return planned.ok() ? TimedPasses({std::move(planned).value()}, *there.value()).call()
                          : planned.status();
    };
    options = data.value()->options;
    if (pass_ == Pass::backward) {  // it reads what the forward pass writes
      if (Status status = call(data.value()->problem, options); !status.ok()) return status;
    }
    options.kernel = backend + options_.kernel.substr(options_.kernel.find('.'));
    options.tuning = options_.tuning;
    take_executed_instructions();
    count_emulated_work(work);
    const Status status =
        call(pass_ == Pass::forward ? data.value()->problem : *data.value()->backward, options);
    count_emulated_work(nullptr);
    return status;
  }
  BenchCase small_;
  Pass pass_;
  const ChipRates& chip_;
  AttentionOptions options_;
  double launches_ = 0;
};

// The cost of a KV head and its query heads, from one or two small lengths: a cost a row, and a
// cost a key of a row.
Result<Work> work_of(const BenchCase& c, Emulation& emulation) {
  const bool square = c.causal && c.seqlen_q == c.seqlen_k;
  // Rows at the end of the keys, under a mask that they feel little of, go together.
  const int64_t rows = c.causal && !square ? c.seqlen_q : std::min(c.seqlen_q, kLength);
  const double times = static_cast<double>(c.seqlen_q) / static_cast<double>(rows);
  if (c.seqlen_k <= 2 * kLength && !(square && c.seqlen_q > kLength)) {
    const auto work = emulation.run(rows, c.seqlen_k);
    return work.ok() ? Result<Work>(times * work.value()) : work;
  }
  const auto one = emulation.run(rows, kLength),
             two = emulation.run(square ? 2 * rows : rows, 2 * kLength);
  if (!one.ok()) return one;
  if (!two.ok()) return two;
  const double n = static_cast<double>(c.seqlen_k) / kLength;
  if (square) {  // a n + b n^2
    const Work b = 0.5 * (two.value() + -2.0 * one.value()), a = one.value() + -1.0 * b;
    return n * a + n * n * b;
  }
  const Work b = two.value() + -1.0 * one.value(), a = one.value() + -1.0 * b;
  return times * (a + n * b);
}

Status check_case(const BenchCase& c) {
  const bool chunk = c.causal && c.seqlen_q != c.seqlen_k && c.seqlen_q > kLength;
  if (c.folder.empty() && c.dtype != DType::fp32 && c.mask == CaseMask::none && !chunk) return {};
  return {StatusCode::unsupported,
          fmt::format("modelled are random inputs in fp16 and bf16 without a bool mask, under a "
                      "causal mask with as many queries as "
                      "keys or up to {}",
                      kLength)};
}

void add_times(const Work& work, double launches, const ChipRates& chip, ModelledRow& row) {
  const double cycles = chip.compute_units * chip.ghz * 1e9;  // a second, all units
  const double rate = row.bench_case.dtype == DType::bf16 ? chip.bf16_rate : 1;
  row.matrix_s = work.matrix_flops / (rate * chip.matrix_tflops * 1e12);
  row.exponential_s = work.exponentials / (chip.exponentials * cycles);
  row.vector_s = chip.vector > 0 ? work.vector / (chip.vector * cycles) : -1;
  row.lds_s = work.lds_cycles / cycles;
  row.cache_s = work.global_bytes / (kCacheBytes * cycles);
  row.memory_s = row.bytes / (chip.memory_gb_s * 1e9);
  row.launch_s = launches * kLaunchSeconds;
  // A wave's products, exponentials and other vector instructions follow each other; copies go on
  // beside them.
  const std::pair<double, const char*> limits[] = {
      {row.matrix_s + row.exponential_s + std::max(0.0, row.vector_s), "arithmetic"},
      {row.lds_s, "LDS"},
      {row.cache_s, "caches"},
      {row.memory_s, "memory"}};
  const auto& largest = *std::max_element(std::begin(limits), std::end(limits));
  row.seconds = largest.first + row.launch_s;
  row.limit = row.launch_s > largest.first ? "launches" : largest.second;
}

}  // namespace

const ChipRates* chip_rates(const std::string& arch) {
  const auto* const found = std::find_if(std::begin(kChips), std::end(kChips),
                                         [&](const ChipRates& c) { return arch == c.arch; });
  return found == std::end(kChips) ? nullptr : found;
}

std::vector<std::string> modelled_chips() {
  std::vector<std::string> names;
  for (const ChipRates& chip : kChips) names.emplace_back(chip.arch);
  return names;
}

Result<ModelledRow> model_case(const BenchCase& c, Pass pass, const std::string& device,
                               const AttentionOptions& asked) {
  const std::string arch = device.substr(std::min(device.size(), device.find(':') + 1));
  const ChipRates* chip = chip_rates(arch);
  if (device.rfind("emulated:", 0) != 0 || chip == nullptr) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--model on {}: emulated:{{{}}} are modelled", printable(device),
                              fmt::join(modelled_chips(), ",")));
  }
  if (Status status = check_case(c); !status.ok()) return status;
  AttentionOptions options;
  options.deterministic = asked.deterministic;
  options.kernel = asked.kernel;
  const Result<Problem> problem = case_problem(c, pass, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> whole = plan(problem.value(), device, options);
  if (!whole.ok()) return whole.status();
  options.kernel = whole->config().kernel;
  for (const KernelParameter& p : whole->config().parameters) {
    // These depend on all keys and all boards of the case.
    if (p.name == "num_splits" || p.name == "run_batches") continue;
    options.tuning += fmt::format("{}{}={}", options.tuning.empty() ? "" : ",", p.name, p.value);
  }
  BenchCase small = c;
  small.batch = small.kv_heads = 1;
  small.heads = c.heads / c.kv_heads;
  Emulation emulation(small, pass, *chip, options);
  const Result<Work> of_head = work_of(c, emulation);
  if (!of_head.ok()) return of_head.status();

  ModelledRow row;
  row.bench_case = c;
  row.pass = pass;
  row.kernel = to_string(whole->config());
  row.flops = problem->flops();
  row.bytes = problem->bytes();
  add_times(static_cast<double>(c.batch * c.kv_heads) * of_head.value(), emulation.launches(),
            *chip, row);
  return row;
}

}  // namespace fulmen::tools
