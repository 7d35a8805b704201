#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "fulmen/printable.h"
#include "fulmen/version.h"
#include "tools/commands.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/system_facts.h"

namespace fulmen::tools {
namespace {

struct DoctorArguments {
  bool json = false;
  bool torch = false;
  std::string process = "self";
};

Status check_process(const std::string& process) {
  const bool number = !process.empty() && std::all_of(process.begin(), process.end(),
                                                      [](char c) { return c >= '0' && c <= '9'; });
  if (process == "self" || number) return {};
  return {
      StatusCode::invalid_argument,
      fmt::format("--process {}: the number of a running process is expected", printable(process))};
}

void print(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    fmt::print("{:4}  {:22} {}\n", to_string(finding.verdict), finding.id, printable(finding.seen));
    if (!finding.mend.empty()) fmt::print("      {:22} -> {}\n", "", printable(finding.mend));
  }
}

void print_json(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& f : findings) {
    // Paths may hold bytes that are no UTF-8, which JSON cannot.
    list.push_back({{"id", f.id},
                    {"verdict", to_string(f.verdict)},
                    {"seen", printable(f.seen)},
                    {"mend", printable(f.mend)}});
  }
  fmt::print("{}\n", nlohmann::json{{"version", version()}, {"findings", list}}.dump(2));
}

Status examine_this_system(const DoctorArguments& arguments) {
  if (arguments.torch) {
    return {StatusCode::invalid_argument,
            "doctor --torch is the Python package's: python3 -m fulmen doctor --torch"};
  }
  if (Status status = check_process(arguments.process); !status.ok()) return status;
  const SystemFacts facts = facts_of_this_system(arguments.process);
  if (arguments.process != "self" &&
      facts.read("/proc/" + arguments.process + "/maps", 1).empty()) {
    return {StatusCode::invalid_argument,
            fmt::format("--process {}: there is no such process, or this user may not look at it",
                        arguments.process)};
  }
  const std::vector<Finding> findings = examine(facts);
  arguments.json ? print_json(findings) : print(findings);
  const auto failed = std::count_if(findings.begin(), findings.end(), [](const Finding& f) {
    return f.verdict == FindingVerdict::fail;
  });
  if (failed == 0) return {};
  return {StatusCode::verification_failed,
          fmt::format("{} of {} preconditions failed", failed, findings.size())};
}

}  // namespace

Command doctor_command(CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* parser = app.add_subcommand(
      "doctor", "check what GPUs, compilers and folders need here, and say what mends it");
  parser->add_flag("--json", arguments->json, "the findings as JSON");
  parser->add_flag("--torch", arguments->torch,
                   "the Python package's alone: which kernels torch's attention takes here, and "
                   "what to write");
  parser->add_option("--process", arguments->process,
                     "look for two HIP runtimes in this running process instead of this program");
  return {parser, [arguments] { return examine_this_system(*arguments); }};
}

}  // namespace fulmen::tools
