// The processor, folders that are written to, and which device is taken.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "runtime/platform/files.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/system_facts.h"

namespace fulmen::tools {
namespace {

// Returns the folder, or the nearest one above it that exists.
std::string nearest_folder(const SystemFacts& facts, const std::string& path) {
  std::filesystem::path folder(path);
  while (folder.has_relative_path() && !facts.exists(folder.string()))
    folder = folder.parent_path();
  return folder.string();
}

bool is_folder(const SystemFacts& facts, const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(facts.root + path, error);
}

// What a device's features say behind a word, up to the bracket's end: "avx512 amx".
std::string bracket(const std::string& features, const std::string& word) {
  const std::size_t at = features.find(word);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + word.size();
  return features.substr(begin, features.find(')', begin) - begin);
}

}  // namespace

const char* to_string(FindingVerdict verdict) noexcept {
  switch (verdict) {
    case FindingVerdict::pass:
      return "pass";
    case FindingVerdict::warn:
      return "warn";
    case FindingVerdict::fail:
      return "fail";
  }
  return "fail";
}

void check_cpu(const SystemFacts& facts, Findings& findings) {
  for (const DeviceInfo& device : facts.devices) {
    if (device.name != "cpu") continue;
    findings.pass("cpu.instruction_sets", fmt::format("{}: {}", device.chip, device.features));
    // "scalar avx2 avx512 (not on this processor: avx512_bf16 amx)": what is before the bracket is
    // there.
    const std::string there = device.features.substr(0, device.features.find('('));
    const std::string cpuinfo = facts.read("/proc/cpuinfo");
    const std::string left_out = bracket(device.features, "(not in this build: ");
    if (!left_out.empty()) {
      findings.warn(
          "cpu.build",
          "this build has no code for instruction sets that the processor has: " + left_out,
          "install the wheel, which has all; or build it again, for this processor or with "
          "FULMEN_ONLY_INSTRUCTION_SETS empty in CMake's cache, for all");
    }
    if (cpuinfo.find(" amx_bf16") == std::string::npos) {
      findings.pass("cpu.amx", "the processor has no AMX");
    } else if (there.find("amx") != std::string::npos) {
      findings.pass("cpu.amx", "Linux lets this process use AMX");
    } else {
      findings.warn("cpu.amx", "the processor has AMX, and this process may not use it",
                    "Linux 5.16 or newer, without a sandbox or virtual machine that refuses "
                    "arch_prctl, lets processes use it; "
                    "AVX-512 serves until then");
    }
  }
  if (facts.blas.yes) {
    findings.pass("cpu.blas", "standard attention has a BLAS to be compared with");
  } else {
    findings.warn(
        "cpu.blas", facts.blas.reason,
        "apt-get install libopenblas0: benchmarks compare with it, nothing else needs it");
  }
}

void check_folders(const SystemFacts& facts, Findings& findings) {
  const std::string& cache = facts.cache_folder;
  const std::string nearest = cache.empty() ? "" : nearest_folder(facts, cache);
  if (cache.empty()) {
    findings.warn(
        "folders.cache",
        "there is no folder for compiled kernels: FULMEN_CACHE_DIR, XDG_CACHE_HOME and HOME are "
        "not set",
        "export FULMEN_CACHE_DIR=FOLDER: every process compiles its kernels again until then");
  } else if (!is_folder(facts, nearest) || !facts.can_use(nearest)) {
    findings.warn("folders.cache",
                  fmt::format("{} cannot be written: {} is no folder that this user may write",
                              cache, nearest),
                  "export FULMEN_CACHE_DIR=FOLDER of one that can: every process compiles its "
                  "kernels again until then");
  } else {
    findings.pass("folders.cache", cache);
  }
  const std::string given = facts.environment("TMPDIR");
  const std::string folder = given.empty() ? platform::usual_temporary_folder() : given;
  if (!is_folder(facts, folder) || !facts.can_use(folder)) {
    findings.fail("folders.tmp", fmt::format("{} is no folder that this user may write", folder),
                  "export TMPDIR=FOLDER of one that can: clang compiles kernels there");
  } else if (facts.forbids_programs(facts.root + folder)) {
    findings.warn(
        "folders.tmp",
        fmt::format("{} is mounted noexec: emulated devices cannot load kernels from it", folder),
        "export TMPDIR=FOLDER on another file system; other devices do not mind");
  } else {
    findings.pass("folders.tmp", folder);
  }
}

void check_device_choice(const SystemFacts& facts, Findings& findings) {
  const std::string& chosen = facts.default_device;
  const std::string why = facts.environment("FULMEN_DEVICE").empty()
                              ? "FULMEN_DEVICE is not set, and cpu is always there"
                              : "FULMEN_DEVICE says so";
  const auto is_chosen = [&](const DeviceInfo& d) {
    return d.name == chosen || d.name.substr(0, d.name.find(':')) == chosen;
  };
  const bool usable = std::any_of(facts.devices.begin(), facts.devices.end(),
                                  [&](const DeviceInfo& d) { return is_chosen(d) && d.usable; });
  if (!usable) {
    std::string reason = "there is no such device";
    for (const DeviceInfo& device : facts.devices) {
      // A backend without devices lists itself, with the reason.
      if (is_chosen(device) || device.name == chosen.substr(0, chosen.find(':')))
        reason = device.reason;
    }
    return findings.fail(
        "device.default", fmt::format("{} ({}) cannot be used: {}", chosen, why, reason),
        "export FULMEN_DEVICE=cpu, or mend what is found above; fulmen devices lists all");
  }
  std::vector<std::string> gpus;
  for (const DeviceInfo& device : facts.devices) {
    if (device.usable && (device.name.starts_with("hip:") || device.name.starts_with("cuda:")))
      gpus.push_back(device.name);
  }
  std::string seen = fmt::format("{} is taken where a call names none: {}", chosen, why);
  if (chosen == "cpu" && !gpus.empty()) {
    return findings.pass("device.default",
                         fmt::format("{}; export FULMEN_DEVICE={} takes the GPU (of {})", seen,
                                     gpus[0], joined(gpus)));
  }
  findings.pass("device.default", seen);
}

std::vector<Finding> examine(const SystemFacts& facts) {
  Findings findings;
  check_amd(facts, findings);
  check_nvidia(facts, findings);
  check_cpu(facts, findings);
  check_folders(facts, findings);
  check_device_choice(facts, findings);
  return std::move(findings.list);
}

}  // namespace fulmen::tools
