#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "commands.h"
#include "device_tensors.h"
#include "fulmen/fulmen.h"
#include "problem_arguments.h"
#include "progress.h"
#include "verify_grid.h"

namespace fulmen::tools {
namespace {

struct VerifyArguments {
  std::string grid = "quick";
  std::string dtype, device, kernel;
  std::optional<uint64_t> seed;
  int threads = 0;
};

constexpr std::size_t kShownFailures = 10;

// What is known of one kernel in one dtype.
struct Tally {
  std::size_t cases = 0;
  std::size_t failures = 0;
  VerifyReport worst;  // the largest error against its bound
  double worst_lse = 0;

  void add(const VerifyReport& report) {
    ++cases;
    failures += report.ok ? 0 : 1;
    worst_lse = std::fmax(worst_lse, report.lse_error);
    if (cases == 1 || report.worst_error * worst.bound > worst.worst_error * report.bound) worst = report;
  }
};

// Old bits that are no results: NaN in every format.
void poison(const Tensor& tensor) {
  if (tensor.data != nullptr)
    std::memset(tensor.data, 0xFF, stored_elements(tensor) * static_cast<std::size_t>(size_of(tensor.dtype)));
}

VerifyReport failure(const Status& status) {
  VerifyReport report;
  report.message = status.message();
  return report;
}

VerifyReport run_kernel(const Problem& problem, const GridData& data, const DeviceTensors& there, const std::string& device,
                        const std::string& kernel, int threads) {
  AttentionOptions options = data.options;
  options.kernel = kernel;
  options.num_threads = threads;
  const Result<Plan> planned = plan(problem, device, options);
  if (!planned.ok()) return failure(planned.status());
  poison(data.tensors.out);
  poison(data.tensors.lse);
  if (Status status = there.upload_outputs(); !status.ok()) return failure(status);
  const DeviceMemory workspace = there.workspace(planned->workspace_bytes());
  if (Status status = workspace.poison(); !status.ok()) return failure(status);
  Status status = planned->run(nullptr, there.tensors(), workspace.data(), planned->workspace_bytes());
  if (status.ok()) status = there.synchronize();
  if (status.ok()) status = there.download();
  return status.ok() ? verify_result(problem, data.tensors) : failure(status);
}

using Tallies = std::map<std::pair<std::string, DType>, Tally>;

void print_table(Progress& progress, const Tallies& tallies) {
  progress.line(fmt::format("{:28} {:5} {:>6} {:>12} {:>12} {:>8} {:>12} {:>8}", "kernel", "dtype", "cases", "worst error",
                            "its bound", "share", "worst lse", "failed"));
  for (const auto& [key, tally] : tallies) {
    const double share = tally.worst.bound > 0 ? 100 * tally.worst.worst_error / tally.worst.bound : 0;
    progress.line(fmt::format("{:28} {:5} {:6} {:12.3g} {:12.3g} {:6.1f} % {:12.3g} {:8}", key.first, to_string(key.second),
                              tally.cases, tally.worst.worst_error, tally.worst.bound, share, tally.worst_lse, tally.failures));
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
    const std::vector<GridCase> more = verify_grid(size, dtype);
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

Status verify(const VerifyArguments& arguments) {
  const std::string device = arguments.device.empty() ? default_device() : arguments.device;
  const bool emulated = is_emulated(device);
  const GridSize size = arguments.grid == "full" ? GridSize::full : emulated ? GridSize::emulated : GridSize::quick;
  const Result<std::vector<GridCase>> cases = chosen_grid(arguments, size);
  if (!cases.ok()) return cases.status();
  const uint64_t seed = arguments.seed ? *arguments.seed : std::random_device{}();
  Progress progress;
  progress.line(fmt::format("fulmen {} on {}, {} grid of {} problems, --seed {}", version(), device, arguments.grid,
                            cases.value().size(), seed));
  if (emulated) progress.line("an emulated chip: smaller problems; every new kernel is first compiled, for a second or two");
  NormalPool pool(seed);
  Tallies tallies;
  std::size_t failures = 0;
  bool kernel_exists = arguments.kernel.empty();
  for (std::size_t i = 0; i < cases.value().size(); ++i) {
    const GridCase& grid_case = cases.value()[i];
    progress.show(fmt::format("[{}/{}] {}", i + 1, cases.value().size(), to_string(grid_case)));
    const GridData data = make_grid_data(grid_case, pool);
    const Result<Problem> problem = make_problem(data.tensors, data.options);
    if (!problem.ok()) return problem.status();
    const Result<std::vector<Candidate>> found = candidates(problem.value(), device);
    if (!found.ok()) return found.status();
    const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(device, data.tensors);
    if (!there.ok()) return there.status();
    for (const Candidate& candidate : found.value()) {
      kernel_exists = kernel_exists || candidate.kernel == arguments.kernel;
      const bool asked_for = arguments.kernel.empty() || candidate.kernel == arguments.kernel;
      if (!asked_for || !candidate.support.yes) continue;
      const VerifyReport report = run_kernel(problem.value(), data, *there.value(), device, candidate.kernel, arguments.threads);
      tallies[{candidate.kernel, grid_case.dtype}].add(report);
      if (report.ok) continue;
      if (++failures <= kShownFailures) {
        progress.line(fmt::format("FAILED {} {}: {}", candidate.kernel, to_string(grid_case), report.message));
      }
    }
    if (!kernel_exists) {
      return {StatusCode::invalid_argument,
              fmt::format("--kernel {}: {} has no kernel of that name, see `fulmen devices`", arguments.kernel, device)};
    }
  }
  if (tallies.empty()) {
    return {StatusCode::unsupported,
            fmt::format("--kernel {}: it supports no problem of the grid here, see `fulmen explain`", arguments.kernel)};
  }
  print_table(progress, tallies);
  if (failures != 0) {
    return {StatusCode::verification_failed, fmt::format("{} results broke the tolerance rule (--seed {})", failures, seed)};
  }
  return {};
}

}  // namespace

Command verify_command(CLI::App& app) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* parser = app.add_subcommand("verify", "put every kernel through a grid of problems and compare with the reference");
  parser->add_option("--grid", arguments->grid, "quick or full; quick is smaller on emulated devices")
      ->check(CLI::IsMember({"quick", "full"}));
  parser->add_option("--dtype", arguments->dtype, "fp32, fp16 or bf16; all when not given")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  parser->add_option("--device", arguments->device, "see `fulmen devices`");
  parser->add_option("--kernel", arguments->kernel, "one kernel; every one that supports a problem when not given");
  parser->add_option("--seed", arguments->seed, "of the random inputs; a new one each time when not given");
  parser->add_option("--threads", arguments->threads, "CPU threads; 0 takes OpenMP's setting")->check(CLI::NonNegativeNumber);
  return {parser, [arguments] { return verify(*arguments); }};
}

}  // namespace fulmen::tools
