#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "device_tensors.h"
#include "fulmen/compile.h"
#include "fulmen/printable.h"
#include "output_file.h"
#include "problem_arguments.h"
#include "verified_run.h"
#include "verify_grid.h"

namespace fulmen::tools {
namespace {

struct CountsArguments {
  std::vector<std::string> archs;
  std::string family, json;
  bool markdown = false;
};

// One workgroup or a few of each family's main kernels: all of them execute the same.
std::vector<GridCase> counted_cases() {
  std::vector<GridCase> list;
  const auto add = [&](DType dtype, int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t dim, Feature feature, Pass pass) {
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
  for (const int64_t dim : {64, 128, 256}) add(DType::bf16, 128, 1024, 1, dim, Feature::none, Pass::forward);
  for (const int64_t dim : {32, 64, 128}) add(DType::fp16, 64, 64, 1, dim, Feature::bias, Pass::forward);
  for (const int64_t dim : {64, 128}) add(DType::bf16, 1, 4096, 4, dim, Feature::none, Pass::forward);
  for (const int64_t dim : {64, 128, 256}) add(DType::bf16, 256, 256, 1, dim, Feature::none, Pass::backward);
  for (const int64_t dim : {32, 64}) add(DType::fp16, 64, 64, 1, dim, Feature::bias, Pass::backward);
  return list;
}

std::string for_512(int64_t count, int64_t matrix) { return matrix > 0 ? std::to_string(512 * count / matrix) : "-"; }

using Row = ExecutedInstructions;
constexpr const char* kHead[]{"chip", "kernel", "workgroups", "matrix", "VALU",         "exp2",
                              "SALU", "LDS",    "memory",     "waits",  "VALU for 512", "SALU for 512"};

std::vector<std::string> cells(const Row& r) {
  return {r.arch,
          r.kernel,
          std::to_string(r.workgroups),
          std::to_string(r.matrix),
          std::to_string(r.vector),
          std::to_string(r.transcendental),
          std::to_string(r.scalar),
          std::to_string(r.lds),
          std::to_string(r.memory + r.scalar_loads + r.scratch),
          std::to_string(r.waits),
          for_512(r.vector, r.matrix),
          for_512(r.scalar, r.matrix)};
}

void print_markdown_row(const std::vector<std::string>& row) {
  std::string line = "|";
  for (const std::string& cell : row) line += " " + cell + " |";
  fmt::print("{}\n", line);
}

void print_row(const std::vector<std::string>& row) {
  std::string line = fmt::format("{:8} {:50}", row[0], row[1]);
  for (std::size_t n = 2; n < row.size(); ++n) line += fmt::format(" {:>{}}", row[n], n < 10 ? 10 : 13);
  fmt::print("{}\n", line);
}

nlohmann::json json_of(const Row& r) {
  return {{"arch", r.arch},
          {"kernel", r.kernel},
          {"workgroups", r.workgroups},
          {"matrix", r.matrix},
          {"vector", r.vector},
          {"transcendental", r.transcendental},
          {"scalar", r.scalar},
          {"scalar_loads", r.scalar_loads},
          {"lds", r.lds},
          {"memory", r.memory},
          {"scratch", r.scratch},
          {"waits", r.waits}};
}

bool runs_in(const std::string& family, const Problem& problem, const std::string& device) {
  const Result<std::vector<Candidate>> all = candidates(problem, device);
  if (!all.ok()) return false;
  const Candidate* best = nullptr;
  for (const Candidate& one : all.value()) {
    if (one.support.yes && (best == nullptr || one.rank > best->rank)) best = &one;
  }
  return best != nullptr && best->kernel.find("." + family + ".") != std::string::npos;
}

// The launches of a case; none where another family runs it. Errors: those of planning; a result that breaks the tolerance rule.
Result<std::vector<Row>> count(const GridCase& grid_case, const std::string& device, const std::string& family, NormalPool& pool) {
  const GridData data = make_grid_data(grid_case, pool);
  const Result<Problem> problem = problem_of(grid_case, data);
  if (!problem.ok()) return problem.status();
  if (!family.empty() && !runs_in(family, problem.value(), device)) return std::vector<Row>();
  const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(device, data.tensors);
  if (!there.ok()) return there.status();
  take_executed_instructions();
  const VerifiedRun run = run_and_verify(problem.value(), data, *there.value(), device, "", 0);
  if (run.report.ok) return take_executed_instructions();
  return Status(StatusCode::verification_failed, fmt::format("{} on {}: {}", to_string(grid_case), device, run.report.message));
}

Status counts(const CountsArguments& arguments) {
  if (Status status = check_writable(arguments.json); !status.ok()) return status;
  std::vector<std::string> devices;
  for (const std::string& arch : arguments.archs) {
    devices.push_back("emulated-isa:" + arch);
    if (Status status = check_device_and_kernel(devices.back(), ""); !status.ok()) return status;
  }
  const std::vector<std::string> head(std::begin(kHead), std::end(kHead));
  arguments.markdown ? print_markdown_row(head) : print_row(head);
  if (arguments.markdown) print_markdown_row(std::vector<std::string>(head.size(), "---"));
  nlohmann::json all = nlohmann::json::array();
  NormalPool pool(1);
  for (const std::string& device : devices) {
    for (const GridCase& grid_case : counted_cases()) {
      const Result<std::vector<Row>> rows = count(grid_case, device, arguments.family, pool);
      if (!rows.ok()) return rows.status();
      for (const Row& row : rows.value()) {
        arguments.markdown ? print_markdown_row(cells(row)) : print_row(cells(row));
        all.push_back(json_of(row));
      }
    }
  }
  if (all.empty()) {
    return {
        StatusCode::invalid_argument,
        fmt::format("--family {}: prefill, short, decode, backward and short_backward are counted", printable(arguments.family))};
  }
  if (Status status = flush_standard_output(); !status.ok()) return status;
  return arguments.json.empty() ? Status{} : write_text_file(arguments.json, all.dump(2) + "\n");
}

}  // namespace

Command counts_command(CLI::App& app) {
  auto arguments = std::make_shared<CountsArguments>();
  CLI::App* parser = app.add_subcommand(
      "counts", "instructions by class that AMD kernels execute on the emulator of machine code: a problem each of the main ones");
  parser->add_option("--arch", arguments->archs, "chips, ',' between them: gfx1100,gfx1201,gfx942")->delimiter(',')->required();
  parser->add_option("--family", arguments->family, "one of prefill, short, decode, backward, short_backward; all when not given");
  parser->add_flag("--markdown", arguments->markdown, "a table for a page");
  parser->add_option("--json", arguments->json, "write the counts as JSON");
  return {parser, [arguments] { return counts(*arguments); }};
}

}  // namespace fulmen::tools
