#include <fmt/format.h>

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

#include "bench_compare.h"
#include "bench_page.h"
#include "bench_report.h"
#include "case_data.h"
#include "commands.h"
#include "device_copy_rate.h"
#include "device_tensors.h"
#include "fulmen/backend.h"
#include "fulmen/printable.h"
#include "fulmen/version.h"
#include "model.h"
#include "number_checks.h"
#include "output_file.h"
#include "problem_arguments.h"
#include "progress.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace fulmen::tools {
namespace {

constexpr uint64_t kSeed = 20240229;  // the same inputs in every run: rows are compared over time

struct BenchArguments {
  BenchSettings settings;
  std::string suite = "all";
  std::string dtype, json, csv, html;
  std::vector<std::string> compare;
  std::string data = "examples/data";
  bool model = false;
};

int default_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// More threads than processors reach no higher, and each of them alone, by turns, would seem to have a processor's rate.
int ceiling_threads(int threads) {
#ifdef _OPENMP
  return std::min(threads, omp_get_num_procs());
#else
  return threads;
#endif
}

CaseSize size_of_cases(const std::string& device) {
  return is_emulated(device) ? CaseSize::emulated : uses_host_memory(device) ? CaseSize::cpu : CaseSize::gpu;
}

// Real input first, then the suites. Without --dtype: all of fp32 and bf16 (GPU: fp16 and bf16), and one case of each kind of the
// third.
Result<std::vector<BenchCase>> chosen_cases(const BenchArguments& arguments) {
  struct Choice {
    DType dtype;
    bool brief;
  };
  const CaseSize size = arguments.model ? CaseSize::gpu : size_of_cases(arguments.settings.device);
  std::vector<Choice> choices{{DType::fp32, size != CaseSize::cpu}, {DType::bf16, false}, {DType::fp16, size == CaseSize::cpu}};
  if (!arguments.dtype.empty()) {
    const Result<DType> dtype = parse_dtype(arguments.dtype);
    if (!dtype.ok()) return dtype.status();
    choices = {{dtype.value(), false}};
  }
  std::vector<BenchCase> cases;
  for (const auto& [dtype, brief] : choices) {
    if (arguments.suite != "all" && arguments.suite != "real") break;
    cases.push_back({.suite = "real", .name = "text encoder", .dtype = dtype, .folder = arguments.data});
  }
  for (const auto& [dtype, brief] : choices) {
    for (BenchCase& bench_case : bench_cases(arguments.suite, dtype, size, brief)) cases.push_back(std::move(bench_case));
  }
  return cases;
}

void print_ceilings(Progress& progress, const Ceilings& ceilings) {
  for (const CeilingKind kind : {CeilingKind::fma, CeilingKind::bf16_dot, CeilingKind::amx_bf16, CeilingKind::read}) {
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
  const std::string on = fmt::format("fulmen {} on {} ({})", version(), settings.device, chip_of(settings.device));
  if (is_emulated(settings.device)) {
    progress.line(on);
    progress.line("an emulated chip: its times mean nothing, so none are given; small cases, every one run and verified");
  } else if (uses_host_memory(settings.device)) {
    progress.line(fmt::format("{}, threads: {}, rates from the fastest repetitions", on, threads));
  } else {
    progress.line(on);
    progress.line(
        "a repetition is as many runs, one behind the other on the default stream with the same tensors, as take 10 ms, and the "
        "wait for the last; rates from the fastest repetitions, ceiling: of boards and decode, copying");
  }
}

Status write_reports(const BenchArguments& arguments, const std::vector<BenchRow>& rows) {
  // A command that fails leaves no report.
  if (Status status = flush_standard_output(); !status.ok()) return status;
  if (!arguments.json.empty()) {
    if (Status status = write_text_file(arguments.json, json_report(rows)); !status.ok()) return status;
  }
  if (!arguments.csv.empty()) {
    if (Status status = write_text_file(arguments.csv, csv_report(rows)); !status.ok()) return status;
  }
  if (arguments.html.empty()) return {};
  const std::string& device = arguments.settings.device;
  return write_text_file(arguments.html, bench_page(rows, fmt::format("fulmen {} on {} ({})", version(), device, chip_of(device))));
}

// No report replaces a file of the real input.
Status check_inputs_stay(const BenchArguments& arguments) {
  if (arguments.suite != "all" && arguments.suite != "real") return {};
  const std::pair<const char*, const std::string&> reports[] = {
      {"--json", arguments.json}, {"--csv", arguments.csv}, {"--html", arguments.html}};
  for (const auto& [option, path] : reports) {
    for (const std::string& input : real_case_files(arguments.data)) {
      if (!same_file(path, input)) continue;
      return {StatusCode::invalid_argument,
              fmt::format("{} {}: --data {} reads it, and it would be replaced: another file is needed", option, printable(path),
                          printable(arguments.data))};
    }
  }
  return {};
}

// Problems of one case are reported in its place; these end the run.
bool ends_run(StatusCode code) { return code != StatusCode::out_of_memory && code != StatusCode::unsupported; }

Status compare(const std::vector<std::string>& paths) {
  const Result<std::string> a = read_text_file("--compare", paths[0]), b = read_text_file("--compare", paths[1]);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  const Result<std::vector<ComparedRow>> rows = compare_reports(a.value(), paths[0], b.value(), paths[1]);
  if (!rows.ok()) return rows.status();
  fmt::print("A is {}, B is {}; times of the fastest repetitions\n{}\n", printable(paths[0]), printable(paths[1]),
             comparison_table(rows.value()));
  return comparison_status(rows.value());
}

// Modelled times of the cases of a GPU, one after the other.
Status model(const BenchArguments& arguments) {
  const std::string& device = arguments.settings.device;
  for (const auto& [option, path] :
       {std::pair{"--json", &arguments.json}, {"--csv", &arguments.csv}, {"--html", &arguments.html}}) {
    if (path->empty()) continue;
    return {StatusCode::invalid_argument, fmt::format("{} beside --model: it is for what was measured", option)};
  }
  const ChipRates* chip = device.starts_with("emulated:") ? chip_rates(device.substr(device.find(':') + 1)) : nullptr;
  if (chip == nullptr) {
    return {StatusCode::invalid_argument,
            fmt::format("--model on {}: emulated:{{{}}} are modelled", printable(device), fmt::join(modelled_chips(), ","))};
  }
  const Result<std::vector<BenchCase>> cases = chosen_cases(arguments);
  if (!cases.ok()) return cases.status();
  Progress progress;
  progress.line(model_head(*chip));
  std::string refused;
  std::size_t rows = 0;
  for (const BenchCase& c : cases.value()) {
    progress.show(c.name);
    const Result<ModelledRow> row = model_case(c, device, arguments.settings.kernel);
    if (!row.ok() && row.status().code() != StatusCode::unsupported) return row.status();
    if (row.ok()) {
      progress.line(model_line(row.value()));
      ++rows;
    } else if (row.status().message() != refused) {
      refused = row.status().message();
      progress.line(fmt::format("{} {} left out: {}", c.suite, c.name, refused));
    }
  }
  return rows > 0 ? Status{} : Status{StatusCode::unsupported, "no case could be modelled"};
}

Status bench(BenchArguments arguments) {
  if (!arguments.compare.empty()) return compare(arguments.compare);
  BenchSettings& settings = arguments.settings;
  if (settings.device.empty()) settings.device = default_device();
  if (Status status = check_device_and_kernel(settings.device, settings.kernel); !status.ok()) return status;
  if (arguments.model) return model(arguments);
  const std::array<std::pair<const char*, const std::string*>, 3> reports{
      {{"--json", &arguments.json}, {"--csv", &arguments.csv}, {"--html", &arguments.html}}};
  for (std::size_t n = 0; n < reports.size(); ++n) {
    for (std::size_t m = n + 1; m < reports.size(); ++m) {
      if (!same_file(*reports[n].second, *reports[m].second)) continue;
      return {StatusCode::invalid_argument, fmt::format("{} and {} are both {}: a file of its own is needed for each",
                                                        reports[n].first, reports[m].first, printable(*reports[m].second))};
    }
  }
  if (Status status = check_inputs_stay(arguments); !status.ok()) return status;
  for (const std::string& path : {arguments.json, arguments.csv, arguments.html}) {
    if (Status status = check_writable(path); !status.ok()) return status;
  }
  const Result<std::vector<BenchCase>> cases = chosen_cases(arguments);
  if (!cases.ok()) return cases.status();
  const int threads = settings.num_threads > 0 ? settings.num_threads : default_threads();

  Progress progress;
  print_head(progress, settings, threads);
  if (const char* verify = std::getenv("FLASH_ATTENTION_VERIFY");
      verify != nullptr && *verify != '\0' && std::string_view(verify) != "0") {
    unsetenv("FLASH_ATTENTION_VERIFY");
    progress.line("FLASH_ATTENTION_VERIFY is not obeyed: each row is verified, and the calls that are timed have to be alone");
  }
  Yardsticks yardsticks;
  std::optional<Ceilings> ceilings;
  if (uses_host_memory(settings.device)) {
    progress.show("measuring the ceilings ...");
    yardsticks.cpu = &ceilings.emplace(ceiling_threads(threads));
    print_ceilings(progress, *ceilings);
  } else if (!is_emulated(settings.device)) {
    progress.show("measuring the copy rate ...");
    yardsticks.copy_gb_s = device_copy_rate(settings.device);
    if (yardsticks.copy_gb_s > 0) progress.line(fmt::format("  copying within the device {:.0f} GB/s", yardsticks.copy_gb_s));
  }
  progress.line(table_head());

  BenchMeter meter(settings, yardsticks, kSeed);
  std::vector<BenchRow> rows;
  std::string failed;
  std::set<std::string> refused;
  for (std::size_t i = 0; i < cases.value().size(); ++i) {
    const BenchCase& bench_case = cases.value()[i];
    const std::string name = fmt::format("{:8} {:5} {:20}", bench_case.suite, to_string(bench_case.dtype), bench_case.name);
    progress.show(fmt::format("[{}/{}] {}", i + 1, cases.value().size(), name));
    if (!bench_case.folder.empty() && !std::filesystem::exists(bench_case.folder)) {
      progress.line(fmt::format("{} left out: the folder {} is not there (--data)", name, bench_case.folder));
      continue;
    }
    const Result<BenchRow> row = meter.measure(bench_case);
    if (!row.ok()) {
      if (ends_run(row.status().code())) return row.status();
      progress.line(fmt::format("{} left out: {}", name, row.status().message()));
      continue;
    }
    progress.line(table_line(row.value()));
    if (!row->standard_note.empty()) progress.line(fmt::format("{:35} standard attention {}", "", row->standard_note));
    // Once a reason: the speed-up is over another kernel than elsewhere.
    if (!row->standard_refused.empty() && refused.insert(row->standard_refused).second) {
      progress.line(fmt::format("{:35} standard attention by {}: {}", "", row->standard_kernel, row->standard_refused));
    }
    if (!row->verified && failed.empty()) failed = name + ": " + row->verify_message;
    rows.push_back(row.value());
    // What took minutes is kept whatever ends the run.
    if (Status status = write_reports(arguments, rows); !status.ok()) return status;
  }
  if (ceilings) {
    progress.line("ceilings, the best of the whole run:");
    print_ceilings(progress, *ceilings);
  }
  if (!failed.empty()) return {StatusCode::verification_failed, "a result is wrong: " + failed};
  if (rows.empty()) return {StatusCode::unavailable, "no case could be run"};
  return {};
}

}  // namespace

Command bench_command(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  BenchSettings& settings = arguments->settings;
  settings.device.clear();
  CLI::App* parser =
      app.add_subcommand("bench", "time real problems, each verified and set beside ceilings and standard attention");
  parser
      ->add_option("--suite", arguments->suite,
                   "real, prefill, boards, decode, paged (decode over pages), training (forward and backward) or all")
      ->check(CLI::IsMember({"real", "prefill", "boards", "decode", "paged", "training", "all"}));
  parser
      ->add_option("--dtype", arguments->dtype,
                   "fp32, fp16 or bf16; without it fp32, bf16 and a few rows of fp16 (GPU: fp16, bf16 and a few of fp32)")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  parser->add_option("--device", settings.device, "see `fulmen devices`");
  parser->add_option("--kernel", settings.kernel, "force a kernel by name");
  parser->add_flag("--deterministic,!--no-deterministic", settings.deterministic,
                   "the default; without: also kernels whose gradients differ in bits from run to run");
  parser->add_option("--threads", settings.num_threads, "CPU threads; 0 takes OpenMP's setting")->transform(int_from(0));
  parser->add_option("--seconds", settings.seconds, "of measuring a case, standard attention and ceilings included")
      ->check(amount(false))
      ->capture_default_str();
  parser->add_option("--max-standard", settings.max_standard_seconds, "seconds a call of standard attention may take")
      ->check(amount(true))
      ->capture_default_str();
  parser
      ->add_option_function<double>(
          "--max-gb", [arguments](double gb) { arguments->settings.max_bytes = static_cast<std::size_t>(gb * 1e9); },
          "leave out cases whose tensors are bigger (default 3)")
      ->check(amount(false));
  parser->add_flag("--model", arguments->model,
                   "on an emulated chip: how long a GPU's cases would take, by what the emulator counts and the maker's figures");
  parser->add_option("--data", arguments->data, "folder of the real input")->capture_default_str();
  parser->add_option("--json", arguments->json, "write the rows as JSON");
  parser->add_option("--csv", arguments->csv, "write the rows as CSV");
  parser->add_option("--html", arguments->html, "write the rows as a page with plots");
  parser
      ->add_option(
          "--compare", arguments->compare,
          "two files of --json: how B's rows are beside A's, and whether by more than noise; fails where one is slower, wrong or "
          "missing; nothing is measured")
      ->expected(2);
  return {parser, [arguments] { return bench(*arguments); }};
}

}  // namespace fulmen::tools
