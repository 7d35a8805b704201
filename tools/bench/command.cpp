#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "fulmen/backend.h"
#include "fulmen/printable.h"
#include "fulmen/version.h"
#include "runtime/platform/system.h"
#include "runtime/platform/threads.h"
#include "tools/bench/case_data.h"
#include "tools/bench/ceilings/device_copy_rate.h"
#include "tools/bench/compare/compare.h"
#include "tools/bench/compare/counts_compare.h"
#include "tools/bench/model/model_report.h"
#include "tools/bench/report/page.h"
#include "tools/bench/report/report.h"
#include "tools/commands.h"
#include "tools/files/output_file.h"
#include "tools/options/given_problem.h"
#include "tools/options/number_checks.h"
#include "tools/options/problem_arguments.h"
#include "tools/progress.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

constexpr uint64_t kSeed = 20240229;  // the same inputs in every run: rows are compared over time

struct BenchArguments {
  BenchSettings settings;
  // Its dtype, device, kernel, determinism and threads apply to suites, too.
  std::shared_ptr<GivenProblem> given = std::make_shared<GivenProblem>();
  bool problem = false;
  std::string suite = "all";
  std::string json, csv, html;
  std::vector<std::string> compare;
  std::vector<std::string> problem_options;  // options that need --problem
  std::string data = "examples/data";
  bool model = false;
};

// The number of threads of a call that does not say: any plan knows it.
int default_threads() {
  AttentionTensors tensors;
  tensors.q = tensors.k = tensors.v = tensors.out =
      Tensor::bshd(static_cast<void*>(nullptr), DType::fp32, 1, 16, 1, 16);
  const Result<Problem> problem = make_problem(tensors, {});
  if (!problem.ok()) return 1;
  const Result<Plan> made = plan(*problem, "cpu");
  return made.ok() ? std::max(1, made->config().num_threads) : 1;
}

// The ceiling's threads. More threads than processors are no faster; as they share processors, each
// would seem to have a processor's rate.
int ceiling_threads(int threads) {
  const int processors = platform::usable_processors();
  return processors > 0 ? std::min(threads, processors) : threads;
}

CaseSize size_of_cases(const std::string& device) {
  return is_emulated(device)        ? CaseSize::emulated
         : uses_host_memory(device) ? CaseSize::cpu
                                    : CaseSize::gpu;
}

// Real input first, then the suites. Without --dtype: all of fp32 and bf16 (GPU: fp16 and bf16),
// and one case of each kind of the third.
Result<std::vector<BenchCase>> chosen_cases(const BenchArguments& arguments) {
  if (arguments.problem) {
    BenchCase given;
    given.suite = given.name = "problem";
    given.given = arguments.given;
    given.training = arguments.given->backward;
    return std::vector<BenchCase>{std::move(given)};
  }
  struct Choice {
    DType dtype;
    bool brief;
  };
  const CaseSize size = arguments.model ? CaseSize::gpu : size_of_cases(arguments.settings.device);
  std::vector<Choice> choices{{DType::fp32, size != CaseSize::cpu},
                              {DType::bf16, false},
                              {DType::fp16, size == CaseSize::cpu}};
  if (const std::string& name = arguments.given->problem.dtype; !name.empty()) {
    const Result<DType> dtype = parse_dtype(name);
    if (!dtype.ok()) return dtype.status();
    choices = {{dtype.value(), false}};
  }
  std::vector<BenchCase> cases;
  for (const auto& [dtype, brief] : choices) {
    if (arguments.suite != "all" && arguments.suite != "real") break;
    cases.push_back(
        {.suite = "real", .name = "text encoder", .dtype = dtype, .folder = arguments.data});
  }
  for (const auto& [dtype, brief] : choices) {
    for (BenchCase& bench_case : bench_cases(arguments.suite, dtype, size, brief))
      cases.push_back(std::move(bench_case));
  }
  return cases;
}

void print_ceilings(Progress& progress, const Ceilings& ceilings) {
  for (const CeilingKind kind :
       {CeilingKind::fma, CeilingKind::bf16_dot, CeilingKind::amx_bf16, CeilingKind::read}) {
    progress.line("  " + ceilings.description(kind));
  }
}

std::string chip_of(const std::string& device) {
  for (const DeviceInfo& info : devices()) {
    if (info.name == device) return info.chip;
  }
  return "unknown chip";
}

// What is measured, how, and beside what.
void print_head(Progress& progress, const BenchSettings& settings, int threads) {
  const std::string on =
      fmt::format("fulmen {} on {} ({})", version(), settings.device, chip_of(settings.device));
  if (is_emulated(settings.device)) {
    progress.line(on);
    progress.line(
        "an emulated chip: its times mean nothing, so none are given; small cases, every one run "
        "and verified");
  } else if (uses_host_memory(settings.device)) {
    progress.line(fmt::format("{}, threads: {}, rates from the fastest repetitions", on, threads));
  } else {
    progress.line(on);
    progress.line(
        "a repetition is as many runs, one behind the other on the default stream with the same "
        "tensors, as take 10 ms, and the "
        "wait for the last; rates from the fastest repetitions, ceiling: of boards and decode, "
        "copying");
  }
}

Status write_reports(const BenchArguments& arguments, const std::vector<BenchRow>& rows) {
  // A command that fails leaves no report.
  if (Status status = flush_standard_output(); !status.ok()) return status;
  if (!arguments.json.empty()) {
    if (Status status = write_text_file(arguments.json, json_report(rows)); !status.ok())
      return status;
  }
  if (!arguments.csv.empty()) {
    if (Status status = write_text_file(arguments.csv, csv_report(rows)); !status.ok())
      return status;
  }
  if (arguments.html.empty()) return {};
  const std::string& device = arguments.settings.device;
  return write_text_file(
      arguments.html,
      bench_page(rows, fmt::format("fulmen {} on {} ({})", version(), device, chip_of(device))));
}

// No report replaces a file of the real input, or of --problem.
Status check_inputs_stay(const BenchArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> inputs;  // who reads it, its path
  for (const InputFile& file : input_files(arguments.given->problem))
    inputs.emplace_back(file.option, file.path);
  if (!arguments.problem && (arguments.suite == "all" || arguments.suite == "real")) {
    for (const std::string& file : real_case_files(arguments.data))
      inputs.emplace_back("--data " + printable(arguments.data), file);
  }
  const std::pair<const char*, const std::string&> reports[] = {
      {"--json", arguments.json}, {"--csv", arguments.csv}, {"--html", arguments.html}};
  for (const auto& [option, path] : reports) {
    for (const auto& [reader, input] : inputs) {
      if (!same_file(path, input)) continue;
      return {StatusCode::invalid_argument,
              fmt::format("{} {}: {} reads it, and it would be replaced: another file is needed",
                          option, printable(path), reader)};
    }
  }
  return {};
}

// Problems of one case are reported in its place; these end the run.
bool ends_run(StatusCode code) {
  return code != StatusCode::out_of_memory && code != StatusCode::unsupported;
}

Status compare(const std::vector<std::string>& paths) {
  const Result<std::string> a = read_text_file("--compare", paths[0]),
                            b = read_text_file("--compare", paths[1]);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  if (are_counts(a.value()) || are_counts(b.value())) {
    const Result<std::vector<ComparedCounts>> launches =
        compare_counts(a.value(), paths[0], b.value(), paths[1]);
    if (!launches.ok()) return launches.status();
    fmt::print("A is {}, B is {}; instructions that all waves of a launch execute\n{}\n",
               printable(paths[0]), printable(paths[1]), counts_table(launches.value()));
    return counts_status(launches.value());
  }
  const Result<std::vector<ComparedRow>> rows =
      compare_reports(a.value(), paths[0], b.value(), paths[1]);
  if (!rows.ok()) return rows.status();
  fmt::print("A is {}, B is {}; times of the fastest repetitions\n{}\n", printable(paths[0]),
             printable(paths[1]), comparison_table(rows.value()));
  return comparison_status(rows.value());
}

// Modelled times of the cases of a GPU, one after the other.
Status model(const BenchArguments& arguments) {
  const std::string& device = arguments.settings.device;
  for (const auto& [option, path] :
       {std::pair{"--csv", &arguments.csv}, {"--html", &arguments.html}}) {
    if (path->empty()) continue;
    return {StatusCode::invalid_argument,
            fmt::format("{} beside --model: it is for what was measured", option)};
  }
  const ChipRates* chip =
      device.starts_with("emulated:") ? chip_rates(device.substr(device.find(':') + 1)) : nullptr;
  if (chip == nullptr) {
    return {StatusCode::invalid_argument,
            fmt::format("--model on {}: emulated:{{{}}} are modelled", printable(device),
                        fmt::join(modelled_chips(), ","))};
  }
  const Result<std::vector<BenchCase>> cases = chosen_cases(arguments);
  if (!cases.ok()) return cases.status();
  if (Status status = check_writable(arguments.json); !status.ok()) return status;
  AttentionOptions options;
  options.kernel = arguments.settings.kernel;
  options.deterministic = arguments.settings.deterministic;
  Progress progress;
  progress.line(model_head(*chip));
  std::string refused;
  std::vector<ModelledRow> rows;
  for (const BenchCase& c : cases.value()) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !c.training) continue;
      progress.show(c.name);
      AttentionOptions with = options;
      if (c.training && is_backward_kernel(device, with.kernel) != (pass == Pass::backward))
        with.kernel.clear();
      const Result<ModelledRow> row = model_case(c, pass, device, with);
      if (!row.ok() && row.status().code() != StatusCode::unsupported) return row.status();
      if (row.ok()) {
        progress.line(model_line(row.value()));
        rows.push_back(row.value());
      } else if (row.status().message() != refused) {
        refused = row.status().message();
        progress.line(fmt::format("{} {} left out: {}", c.suite, c.name, refused));
      }
    }
  }
  if (rows.empty()) return {StatusCode::unsupported, "no case could be modelled"};
  return arguments.json.empty() ? Status{}
                                : write_text_file(arguments.json, model_json(*chip, rows));
}

// Files that the run will write: one each, none that it reads, all where a file can be.
Status check_reports(const BenchArguments& arguments) {
  const std::array<std::pair<const char*, const std::string*>, 3> reports{
      {{"--json", &arguments.json}, {"--csv", &arguments.csv}, {"--html", &arguments.html}}};
  for (std::size_t n = 0; n < reports.size(); ++n) {
    for (std::size_t m = n + 1; m < reports.size(); ++m) {
      if (!same_file(*reports[n].second, *reports[m].second)) continue;
      return {StatusCode::invalid_argument,
              fmt::format("{} and {} are both {}: a file of its own is needed for each",
                          reports[n].first, reports[m].first, printable(*reports[m].second))};
    }
  }
  if (Status status = check_inputs_stay(arguments); !status.ok()) return status;
  for (const std::string& path : {arguments.json, arguments.csv, arguments.html}) {
    if (Status status = check_writable(path); !status.ok()) return status;
  }
  return {};
}

// What rows are beside; the processor's ceilings stay in `ceilings`.
Yardsticks measure_yardsticks(const BenchSettings& settings, int threads, Progress& progress,
                              std::optional<Ceilings>& ceilings) {
  Yardsticks yardsticks;
  if (uses_host_memory(settings.device)) {
    progress.show("measuring the ceilings ...");
    yardsticks.cpu = &ceilings.emplace(ceiling_threads(threads));
    print_ceilings(progress, *ceilings);
  } else if (!is_emulated(settings.device)) {
    progress.show("measuring the copy rate ...");
    yardsticks.copy_gb_s = device_copy_rate(settings.device);
    if (yardsticks.copy_gb_s > 0)
      progress.line(fmt::format("  copying within the device {:.0f} GB/s", yardsticks.copy_gb_s));
  }
  return yardsticks;
}

// Measures the cases and writes the reports; fails where a result is wrong.
Status measure_cases(const BenchArguments& arguments, const std::vector<BenchCase>& cases,
                     const Yardsticks& yardsticks, Progress& progress) {
  progress.line(table_head());
  BenchMeter meter(arguments.settings, yardsticks, kSeed);
  std::vector<BenchRow> rows;
  std::string failed;
  std::set<std::string> refused;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const BenchCase& bench_case = cases[i];
    const std::string name = fmt::format("{:8} {:5} {:20}", bench_case.suite,
                                         to_string(bench_case.dtype), bench_case.name);
    progress.show(fmt::format("[{}/{}] {}", i + 1, cases.size(), name));
    if (!bench_case.folder.empty() && !std::filesystem::exists(bench_case.folder)) {
      progress.line(
          fmt::format("{} left out: the folder {} is not there (--data)", name, bench_case.folder));
      continue;
    }
    const Result<BenchRow> row = meter.measure(bench_case);
    if (!row.ok()) {
      if (ends_run(row.status().code()) || arguments.problem) return row.status();
      progress.line(fmt::format("{} left out: {}", name, row.status().message()));
      continue;
    }
    progress.line(table_line(row.value()));
    if (!row->problem.empty()) progress.line(fmt::format("{:35} {}", "", row->problem));
    if (!row->standard_note.empty())
      progress.line(fmt::format("{:35} standard attention {}", "", row->standard_note));
    // Each reason is printed once: the speed-up is over another kernel than elsewhere.
    if (!row->standard_refused.empty() && refused.insert(row->standard_refused).second) {
      progress.line(fmt::format("{:35} standard attention by {}: {}", "", row->standard_kernel,
                                row->standard_refused));
    }
    if (!row->verified && failed.empty()) failed = name + ": " + row->verify_message;
    rows.push_back(row.value());
    // Rows that took minutes are kept, whatever ends the run.
    if (Status status = write_reports(arguments, rows); !status.ok()) return status;
  }
  if (yardsticks.cpu != nullptr) {
    progress.line("ceilings, the best of the whole run:");
    print_ceilings(progress, *yardsticks.cpu);
  }
  if (!failed.empty()) return {StatusCode::verification_failed, "a result is wrong: " + failed};
  if (rows.empty()) return {StatusCode::unavailable, "no case could be run"};
  return {};
}

// Options of a problem need --problem, which no suite and no option of suites goes with.
Status check_problem_options(const CLI::App& parser, const BenchArguments& arguments) {
  if (!arguments.problem) {
    for (const std::string& option : arguments.problem_options) {
      if (parser.count(option) > 0) {
        return {StatusCode::invalid_argument,
                fmt::format("{}: it describes a problem, which is timed with --problem", option)};
      }
    }
    return {};
  }
  for (const char* option : {"--suite", "--data", "--model", "--compare"}) {
    if (parser.count(option) == 0) continue;
    return {
        StatusCode::invalid_argument,
        fmt::format("{} beside --problem: one problem is timed, leave one of them out", option)};
  }
  return check_use(parser, *arguments.given);
}

// What is wrong with a problem by numbers is said before anything is measured.
Status check_numbers(const BenchArguments& arguments) {
  const GivenProblem& given = *arguments.given;
  if (!arguments.problem || given.by_files()) return {};
  const Result<GivenCall> call = make_call(given);
  if (!call.ok()) return call.status();
  return (given.backward ? make_backward_problem(call->tensors, call->options)
                         : make_problem(call->tensors, call->options))
      .status();
}

Status bench(const CLI::App& parser, BenchArguments arguments) {
  if (Status status = check_problem_options(parser, arguments); !status.ok()) return status;
  if (!arguments.compare.empty()) return compare(arguments.compare);
  BenchSettings& settings = arguments.settings;
  const ProblemArguments& given = arguments.given->problem;
  settings.device = given.device;
  settings.kernel = given.kernel;
  settings.deterministic = given.deterministic;
  settings.num_threads = given.threads;
  if (settings.device.empty()) settings.device = default_device();
  if (Status status = check_device_and_kernel(settings.device, settings.kernel); !status.ok())
    return status;
  if (arguments.model) return model(arguments);
  if (Status status = check_reports(arguments); !status.ok()) return status;
  if (Status status = check_numbers(arguments); !status.ok()) return status;
  const Result<std::vector<BenchCase>> cases = chosen_cases(arguments);
  if (!cases.ok()) return cases.status();
  const int threads = settings.num_threads > 0 ? settings.num_threads : default_threads();

  Progress progress;
  print_head(progress, settings, threads);
  if (const std::string verify =
          platform::environment_variable("FLASH_ATTENTION_VERIFY").value_or("");
      !verify.empty() && verify != "0") {
    platform::set_environment_variable("FLASH_ATTENTION_VERIFY", nullptr);
    progress.line(
        "FLASH_ATTENTION_VERIFY is not obeyed: each row is verified, and the calls that are timed "
        "have to be alone");
  }
  std::optional<Ceilings> ceilings;
  const Yardsticks yardsticks = measure_yardsticks(settings, threads, progress, ceilings);
  return measure_cases(arguments, cases.value(), yardsticks, progress);
}

}  // namespace

Command bench_command(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  BenchSettings& settings = arguments->settings;
  CLI::App* parser = app.add_subcommand(
      "bench", "time real problems, each verified and set beside ceilings and standard attention");
  parser
      ->add_option("--suite", arguments->suite,
                   "real, prefill, boards, decode, paged (decode over pages), training (forward "
                   "and backward) or all")
      ->check(CLI::IsMember({"real", "prefill", "boards", "decode", "paged", "training", "all"}));
  parser->add_flag("--problem", arguments->problem,
                   "instead of suites one problem, by the options of `fulmen explain`: numbers "
                   "(--seqlen-q, --heads, --head-dim, ...), "
                   "whose tensors are random, or files");
  const std::vector<const CLI::Option*> before = std::as_const(*parser).get_options();
  add_given_problem_options(*parser, *arguments->given);
  // These options apply to suites, too.
  constexpr std::string_view kShared[] = {"--dtype", "--device", "--kernel", "--deterministic",
                                          "--threads"};
  for (const CLI::Option* option : std::as_const(*parser).get_options()) {
    const std::string name = option->get_name();
    const bool shared =
        std::find(std::begin(kShared), std::end(kShared), name) != std::end(kShared);
    const bool new_here = std::find(before.begin(), before.end(), option) == before.end();
    if (new_here && !shared) arguments->problem_options.push_back(name);
  }
  parser->get_option("--dtype")->description(
      "fp32, fp16 or bf16; without it fp32, bf16 and a few rows of fp16 (GPU: fp16, bf16 and a few "
      "of fp32), and --problem's fp32");
  parser->get_option("--backward")
      ->description(
          "--problem: its forward and backward pass, --kernel and --set are the backward one's");
  parser
      ->add_option("--seconds", settings.seconds,
                   "of measuring a case, standard attention and ceilings included")
      ->check(amount(false))
      ->capture_default_str();
  parser
      ->add_option("--max-standard", settings.max_standard_seconds,
                   "seconds a call of standard attention may take")
      ->check(amount(true))
      ->capture_default_str();
  parser
      ->add_option_function<double>(
          "--max-gb",
          [arguments](double gb) {
            arguments->settings.max_bytes = static_cast<std::size_t>(gb * 1e9);
          },
          "leave out cases whose tensors are bigger (default 3)")
      ->check(amount(false));
  parser->add_flag("--model", arguments->model,
                   "on an emulated chip: how long a GPU's cases would take, by what the emulator "
                   "counts and the maker's figures");
  parser->add_option("--data", arguments->data, "folder of the real input")->capture_default_str();
  parser->add_option("--json", arguments->json, "write the rows as JSON");
  parser->add_option("--csv", arguments->csv, "write the rows as CSV");
  parser->add_option("--html", arguments->html, "write the rows as a page with plots");
  parser
      ->add_option("--compare", arguments->compare,
                   "two files of --json: how B's rows are beside A's, and whether by more than "
                   "noise; fails where one is slower, wrong or "
                   "missing; nothing is measured. Also two files of `fulmen counts --json`: fails "
                   "where a launch executes 2 % more")
      ->expected(2);
  return {parser, [parser, arguments] { return bench(*parser, *arguments); }};
}

}  // namespace fulmen::tools
