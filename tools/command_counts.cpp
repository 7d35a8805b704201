#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "fulmen/compile.h"
#include "fulmen/names.h"
#include "fulmen/printable.h"
#include "tools/commands.h"
#include "tools/files/output_file.h"
#include "tools/options/problem_arguments.h"
#include "tools/tensors/device_tensors.h"
#include "tools/verify/grid.h"
#include "tools/verify/verified_run.h"

namespace fulmen::tools {
namespace {

struct CountsArguments {
  std::vector<std::string> archs;
  std::string family, json;
  bool markdown = false;
};

// Cases of one workgroup or a few for each family's main kernels: all workgroups execute the same.
// They are long enough that loops outweigh the rest.
std::vector<GridCase> counted_cases() {
  std::vector<GridCase> list;
  const auto add = [&](DType dtype, int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t dim,
                       Feature feature, Pass pass) {
    list.push_back({.dtype = dtype,
                    .seqlen_q = seqlen_q,
                    .seqlen_k = seqlen_k,
                    .heads = heads,
                    .kv_heads = 1,
                    .head_dim = dim,
                    .head_dim_v = dim,
                    .feature = feature,
                    .pass = pass});
  };
  for (const int64_t dim : {64, 128, 256})
    add(DType::bf16, 128, 1024, 1, dim, Feature::none, Pass::forward);
  for (const int64_t dim : {32, 64, 128})
    add(DType::fp16, 64, 64, 1, dim, Feature::bias, Pass::forward);
  for (const int64_t dim : {64, 128, 256})
    add(DType::bf16, 1, 4096, 4, dim, Feature::none, Pass::forward);
  for (const int64_t dim : {64, 128, 256})
    add(DType::bf16, 512, 512, 1, dim, Feature::none, Pass::backward);
  for (const int64_t dim : {32, 64})
    add(DType::fp16, 64, 64, 1, dim, Feature::bias, Pass::backward);
  // What a gradient of a bias that batches share adds to the others.
  for (const int64_t dim : {32, 64}) {
    for (const bool dbias : {false, true}) {
      add(DType::bf16, 128, 128, 1, dim, Feature::bias, Pass::backward);
      list.back().batch = 16;
      list.back().shared_bias = true;
      list.back().dbias = dbias;
    }
  }
  for (const int64_t dim : {64, 128})
    add(DType::fp32, 128, 1024, 1, dim, Feature::none, Pass::forward);
  for (const int64_t dim : {64, 128})
    add(DType::fp32, 256, 256, 1, dim, Feature::none, Pass::backward);
  for (const Precision precision : {Precision::int8, Precision::fp8}) {
    for (const int64_t dim : {64, 128, 256}) {
      add(DType::bf16, 128, 1024, 1, dim, Feature::none, Pass::forward);
      list.back().precision = precision;
    }
  }
  return list;
}

// A launch of a case.
struct Row {
  std::string problem;
  int launch = 0;
  ExecutedInstructions executed;
};

constexpr std::array kColumns{"chip",   "kernel",         "workgroups",    "matrix",
                              "VALU",   "transcendental", "SALU",          "LDS",
                              "global", "waits",          "VALU / matrix", "SALU / matrix"};
constexpr std::size_t kTexts = 2;  // columns of text; the others are numbers

std::string ratio(int64_t count, int64_t matrix) {
  return matrix > 0
             ? fmt::format("{:.2f}", static_cast<double>(count) / static_cast<double>(matrix))
             : "-";
}

std::vector<std::string> cells(const ExecutedInstructions& e) {
  std::vector<std::string> row{e.arch, e.kernel};
  for (const int64_t n :
       {e.workgroups, e.matrix, e.vector, e.transcendental, e.scalar, e.lds, e.global, e.waits}) {
    row.push_back(std::to_string(n));
  }
  row.push_back(ratio(e.vector, e.matrix));
  row.push_back(ratio(e.scalar, e.matrix));
  return row;
}

void print_row(std::span<const std::string> row, bool markdown) {
  std::string line = markdown ? "|" : fmt::format("{:8} {:56}", row[0], row[1]);
  for (std::size_t n = markdown ? 0 : kTexts; n < row.size(); ++n) {
    line += markdown ? fmt::format(" {} |", row[n])
                     : fmt::format(" {:>{}}", row[n],
                                   std::max<std::size_t>(9, std::strlen(kColumns[n])));
  }
  fmt::print("{}\n", line);
}

nlohmann::ordered_json json_of(const Row& row) {
  const ExecutedInstructions& e = row.executed;
  return {{"arch", e.arch},
          {"problem", row.problem},
          {"launch", row.launch},
          {"kernel", e.kernel},
          {"workgroups", e.workgroups},
          {"matrix", e.matrix},
          {"vector", e.vector},
          {"transcendental", e.transcendental},
          {"scalar", e.scalar},
          {"scalar_loads", e.scalar_loads},
          {"lds", e.lds},
          {"global", e.global},
          {"scratch", e.scratch},
          {"waits", e.waits}};
}

// family: empty for any.
bool runs_in(const std::string& family, const Problem& problem, const std::string& device) {
  const Result<std::vector<Candidate>> all = candidates(problem, device);
  if (!all.ok()) return false;
  const Candidate* best = nullptr;
  for (const Candidate& one : all.value()) {
    if (one.support.yes && (best == nullptr || one.rank > best->rank)) best = &one;
  }
  return best != nullptr &&
         (family.empty() || best->kernel.find("." + family + ".") != std::string::npos);
}

// Returns the launches of a case; none where another family runs it. Errors: those of planning, and
// a result that breaks the tolerance rule.
Result<std::vector<Row>> count(const GridCase& grid_case, const std::string& device,
                               const std::string& family, NormalPool& pool) {
  const GridData data = make_grid_data(grid_case, pool);
  const Result<Problem> problem = problem_of(grid_case, data);
  if (!problem.ok()) return problem.status();
  // Chips without products in 8 bits have no row of them.
  const bool only_some = grid_case.precision != Precision::exact;
  if ((!family.empty() || only_some) && !runs_in(family, problem.value(), device))
    return std::vector<Row>();
  const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(device, data.tensors);
  if (!there.ok()) return there.status();
  take_executed_instructions();
  const VerifiedRun run = run_and_verify(problem.value(), data, *there.value(), device, "", 0);
  if (!run.report.ok) {
    return Status(StatusCode::verification_failed,
                  fmt::format("{} on {}: {}", to_string(grid_case), device, run.report.message));
  }
  std::vector<Row> rows;
  for (ExecutedInstructions& launch : take_executed_instructions()) {
    rows.push_back({to_string(grid_case), static_cast<int>(rows.size()), std::move(launch)});
  }
  return rows;
}

constexpr const char* kEmulator = "emulated-isa";

// Returns true if a chip's machine code is executed here.
Status check_executed(const std::string& arch, const std::string& device) {
  std::vector<std::string> known;
  for (const DeviceInfo& info : fulmen::devices()) {
    if (info.name == device || info.name == kEmulator) return check_device_and_kernel(device, "");
    if (info.name.starts_with(kEmulator))
      known.push_back(info.name.substr(std::strlen(kEmulator) + 1));
  }
  return {StatusCode::invalid_argument,
          fmt::format("--arch {}: an AMD chip whose machine code is executed is expected; {}",
                      printable(arch), names_like(arch, known))};
}

Status counts(const CountsArguments& arguments) {
  if (Status status = check_writable(arguments.json); !status.ok()) return status;
  std::vector<std::string> devices;
  for (const std::string& arch : arguments.archs) {
    devices.push_back(kEmulator + (":" + arch));
    if (Status status = check_executed(arch, devices.back()); !status.ok()) return status;
  }
  print_row(std::vector<std::string>(kColumns.begin(), kColumns.end()), arguments.markdown);
  if (arguments.markdown) print_row(std::vector<std::string>(kColumns.size(), "---"), true);
  std::string all;  // a line a launch, for those who read and those who compare
  for (const std::string& device : devices) {
    NormalPool pool(1);  // a chip's counts are the same whatever others are counted
    for (const GridCase& grid_case : counted_cases()) {
      const Result<std::vector<Row>> rows = count(grid_case, device, arguments.family, pool);
      if (!rows.ok()) return rows.status();
      for (const Row& row : rows.value()) {
        print_row(cells(row.executed), arguments.markdown);
        all += (all.empty() ? "" : ",\n") + json_of(row).dump();
      }
    }
  }
  if (all.empty()) {
    return {StatusCode::invalid_argument,
            fmt::format("--family {}: prefill, prefill_fp32, short, decode, backward, "
                        "short_backward, prefill_int8 and prefill_e4m3 are counted",
                        printable(arguments.family))};
  }
  if (Status status = flush_standard_output(); !status.ok()) return status;
  return arguments.json.empty() ? Status{} : write_text_file(arguments.json, "[\n" + all + "\n]\n");
}

}  // namespace

Command counts_command(CLI::App& app) {
  auto arguments = std::make_shared<CountsArguments>();
  CLI::App* parser =
      app.add_subcommand("counts",
                         "instructions by class that AMD kernels execute on the emulator of "
                         "machine code: a problem each of the main ones");
  parser->add_option("--arch", arguments->archs, "chips, ',' between them: gfx1100,gfx1201,gfx942")
      ->delimiter(',')
      ->required();
  parser->add_option(
      "--family", arguments->family,
      "one of prefill, prefill_fp32, short, decode, backward, short_backward, prefill_int8, "
      "prefill_e4m3; all when not given");
  parser->add_flag("--markdown", arguments->markdown, "a table for a page");
  parser->add_option("--json", arguments->json, "write the counts as JSON");
  return {parser, [arguments] { return counts(*arguments); }};
}

}  // namespace fulmen::tools
