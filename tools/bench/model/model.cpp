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

// Whole tiles of kernels of 64, 128 or 192 rows, and of those of 256.
constexpr int64_t kLength = 384, kLongLength = 512;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

// The counts that grow with the lengths.
UnitWork operator*(double factor, const UnitWork& w) {
  return {.matrix_flops = factor * w.matrix_flops,
          .exponentials = factor * w.exponentials,
          .vector = factor * w.vector,
          .lds_cycles = factor * w.lds_cycles,
          .global_bytes = factor * w.global_bytes,
          .scalar = factor * w.scalar,
          .lds_conflicts = factor * w.lds_conflicts,
          .waits = factor * w.waits,
          .registers = w.registers};
}
UnitWork operator+(const UnitWork& a, const UnitWork& b) {
  return {.matrix_flops = a.matrix_flops + b.matrix_flops,
          .exponentials = a.exponentials + b.exponentials,
          .vector = a.vector + b.vector,
          .lds_cycles = a.lds_cycles + b.lds_cycles,
          .global_bytes = a.global_bytes + b.global_bytes,
          .scalar = a.scalar + b.scalar,
          .lds_conflicts = a.lds_conflicts + b.lds_conflicts,
          .waits = a.waits + b.waits,
          .registers = std::max(a.registers, b.registers)};
}

// Counts of small cases by one kernel in one configuration.
class Emulation {
 public:
  // options: the kernel's name on "emulated:<arch>", and its parameters.
  Emulation(BenchCase small, Pass pass, const ChipRates& chip, AttentionOptions options)
      : small_(std::move(small)), pass_(pass), chip_(chip), options_(std::move(options)) {}

  Result<UnitWork> run(int64_t seqlen_q, int64_t seqlen_k) {
    // Rows of a suite differ in lengths alone.
    static std::map<std::string, UnitWork> known;
    BenchCase c = small_;
    c.seqlen_q = seqlen_q;
    c.seqlen_k = seqlen_k;
    const std::string key = fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {}", chip_.arch, options_.kernel, options_.tuning,
        to_string(c.dtype), c.heads, seqlen_q, seqlen_k, c.head_dim, c.causal, c.bias, c.page_size);
    if (!known.contains(key)) {
      const Result<UnitWork> work = chip_.vector > 0 ? of_machine_code(c) : of_source(c);
      if (!work.ok()) return work;
      known[key] = work.value();
    }
    const UnitWork& work = known[key];
    launches_ = std::max(launches_, work.launches);
    return work;
  }
  int64_t length() const {
    return options_.tuning.find("block_m=256") != std::string::npos ? kLongLength : kLength;
  }
  // The counts of a call.
  double launches() const { return launches_; }

 private:
  // NVIDIA: no machine code of theirs is executed.
  Result<UnitWork> of_source(const BenchCase& c) const {
    EmulatedWork work;
    if (Status status = run_on("emulated", c, &work); !status.ok()) return status;
    return UnitWork{.matrix_flops = work.matrix_flops,
                    .exponentials = work.exponentials,
                    .lds_cycles = work.lds_cycles,
                    .global_bytes = work.global_bytes,
                    .launches = work.launches};
  }
  // AMD: as the kernels of others are counted (bench/amd/run_kernel).
  Result<UnitWork> of_machine_code(const BenchCase& c) const {
    if (Status status = run_on("emulated-isa", c, nullptr); !status.ok()) return status;
    UnitWork work;
    for (const ExecutedInstructions& launch : take_executed_instructions()) {
      work.matrix_flops += launch.matrix_flops;
      work.exponentials += launch.exponentials;
      work.vector += static_cast<double>(launch.vector);
      work.lds_cycles += launch.lds_cycles;
      work.global_bytes += launch.global_bytes;
      work.launches += 1;
      work.scalar += static_cast<double>(launch.scalar);
      work.lds_conflicts += launch.lds_conflicts;
      work.waits += static_cast<double>(launch.waits);
      work.registers = std::max(work.registers, launch.registers);
    }
    return work;
  }

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
Result<UnitWork> work_of(const BenchCase& c, Emulation& emulation) {
  const int64_t length = emulation.length();
  const bool square = c.causal && c.seqlen_q == c.seqlen_k;
  // Rows at the end of the keys, under a mask that they feel little of, go together.
  const int64_t rows = c.causal && !square ? c.seqlen_q : std::min(c.seqlen_q, length);
  const double times = static_cast<double>(c.seqlen_q) / static_cast<double>(rows);
  if (c.seqlen_k <= 2 * length && !(square && c.seqlen_q > length)) {
    const auto work = emulation.run(rows, c.seqlen_k);
    return work.ok() ? Result<UnitWork>(times * work.value()) : work;
  }
  const auto one = emulation.run(rows, length),
             two = emulation.run(square ? 2 * rows : rows, 2 * length);
  if (!one.ok()) return one;
  if (!two.ok()) return two;
  const double n = static_cast<double>(c.seqlen_k) / static_cast<double>(length);
  if (square) {  // a n + b n^2
    const UnitWork b = 0.5 * (two.value() + -2.0 * one.value()), a = one.value() + -1.0 * b;
    return n * a + n * n * b;
  }
  const UnitWork b = two.value() + -1.0 * one.value(), a = one.value() + -1.0 * b;
  return times * (a + n * b);
}

// Parameters that depend on all keys and all boards of the case.
bool depends_on_whole(std::string_view kernel, std::string_view parameter) {
  if (parameter == "num_splits" || parameter == "run_batches") return true;
  return kernel.find(".short") != std::string_view::npos &&
         (parameter == "min_workgroups" || parameter == "early_loads");
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

}  // namespace

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
    if (depends_on_whole(options.kernel, p.name)) continue;
    options.tuning += fmt::format("{}{}={}", options.tuning.empty() ? "" : ",", p.name, p.value);
  }
  BenchCase small = c;
  small.batch = small.kv_heads = 1;
  small.heads = c.heads / c.kv_heads;
  Emulation emulation(small, pass, *chip, options);
  const Result<UnitWork> of_head = work_of(c, emulation);
  if (!of_head.ok()) return of_head.status();

  ModelledRow row;
  row.bench_case = c;
  row.pass = pass;
  row.kernel = to_string(whole->config());
  row.flops = problem->flops();
  row.work = static_cast<double>(c.batch * c.kv_heads) * of_head.value();
  row.work.memory_bytes = problem->bytes();
  row.work.launches = emulation.launches();
  row.times = unit_times(row.work, *chip, c.dtype);
  return row;
}

}  // namespace fulmen::tools
