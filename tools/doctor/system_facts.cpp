#include "tools/doctor/system_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "fulmen/fulmen.h"
#include "runtime/platform/files.h"
#include "runtime/platform/libraries.h"
#include "runtime/platform/system.h"
#include "tools/platform/account.h"

namespace fulmen::tools {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// The line of /etc/group: name, password, number, members.
std::vector<std::string> group_line(const SystemFacts& facts, int id) {
  for (const std::string& line : split(facts.read("/etc/group"), '\n')) {
    std::vector<std::string> fields = split(line, ':');
    if (fields.size() >= 3 && fields[2] == std::to_string(id)) return fields;
  }
  return {};
}

// Says whether standard attention has a BLAS here, in the words of its kernel.
Support blas_support() {
  AttentionTensors tensors;
  tensors.q = tensors.k = tensors.v = tensors.out = Tensor::bshd(nullptr, DType::fp32, 1, 4, 1, 8);
  const Result<Problem> problem = make_problem(tensors, {});
  if (!problem.ok()) return Support::no(problem.status().message());
  const Result<std::vector<Candidate>> found = candidates(problem.value(), "cpu");
  if (!found.ok()) return Support::no(found.status().message());
  for (const Candidate& candidate : found.value()) {
    if (candidate.kernel == "cpu.standard.blas") return candidate.support;
  }
  return Support::no("this build has no kernel that takes a BLAS");
}

}  // namespace

bool SystemFacts::exists(const std::string& path) const {
  std::error_code error;
  return fs::exists(root + path, error);
}

std::string SystemFacts::read(const std::string& path, std::size_t most) const {
  std::ifstream file(root + path, std::ios::binary);
  std::string text(most, '\0');
  file.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::vector<std::string> SystemFacts::names(const std::string& folder) const {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(root + folder, error), end; !error && at != end;
       at.increment(error)) {
    found.push_back(at->path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> SystemFacts::matches(const std::string& pattern) const {
  std::vector<std::string> paths = platform::matching_files(root + pattern);
  for (std::string& path : paths) path.erase(0, root.size());
  return paths;
}

std::string SystemFacts::group_name(int id) const {
  const std::vector<std::string> line = group_line(*this, id);
  return line.empty() ? std::to_string(id) : line[0];
}

bool SystemFacts::listed_in_group(int id) const {
  const std::vector<std::string> line = group_line(*this, id);
  if (line.size() < 4 || user.empty()) return false;
  const std::vector<std::string> members = split(line[3], ',');
  return std::find(members.begin(), members.end(), user) != members.end();
}

bool SystemFacts::in_group(int id) const {
  return std::find(group_ids.begin(), group_ids.end(), id) != group_ids.end();
}

std::vector<std::string> SystemFacts::pci_gpus(const std::string& vendor) const {
  std::vector<std::string> found;
  const auto field = [&](const std::string& device, const char* name) {
    std::string text = read(fmt::format("/sys/bus/pci/devices/{}/{}", device, name), 32);
    text.erase(text.find_last_not_of(" \n") + 1);
    return text.starts_with("0x") ? text.substr(2) : text;
  };
  for (const std::string& device : names("/sys/bus/pci/devices")) {
    if (field(device, "vendor") != vendor) continue;
    const std::string kind = field(device, "class");
    // Display controllers, and processing accelerators, which Instinct cards are.
    if (kind.starts_with("03") || kind.starts_with("12"))
      found.push_back(fmt::format("{}:{}", vendor, field(device, "device")));
  }
  return found;
}

bool SystemFacts::is_wsl() const {
  const std::string version = read("/proc/version");
  return version.find("microsoft") != std::string::npos ||
         version.find("Microsoft") != std::string::npos;
}

bool SystemFacts::in_container() const {
  return exists("/.dockerenv") || exists("/run/.containerenv");
}

SystemFacts facts_of_this_system(const std::string& process) {
  SystemFacts facts;
  facts.process = process;
  facts.group_ids = groups_of_this_process();
  facts.is_root = is_administrator();
  facts.user = effective_user();
  facts.environment = [](const std::string& name) {
    return platform::environment_variable(name.c_str()).value_or("");
  };
  facts.can_use = platform::can_use;
  facts.forbids_programs = platform::forbids_programs;
  facts.group_of = group_of;
  facts.devices = devices();
  facts.default_device = default_device();
  facts.cache_folder = kernel_cache_folder();
  facts.own_library = platform::library_that_holds(reinterpret_cast<const void*>(&version));
  facts.blas = blas_support();
  return facts;
}

std::string joined(const std::vector<std::string>& list) {
  return fmt::format("{}", fmt::join(list, ", "));
}

}  // namespace fulmen::tools
