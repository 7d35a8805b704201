#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <tuple>

#include "fulmen/fulmen.h"
#include "tools/commands.h"
#include "tools/compile/ahead.h"
#include "tools/options/number_checks.h"
#include "tools/options/problem_arguments.h"
#include "tools/progress.h"
#include "tools/signals.h"
#include "tools/tensors/device_tensors.h"
#include "tools/verify/grid.h"
#include "tools/verify/verified_run.h"

namespace fulmen::tools {
namespace {

struct VerifyArguments {
  std::string grid = "quick";
  std::string dtype, device, kernel, precision;
  std::optional<uint64_t> seed;
  uint64_t random = 0;
  int threads = 0;
  bool backward = false;
};

constexpr std::size_t kShownFailures = 10;

// What is known of one tensor that a kernel gives in one dtype.
struct Tally {
  std::size_t cases = 0;
  std::size_t failures = 0;
  TensorError worst;  // the largest error against its bound
  double worst_lse = 0;

  void add(const TensorError& error, bool ok, double lse_error) {
    ++cases;
    failures += ok ? 0 : 1;
    worst_lse = std::fmax(worst_lse, lse_error);
    if (cases == 1 || error.worst_error * worst.bound > worst.worst_error * error.bound)
      worst = error;
  }
};

// By kernel, dtype and tensor: the order of the table.
using Tallies = std::map<std::tuple<std::string, DType, std::string>, Tally>;

// A line for out, or one for each gradient.
void add_to(Tallies& tallies, const std::string& kernel, DType dtype, const VerifyReport& report) {
  for (const TensorError& one : report.gradients) {
    tallies[{kernel, dtype, one.tensor}].add(one, one.worst_error <= one.bound, 0);
  }
  if (!report.gradients.empty()) return;
  const TensorError whole{report.tensor, report.worst_error, report.baseline_error, report.bound};
  tallies[{kernel, dtype, report.tensor}].add(whole, report.ok, report.lse_error);
}

void print_table(Progress& progress, const Tallies& tallies) {
  std::size_t width = 28;
  for (const auto& [key, tally] : tallies) width = std::max(width, std::get<0>(key).size());
  progress.line(fmt::format("{:{}} {:5} {:6} {:>6} {:>12} {:>12} {:>8} {:>12} {:>8}", "kernel",
                            width, "dtype", "tensor", "cases", "worst error", "its bound", "share",
                            "worst lse", "failed"));
  for (const auto& [key, tally] : tallies) {
    const auto& [kernel, dtype, tensor] = key;
    const double share =
        tally.worst.bound > 0 ? 100 * tally.worst.worst_error / tally.worst.bound : 0;
    const std::string lse = tensor == "out" ? fmt::format("{:.3g}", tally.worst_lse) : "-";
    progress.line(fmt::format("{:{}} {:5} {:6} {:6} {:12.3g} {:12.3g} {:6.1f} % {:>12} {:8}",
                              kernel, width, to_string(dtype), tensor, tally.cases,
                              tally.worst.worst_error, tally.worst.bound, share, lse,
                              tally.failures));
  }
}

Result<std::vector<GridCase>> chosen_grid(const VerifyArguments& arguments, GridSize size) {
  std::vector<DType> dtypes{DType::fp32, DType::fp16, DType::bf16};
  if (!arguments.dtype.empty()) {
    const Result<DType> dtype = parse_dtype(arguments.dtype);
    if (!dtype.ok()) return dtype.status();
    dtypes = {dtype.value()};
  }
  std::vector<GridCase> cases;
  for (const DType dtype : dtypes) {
    const std::vector<GridCase> more =
        verify_grid(size, dtype, arguments.backward ? Pass::backward : Pass::forward);
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (GridCase& one : cases) one.precision = precision_of(arguments.precision);
  return cases;
}

// The command that repeats what was run.
std::string repeat_with(const VerifyArguments& a, const std::string& device, uint64_t seed) {
  std::string text =
      a.random > 0 ? "fulmen verify --random 1" : fmt::format("fulmen verify --grid {}", a.grid);
  text += fmt::format(" --seed {} --device {}", seed, device);
  if (a.backward) text += " --backward";
  if (!a.dtype.empty()) text += " --dtype " + a.dtype;
  if (!a.kernel.empty()) text += " --kernel " + a.kernel;
  if (!a.precision.empty()) text += " --precision " + a.precision;
  return text;
}

// What failed so far. The first failures are printed, each with the command that repeats it.
class Failures {
 public:
  void add(Progress& progress, const std::string& what, const VerifiedRun& run,
           const std::string& repeat) {
    if (run.report.ok) return;
    if (count() < kShownFailures)
      progress.line(
          fmt::format("FAILED {}: {}\n  repeat it: {}", what, run.report.message, repeat));
    if (run.ran.ok()) {
      ++wrong_;
    } else if (not_run_++ == 0) {
      first_not_run_ = run.ran;
    }
  }
  std::size_t count() const { return wrong_ + not_run_; }
  // A kernel that cannot run here is no wrong result. If there are only such kernels, the status is
  // the first one's.
  Status conclusion(uint64_t seed) const {
    if (count() == 0) return {};
    const std::string not_run =
        not_run_ == 0 ? "" : fmt::format("{} did not run: {}", not_run_, first_not_run_.message());
    if (wrong_ == 0) return {first_not_run_.code(), not_run};
    return {StatusCode::verification_failed,
            fmt::format("{} results broke the tolerance rule (--seed {}){}{}", wrong_, seed,
                        not_run.empty() ? "" : ", and ", not_run)};
  }

 private:
  std::size_t wrong_ = 0, not_run_ = 0;
  Status first_not_run_;
};

// What a run of the command has found so far: told at its end, or where a signal ends it.
struct Findings {
  std::mutex mutex;  // guards the members below
  Progress progress;
  Tallies tallies;
  Failures failures;
  uint64_t problems = 0, results = 0;

  std::string counts(uint64_t all) const {
    return fmt::format("{} of {} problems, {} results, {} failed", problems, all, results,
                       failures.count());
  }
};

// Holds the lock for ever, so that nothing is printed after it.
void tell_at_signal(Findings& findings, uint64_t all, uint64_t seed) {
  findings.mutex.lock();
  print_table(findings.progress, findings.tallies);
  findings.progress.line(
      fmt::format("stopped by a signal: {}, --seed {}", findings.counts(all), seed));
}

// Runs one problem by every kernel that is asked for and supports it. seed: --seed repeats it.
Status verify_case(const VerifyArguments& arguments, const std::string& device,
                   const GridCase& grid_case, NormalPool& pool, int threads, uint64_t seed,
                   Findings& findings) {
  const GridData data = make_grid_data(grid_case, pool, threads);
  const Result<Problem> problem = problem_of(grid_case, data);
  if (!problem.ok()) return problem.status();
  const Result<std::vector<Candidate>> found = candidates(problem.value(), device);
  if (!found.ok()) return found.status();
  const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(device, data.tensors);
  if (!there.ok()) return there.status();
  for (const Candidate& candidate : found.value()) {
    if (!candidate.support.yes ||
        (!arguments.kernel.empty() && candidate.kernel != arguments.kernel))
      continue;
    const VerifiedRun run =
        run_and_verify(problem.value(), data, *there.value(), device, candidate.kernel, threads);
    const std::scoped_lock lock(findings.mutex);
    add_to(findings.tallies, candidate.kernel, grid_case.dtype, run.report);
    ++findings.results;
    findings.failures.add(findings.progress, candidate.kernel + " " + to_string(grid_case), run,
                          repeat_with(arguments, device, seed));
  }
  const std::scoped_lock lock(findings.mutex);
  ++findings.problems;
  return {};
}

// Small random problems, each of a seed of its own: problem n of seed s is problem 0 of seed s + n.
Status verify_random(const VerifyArguments& arguments, const std::string& device) {
  const uint64_t seed = arguments.seed ? *arguments.seed : std::random_device{}();
  const bool emulated = is_emulated(device);
  // Waiting for a team takes ten times as long as a small problem.
  const int threads = std::max(1, arguments.threads);
  std::vector<DType> dtypes{DType::fp32, DType::fp16, DType::bf16};
  if (!arguments.dtype.empty()) dtypes = {parse_dtype(arguments.dtype).value()};
  Findings findings;
  auto& progress = findings.progress;
  progress.line(fmt::format("fulmen {} on {}, {} random {}problems, --seed {}", version(), device,
                            arguments.random, arguments.backward ? "backward " : "", seed));
  const TellAtSignal teller([&] { tell_at_signal(findings, arguments.random, seed); });
  NormalPool pool(0);
  for (uint64_t n = 0; n < arguments.random; ++n) {
    {
      const std::scoped_lock lock(findings.mutex);
      progress.count(findings.counts(arguments.random));
    }
    pool.generator().seed(seed + n);
    const DType dtype = dtypes[pool.generator()() % dtypes.size()];
    GridCase grid_case = random_case(pool.generator(), dtype,
                                     arguments.backward ? Pass::backward : Pass::forward, emulated);
    grid_case.precision = precision_of(arguments.precision);
    if (Status status =
            verify_case(arguments, device, grid_case, pool, threads, seed + n, findings);
        !status.ok())
      return status;
  }
  const std::scoped_lock lock(findings.mutex);
  print_table(progress, findings.tallies);
  progress.line(fmt::format("{} problems, {} results, {} failed", findings.problems,
                            findings.results, findings.failures.count()));
  return findings.failures.conclusion(seed);
}

Status verify(const VerifyArguments& arguments) {
  const std::string device = arguments.device.empty() ? default_device() : arguments.device;
  if (Status status = check_device_and_kernel(device, arguments.kernel); !status.ok())
    return status;
  if (arguments.backward && precision_of(arguments.precision) != Precision::exact)
    return {StatusCode::invalid_argument,
            fmt::format("--precision {}: gradients are of exact products, leave out --backward",
                        arguments.precision)};
  const bool emulated = is_emulated(device);
  if (arguments.random > 0) return verify_random(arguments, device);
  const GridSize size = arguments.grid == "full" ? GridSize::full
                        : emulated               ? GridSize::emulated
                                                 : GridSize::quick;
  const Result<std::vector<GridCase>> cases = chosen_grid(arguments, size);
  if (!cases.ok()) return cases.status();
  const uint64_t seed = arguments.seed ? *arguments.seed : std::random_device{}();
  Findings findings;
  auto& progress = findings.progress;
  progress.line(fmt::format("fulmen {} on {}, {} grid of {} {}problems, --seed {}", version(),
                            device, arguments.grid, cases.value().size(),
                            arguments.backward ? "backward " : "", seed));
  if (emulated)
    progress.line(
        "an emulated chip: smaller problems; every new kernel is first compiled, for a second or "
        "two");
  const CompileAhead ahead(cases.value(), device, arguments.kernel);
  const TellAtSignal teller([&] { tell_at_signal(findings, cases->size(), seed); });
  NormalPool pool(seed);
  for (std::size_t i = 0; i < cases.value().size(); ++i) {
    const GridCase& grid_case = cases.value()[i];
    {
      const std::scoped_lock lock(findings.mutex);
      progress.show(fmt::format("[{}/{}] {}", i + 1, cases.value().size(), to_string(grid_case)));
    }
    if (Status status =
            verify_case(arguments, device, grid_case, pool, arguments.threads, seed, findings);
        !status.ok())
      return status;
  }
  const std::scoped_lock lock(findings.mutex);
  if (findings.tallies.empty()) {
    const std::string which = arguments.kernel.empty() ? "no kernel of " + device
                                                       : "--kernel " + arguments.kernel + ": it";
    const std::string what =
        arguments.kernel.empty() ? "supports a problem" : "supports no problem";
    return {StatusCode::unsupported,
            fmt::format("{} {} of the grid here, see `fulmen explain`", which, what)};
  }
  print_table(progress, findings.tallies);
  return findings.failures.conclusion(seed);
}

}  // namespace

Command verify_command(CLI::App& app) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* parser = app.add_subcommand(
      "verify", "put every kernel through a grid of problems and compare with the reference");
  parser->add_flag("--backward", arguments->backward,
                   "gradients, with dropout in a part of the problems");
  parser
      ->add_option("--grid", arguments->grid, "quick or full; quick is smaller on emulated devices")
      ->check(CLI::IsMember({"quick", "full"}));
  parser
      ->add_option("--random", arguments->random,
                   "instead of a grid so many small random problems, each of its own seed")
      ->transform(whole_number(1, uint64_t{1} << 40));
  parser->add_option("--dtype", arguments->dtype, "fp32, fp16 or bf16; all when not given")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  parser->add_option("--device", arguments->device, "see `fulmen devices`");
  parser->add_option("--kernel", arguments->kernel,
                     "one kernel; every one that supports a problem when not given");
  parser
      ->add_option("--precision", arguments->precision,
                   "in which numbers the products are: exact, the default, int8 or fp8; kernels "
                   "without these are left out")
      ->check(CLI::IsMember({"exact", "int8", "fp8"}));
  parser
      ->add_option("--seed", arguments->seed,
                   "of the random inputs; a new one each time when not given")
      ->transform(any_uint64());
  parser
      ->add_option(
          "--threads", arguments->threads,
          "CPU threads; 0 takes OMP_NUM_THREADS, else all processors; for random problems 1")
      ->transform(int_from(0));
  return {parser, [arguments] { return verify(*arguments); }};
}

}  // namespace fulmen::tools
