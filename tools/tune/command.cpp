// fulmen tune: the fastest legal configurations for this very chip, verified, kept and shown.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <tuple>

#include "fulmen/compile.h"
#include "fulmen/fulmen.h"
#include "fulmen/printable.h"
#include "tools/commands.h"
#include "tools/files/output_file.h"
#include "tools/options/number_checks.h"
#include "tools/options/problem_arguments.h"
#include "tools/progress.h"
#include "tools/tune/device.h"
#include "tools/tune/log.h"
#include "tools/tune/page.h"
#include "tools/tune/report.h"

namespace fulmen::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kQuickSeconds = 600, kFullSeconds = 1800;
constexpr std::size_t kQuickCandidates = 24, kFullCandidates = 120, kEmulatedCandidates = 4;
constexpr int kMostRestarts = 8;

struct TuneArguments {
  TuneSettings settings;
  std::string model = "all", dtype = "bf16", json, csv, html, from_log, export_to, import_from;
  std::vector<std::string> problems;
  bool quick = false, full = false, list = false, reset = false;
  double minutes = 0;
};

std::string now_text() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

// Returns every file of own results, in order of names.
std::vector<std::string> own_files() {
  std::vector<std::string> files;
  std::error_code error;
  const std::string folder =
      std::filesystem::path(tuned_results_file("any")).parent_path().string();
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".json") files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void list_records(const std::string& head, const Result<std::vector<TuneRecord>>& records) {
  fmt::print("{}{}\n", printable(head), records.ok() ? "" : ": " + records.status().message());
  if (!records.ok()) return;
  for (const TuneRecord& r : records.value()) {
    fmt::print("  {} for {}{}: {}{}, {:.1f} % less time, {}\n", printable(r.kernel),
               printable(r.problem_class), r.product.empty() ? "" : " on " + printable(r.product),
               printable(r.configuration), r.is_default ? " (the default)" : "", 100 * r.gain,
               printable(r.when));
  }
}

Status list() {
  std::size_t count = 0, shipped = 0;
  for (const std::string& file : own_files()) {
    const Result<std::vector<TuneRecord>> records = read_records(file);
    list_records(file, records);
    if (records.ok()) count += records->size();
  }
  for (const std::string& text : shipped_tuned_results()) {
    const Result<std::vector<TuneRecord>> records =
        parse_records(text, "a file of shipped results");
    if (!records.ok()) return records.status();
    if (records->empty()) continue;
    list_records("shipped, " + records->front().chip, records);
    shipped += records->size();
  }
  fmt::print("{} own results, {} shipped\n", count, shipped);
  return {};
}

// All files as one list.
Status export_results(const std::string& path) {
  std::string text = "[\n";
  for (const std::string& file : own_files()) {
    const Result<std::vector<TuneRecord>> records = read_records(file);
    if (!records.ok()) return records.status();
    if (records->empty()) continue;
    text += (text.size() > 2 ? ",\n" : "") + records_text(records->front().chip, records.value());
  }
  return write_text_file(path, text + "]\n");
}

Status import_results(const std::string& path) {
  const Result<std::string> text = read_text_file("--import", path);
  if (!text.ok()) return text.status();
  const Result<std::vector<std::vector<TuneRecord>>> chips = parse_export(text.value(), path);
  if (!chips.ok()) return chips.status();
  std::size_t count = 0, of_others = 0;
  for (const std::vector<TuneRecord>& records : chips.value()) {
    if (Status status = merge_records(tuned_results_file(records.front().chip), records);
        !status.ok())
      return status;
    count += records.size();
    of_others += static_cast<std::size_t>(
        std::count_if(records.begin(), records.end(),
                      [](const TuneRecord& r) { return r.fulmen_version != version(); }));
  }
  fmt::print("{} results are now among this user's own\n", count);
  if (of_others > 0) {
    fmt::print(
        "{} of them are not of Fulmen {}: a result serves only while the kernel's code is what was "
        "measured (explain says so of a call)\n",
        of_others, version());
  }
  return {};
}

Status reset() {
  int count = 0;
  for (const std::string& file : own_files()) {
    std::error_code error;
    if (!std::filesystem::remove(file, error)) {
      return {StatusCode::unavailable,
              fmt::format("{} cannot be deleted: {}", printable(file), error.message())};
    }
    ++count;
  }
  fmt::print("{} files of own results deleted\n", count);
  return {};
}

// Tunes one problem, in processes of its own. The next process leaves out a configuration that
// crashed or hung.
Result<TunedProblem> tune_supervised(const TuneProblem& problem, const TuneSettings& settings,
                                     Progress& progress, const std::string& head) {
  std::map<std::string, std::string> excluded;
  for (int start = 0; start < kMostRestarts; ++start) {
    std::string result, error;
    const WorkerEnd end = run_supervised(
        [&](const Teller& teller) { tune_problem(problem, settings, excluded, teller); },
        [&](const std::string& message) {
          if (message.starts_with("progress ")) progress.show(head + message.substr(9));
          if (message.starts_with("result ")) result = message.substr(7);
          if (message.starts_with("error ")) error = message.substr(6);
        });
    if (end.done && !result.empty()) return read_tuned(result);
    const std::string why = error.empty() ? end.why : error;
    const std::size_t space = end.step.find(' ');
    const std::string configuration = space == std::string::npos ? "" : end.step.substr(space + 1);
    if (configuration.find('=') == std::string::npos ||
        !excluded.emplace(configuration, why).second) {
      return Status(StatusCode::internal,
                    fmt::format("{}: {}", end.step.empty() ? "the worker" : end.step, why));
    }
    progress.line(
        fmt::format("{}: {}: {}; it is left out", problem.bench_case.name, end.step, why));
  }
  return Status(StatusCode::internal,
                fmt::format("{} configurations crashed or hung: tuning ends here", kMostRestarts));
}

TuneRecord record_of(const TunedProblem& t) {
  const TuneCandidate& usual = t.outcome.candidates.front();
  const TuneCandidate& winner = t.outcome.candidates[t.outcome.winner];
  TuneRecord r;
  r.chip = t.identity.chip;
  r.kernel = t.identity.kernel;
  r.problem_class = t.identity.problem_class;
  r.build = t.identity.build;
  r.compute_units = t.identity.compute_units;
  r.configuration = winner.configuration;
  r.usual = usual.configuration;
  r.is_default = t.outcome.winner == 0;
  r.device = t.device;
  r.product = t.identity.product;
  r.driver = t.identity.driver;
  r.compiler = t.identity.compiler;
  r.fulmen_version = version();
  r.when = now_text();
  r.problem = t.name;
  r.arguments = t.arguments;
  r.median_s = winner.statistics.median;
  r.default_median_s = usual.statistics.median;
  r.spread = winner.statistics.spread();
  r.gain = t.outcome.gain;
  r.noise = t.outcome.noise;
  return r;
}

Result<std::vector<TuneProblem>> problems_of(const TuneArguments& arguments) {
  const Result<DType> dtype = parse_dtype(arguments.dtype);
  if (!dtype.ok()) return dtype.status();
  if (!arguments.from_log.empty()) {
    const Result<std::string> text = read_text_file("--from-log", arguments.from_log);
    if (!text.ok()) return text.status();
    Result<LogProblems> found = problems_of_log(text.value(), arguments.from_log);
    if (!found.ok()) return found.status();
    for (const std::string& one : found->left_out)
      fmt::print("{}: {}\n", printable(arguments.from_log), one);
    return std::move(found->problems);
  }
  if (arguments.problems.empty()) {
    const std::string& device = arguments.settings.device;
    const CaseSize size = is_emulated(device)            ? CaseSize::emulated
                          : device.substr(0, 3) == "cpu" ? CaseSize::cpu
                                                         : CaseSize::gpu;
    return tune_problems(arguments.model, dtype.value(), size, arguments.full);
  }
  std::vector<TuneProblem> problems;
  for (const std::string& text : arguments.problems) {
    Result<TuneProblem> problem = parse_tune_problem(text);
    if (!problem.ok()) return problem.status();
    problems.push_back(std::move(problem).value());
  }
  return problems;
}

std::string left_text(double seconds) {
  return fmt::format("{:.0f}:{:02.0f} left", std::floor(seconds / 60), std::fmod(seconds, 60));
}

// Keeps a measured result for later runs of this user.
Status keep(const TunedProblem& tuned) {
  const std::string path = tuned_results_file(tuned.identity.chip);
  if (path.empty())
    return {StatusCode::unavailable, "there is no folder to keep results in: HOME is not set"};
  return merge_records(path, {record_of(tuned)});
}

Status write_files(const TuneArguments& arguments, const std::vector<TunedProblem>& tuned) {
  const std::tuple<const std::string&, std::string (*)(const std::vector<TunedProblem>&)> files[] =
      {{arguments.json, tuned_json}, {arguments.csv, tuned_csv}, {arguments.html, tuned_page}};
  for (const auto& [path, text] : files) {
    if (path.empty()) continue;
    if (Status status = write_text_file(path, text(tuned)); !status.ok()) return status;
  }
  return {};
}

Status tune_all(TuneArguments arguments) {
  TuneSettings& settings = arguments.settings;
  if (settings.device.empty()) settings.device = default_device();
  for (const std::string* path : {&arguments.json, &arguments.csv, &arguments.html}) {
    if (Status status = check_writable(*path); !status.ok()) return status;
  }
  const Result<std::vector<TuneProblem>> problems = problems_of(arguments);
  if (!problems.ok()) return problems.status();
  const bool emulated = is_emulated(settings.device);
  settings.limits.timed = !emulated;
  settings.limits.max_candidates = emulated         ? kEmulatedCandidates
                                   : arguments.full ? kFullCandidates
                                                    : kQuickCandidates;
  const double all = arguments.minutes > 0 ? 60 * arguments.minutes
                     : arguments.full      ? kFullSeconds
                                           : kQuickSeconds;

  Progress progress;
  if (emulated)
    progress.line(
        "an emulated chip: configurations are compiled and verified, nothing is timed and nothing "
        "is kept");
  std::vector<TunedProblem> tuned;
  const auto start = Clock::now();
  std::size_t failed = 0;
  for (std::size_t n = 0; n < problems->size(); ++n) {
    const TuneProblem& problem = problems.value()[n];
    const double left = all - std::chrono::duration<double>(Clock::now() - start).count();
    settings.limits.seconds = std::max(1.0, left / static_cast<double>(problems->size() - n));
    Result<TunedProblem> one = tune_supervised(
        problem, settings, progress,
        fmt::format("{}, {}: ", left_text(std::max(0.0, left)), problem.bench_case.name));
    if (one.ok() && !one->error.empty())
      one = Status(one->tunable ? StatusCode::internal : StatusCode::unsupported, one->error);
    if (!one.ok()) {
      progress.line(fmt::format("{}: {}", problem.bench_case.name, one.status().message()));
      failed += one.status().code() == StatusCode::unsupported ? 0 : 1;
      continue;
    }
    if (one->kept) {
      progress.line(fmt::format("{}: its result is kept from before", problem.bench_case.name));
      continue;
    }
    progress.line(table_of(one.value(), arguments.full));
    tuned.push_back(std::move(one).value());
    if (emulated) continue;
    // A default that stays because of noise alone is no result.
    constexpr double kTooNoisy = 0.2;
    if (tuned.back().outcome.winner == 0 && tuned.back().outcome.noise > kTooNoisy) {
      progress.line(fmt::format("not kept: times vary by {:.0f} %, is the machine busy?",
                                100 * tuned.back().outcome.noise));
      continue;
    }
    // The disk is full, say: the measurement is still shown.
    if (Status status = keep(tuned.back()); !status.ok()) {
      progress.line(fmt::format("its result is not kept: {}", status.message()));
      ++failed;
    }
  }
  progress.line(summary_of(tuned, emulated));
  if (Status status = write_files(arguments, tuned); !status.ok()) return status;
  if (failed > 0)
    return {StatusCode::internal, fmt::format("{} problems could not be tuned or kept", failed)};
  return {};
}

Status run_tune(const TuneArguments& arguments) {
  if (!arguments.from_log.empty() && !arguments.problems.empty()) {
    return {StatusCode::invalid_argument, "--from-log and --problem: one of them"};
  }
  if (arguments.quick && arguments.full)
    return {StatusCode::invalid_argument, "--quick and --full: one of them"};
  if (arguments.list) return list();
  if (arguments.reset) return reset();
  if (!arguments.export_to.empty()) return export_results(arguments.export_to);
  if (!arguments.import_from.empty()) return import_results(arguments.import_from);
  return tune_all(arguments);
}

}  // namespace

Command tune_command(CLI::App& app) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* parser = app.add_subcommand(
      "tune", "find the fastest configurations for this chip, verify and keep them");
  parser->add_flag("--quick", arguments->quick, "up to 10 minutes, few candidates: the default");
  parser->add_flag("--full", arguments->full, "up to 30 minutes, more problems and candidates");
  parser->add_option("--minutes", arguments->minutes, "another limit")->check(amount(false));
  parser->add_option("--device", arguments->settings.device, "see `fulmen devices`");
  parser->add_option("--kernel", arguments->settings.kernel, "tune this one, see `fulmen explain`");
  parser
      ->add_option("--threads", arguments->settings.num_threads,
                   "CPU threads; 0 takes OMP_NUM_THREADS, else all processors")
      ->transform(int_from(0));
  parser->add_option("--model", arguments->model,
                     "the problems: t82, llama3-8b, sdxl, or all of them");
  parser
      ->add_option(
          "--problem", arguments->problems,
          "instead of a model: batch=1,seqlen_q=4096,heads=32,kv_heads=8,head_dim=128,causal")
      ->delimiter('\0');
  parser->add_option("--from-log", arguments->from_log,
                     "instead of a model: the problems of a log, FLASH_ATTENTION_DEBUG=1's lines");
  parser->add_option("--dtype", arguments->dtype,
                     "of a model's problems: fp32, fp16 or bf16, the default");
  parser->add_flag("--resume", arguments->settings.resume,
                   "leave out problems whose result is kept");
  parser->add_option("--json", arguments->json, "write every candidate there, as JSON");
  parser->add_option("--csv", arguments->csv, "the same as CSV");
  parser->add_option("--html", arguments->html, "the same as a page with plots");
  parser->add_flag("--list", arguments->list, "the results that are kept");
  parser->add_option("--export", arguments->export_to,
                     "write them to a file, for --import elsewhere");
  parser->add_option("--import", arguments->import_from, "take them from such a file");
  parser->add_flag("--reset", arguments->reset, "delete them");
  return {parser, [arguments] { return run_tune(*arguments); }};
}

}  // namespace fulmen::tools
