#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "fulmen/fulmen.h"
#include "fulmen/printable.h"
#include "fulmen/probe.h"
#include "tools/commands.h"
#include "tools/compile/ahead.h"
#include "tools/doctor/system_facts.h"
#include "tools/doctor/vendor_libraries.h"
#include "tools/files/output_file.h"
#include "tools/options/number_checks.h"
#include "tools/options/problem_arguments.h"
#include "tools/progress.h"
#include "tools/selftest/report.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

struct CommandArguments {
  SelftestArguments selftest;
  std::string report;
  bool no_emulator = false;
};

// The vendors' libraries that this process has loaded.
std::vector<std::string> vendor_libraries(const SystemFacts& facts) {
  std::vector<std::string> list;
  for (const char* name : {"libamdhip64", "libhiprtc", "libamd_comgr", "libhsa-runtime64",
                           "libcuda.so", "libnvrtc", "libopenblas"}) {
    const std::vector<std::string> paths = mapped_libraries(facts, name);
    list.insert(list.end(), paths.begin(), paths.end());
  }
  return list;
}

void add_kernels(const std::string& chip, SelftestReport& report) {
  const std::size_t open = chip.rfind('('), close = chip.rfind(')');
  if (open == std::string::npos || close < open) return;
  const Result<std::vector<KernelReport>> kernels =
      compile_kernels(chip.substr(open + 1, close - open - 1));
  if (kernels.ok()) {
    report.kernels = kernels.value();
  } else {
    report.kernels_missing = kernels.status().message();
  }
}

void say(Progress& progress, const SelftestRun& run) {
  if (run.ok) return;
  progress.line(fmt::format("FAILED {} {}: {}\n  repeat it: {}", run.kernel, run.problem,
                            run.message, run.repeat));
}

// Says where a long run is, in a pipe as well.
class Halfminutes {
 public:
  // Returns true if 30 seconds have passed since it last did, or since the beginning.
  bool passed() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::seconds(30)) return false;
    last_ = now;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

Status run_problems(const CommandArguments& arguments, Progress& progress, SelftestReport& report) {
  SelftestRuns runs(arguments.selftest);
  const std::vector<int> numbers = runs.numbers();
  const bool compiles = !uses_host_memory(arguments.selftest.device);
  const CompileAhead ahead(compiles ? numbers.size() : 0,
                           [&](std::size_t n) { runs.compile(numbers[n]); });
  Halfminutes halfminutes;
  for (const int number : numbers) {
    const std::string where = fmt::format("[{}/{}]", number, runs.count());
    progress.show(where);
    if (halfminutes.passed()) progress.line(where);
    const Result<SelftestRun> run = runs.run(number);
    if (!run.ok()) return run.status();
    say(progress, run.value());
    report.runs.push_back(run.value());
  }
  for (const auto& [kernel, number] : runs.left_over()) {
    const std::string where = fmt::format("[{}] {}", number, kernel);
    progress.show(where);
    if (halfminutes.passed()) progress.line(where);
    report.runs.push_back(runs.run_forced(number, kernel));
    say(progress, report.runs.back());
  }
  return {};
}

void print_summary(Progress& progress, const SelftestReport& report) {
  int64_t compared = 0, differing = 0;
  int emulated_wrong = 0;
  for (const SelftestRun& run : report.runs) {
    compared += run.emulated_elements;
    differing += run.differing;
    emulated_wrong += run.emulated_ok ? 0 : 1;
  }
  if (compared > 0) {
    progress.line(fmt::format(
        "{} of {} elements have other bits than {}'s: no failure where both obey the rule",
        differing, compared, report.twin));
  }
  if (emulated_wrong > 0)
    progress.line(fmt::format("{} results of {} itself are wrong", emulated_wrong, report.twin));
  for (const SpeedRow& row : report.speed) {
    progress.line(fmt::format("{:9.3f} ms {:8.3f} TFLOP/s {:8.1f} GB/s  {} {}{}", 1e3 * row.seconds,
                              row.tflops, row.gigabytes_per_second, row.kernel, row.problem,
                              row.ok ? "" : " WRONG: " + row.message));
  }
  for (const HardwareProbe& probe : report.probes) {
    progress.line(fmt::format("{} {}: {}",
                              !probe.probed       ? "not probed"
                              : probe.as_expected ? "as expected"
                                                  : "NOT AS EXPECTED",
                              probe.name, probe.found));
    if (probe.probed && !probe.as_expected) progress.line("  it decides " + probe.decides);
  }
  for (const Yardstick& one : report.yardsticks)
    progress.line(fmt::format("{:9.1f} {:8} {}", one.value, one.unit, one.what));
}

// Writes the report's files, if any are wanted.
Status write_report(const std::string& path, SelftestReport& report, Progress& progress) {
  if (path.empty()) return {};
  const auto [json_file, html_file] = report_files(path);
  const SystemFacts facts = facts_of_this_system("self");
  report.libraries = vendor_libraries(facts);
  report.findings = examine(facts);
  const nlohmann::json json = to_json(report, PrivateWords::of_this_process());
  if (Status status = write_text_file(json_file, json.dump(2) + "\n"); !status.ok()) return status;
  if (Status status = write_text_file(html_file, to_html(json)); !status.ok()) return status;
  progress.line(fmt::format("written: {} and {}, without names of this user or machine",
                            printable(json_file), printable(html_file)));
  return {};
}

Status selftest(CommandArguments arguments) {
  SelftestArguments& a = arguments.selftest;
  if (a.device.empty()) a.device = default_device();
  if (Status status = check_device_and_kernel(a.device, a.kernel); !status.ok()) return status;
  const auto [json_file, html_file] = report_files(arguments.report);
  for (const std::string& file : {json_file, html_file}) {
    if (arguments.report.empty()) break;
    if (Status status = check_writable(file); !status.ok()) return status;
  }
  const int count = SelftestRuns(a).count();
  if (a.only > count)
    return {StatusCode::invalid_argument,
            fmt::format("--only {}: there are problems 1 to {}", a.only, count)};
  SelftestReport report;
  report.device = a.device;
  for (const DeviceInfo& info : devices()) {
    const bool is_it = info.name == a.device ||
                       (info.usable && info.name.substr(0, info.name.find(':')) == a.device);
    if (!is_it || !report.chip.empty()) continue;
    report.chip = info.chip;
    report.features = info.features;
  }
  a.twin = arguments.no_emulator ? "" : emulated_twin(a.device);
  report.twin = !a.twin.empty()         ? a.twin
                : arguments.no_emulator ? "left out"
                                        : "none is needed, or in this build";
  Progress progress;
  progress.line(fmt::format("fulmen {} selftest on {}{}", version(), a.device,
                            a.twin.empty() ? "" : ", bits compared with " + a.twin));
  if (Status status = run_problems(arguments, progress, report); !status.ok()) return status;
  if (report.runs.empty()) {
    return {
        StatusCode::unsupported,
        fmt::format("--only {} is a problem of append_kv, which --kernel does not choose", a.only)};
  }
  if (a.only == 0 && a.kernel.empty()) {
    const Result<std::vector<HardwareProbe>> probes = probe_hardware(a.device);
    if (!probes.ok()) return probes.status();
    report.probes = probes.value();
  }
  if (a.only == 0 && a.kernel.empty() && !a.quick) {
    report.speed = measure_speed(a.device);
    report.yardsticks = measure_yardsticks(a.device);
    if (!uses_host_memory(a.device) && !is_emulated(a.device)) add_kernels(report.chip, report);
  }
  print_summary(progress, report);
  const int failed = report.failed();
  const auto unexpected =
      std::count_if(report.probes.begin(), report.probes.end(),
                    [](const HardwareProbe& probe) { return probe.probed && !probe.as_expected; });
  progress.line(fmt::format("{} results, {} failed", report.results(), failed));
  if (Status status = write_report(arguments.report, report, progress); !status.ok()) return status;
  if (failed == 0 && unexpected > 0) {
    return {
        StatusCode::verification_failed,
        fmt::format("{} answers of {} are not what kernels rely on, though all results are right",
                    unexpected, a.device)};
  }
  if (failed == 0) return {};
  return {StatusCode::verification_failed,
          fmt::format("{} results of the selftest are wrong on {}", failed, a.device)};
}

}  // namespace

Command selftest_command(CLI::App& app) {
  auto arguments = std::make_shared<CommandArguments>();
  SelftestArguments& selftest_arguments = arguments->selftest;
  CLI::App* parser = app.add_subcommand(
      "selftest", "run fixed problems of every family on a device, and write a report to send in");
  parser->add_option("--device", selftest_arguments.device, "see `fulmen devices`");
  parser->add_option(
      "--report", arguments->report,
      "write FILE.json and FILE.html: chip, software, errors, times; nothing private");
  parser->add_flag("--quick", selftest_arguments.quick, "every fifth problem, and no times");
  parser->add_option("--only", selftest_arguments.only, "one problem by its number")
      ->transform(int_from(1));
  parser->add_option("--kernel", selftest_arguments.kernel,
                     "one kernel instead of the chosen ones");
  parser->add_flag("--no-emulator", arguments->no_emulator,
                   "compare no bits with the emulated chip, whose kernels take a second each");
  return {parser, [arguments] { return selftest(*arguments); }};
}

}  // namespace fulmen::tools
