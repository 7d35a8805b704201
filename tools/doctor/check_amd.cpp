// AMD: driver, permissions, HSA_OVERRIDE_GFX_VERSION, HIP runtimes, hipRTC and compilers.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <tuple>

#include "tools/doctor/finding.h"
#include "tools/doctor/system_facts.h"
#include "tools/doctor/vendor_libraries.h"

namespace fulmen::tools {
namespace {

struct GfxVersion {
  int major = 0, minor = 0, step = 0;
  bool operator==(const GfxVersion&) const = default;
};

// Returns a chip's name: gfx1100, gfx90a.
std::string to_string(const GfxVersion& v) {
  return fmt::format("gfx{}{:x}{:x}", v.major, v.minor, v.step);
}

// The chips that the kernel driver serves, by their topology's "gfx_target_version 110000".
// Processors have 0.
std::vector<GfxVersion> chips(const SystemFacts& facts) {
  std::vector<GfxVersion> found;
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes";
  for (const std::string& node : facts.names(nodes)) {
    std::istringstream lines(facts.read(fmt::format("{}/{}/properties", nodes, node)));
    std::string name;
    for (int64_t value = 0; lines >> name >> value;) {
      if (name != "gfx_target_version" || value == 0) continue;
      found.push_back({static_cast<int>(value / 10000), static_cast<int>(value / 100 % 100),
                       static_cast<int>(value % 100)});
    }
  }
  return found;
}

// "11.0.0"
bool parse_version(const std::string& text, GfxVersion& version) {
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int* part : {&version.major, &version.minor, &version.step}) {
    if (part != &version.major) {
      if (at == end || *at != '.') return false;
      ++at;
    }
    const auto [next, error] = std::from_chars(at, end, *part);
    if (error != std::errc() || *part < 0) return false;
    at = next;
  }
  return at == end;
}

constexpr const char* kContainer =
    "start the container with --device=/dev/kfd --device=/dev/dri --group-add video --group-add "
    "render";

void check_driver(const SystemFacts& facts, Findings& findings) {
  if (facts.exists("/dev/kfd")) return findings.pass("amd.driver", "/dev/kfd is there");
  if (facts.is_wsl()) {
    if (facts.exists("/dev/dxg"))
      return findings.pass("amd.driver", "/dev/dxg is there, WSL's way to the GPU");
    return findings.fail(
        "amd.driver", "this is WSL without /dev/dxg",
        "on Windows: install AMD's driver for WSL, then wsl --update and wsl --shutdown");
  }
  if (facts.in_container())
    return findings.fail("amd.driver", "there is no /dev/kfd in this container", kContainer);
  findings.fail(
      "amd.driver", "there is no /dev/kfd: the kernel's amdgpu driver is not loaded",
      "modprobe amdgpu; where that fails, install AMD's amdgpu-dkms or a newer Linux kernel");
}

// Checks access to /dev/kfd and /dev/dri/renderD*, which belong to the groups render and video.
void check_groups(const SystemFacts& facts, Findings& findings) {
  std::vector<std::string> files;
  if (facts.exists("/dev/kfd")) files.emplace_back("/dev/kfd");
  const std::vector<std::string> render = facts.matches("/dev/dri/renderD*");
  files.insert(files.end(), render.begin(), render.end());
  if (!facts.is_wsl() && facts.exists("/dev/kfd") && render.empty()) {
    findings.fail("amd.render", "there is no /dev/dri/renderD*",
                  facts.in_container() ? kContainer : "modprobe amdgpu");
  }
  std::string closed, groups, later;
  for (const std::string& file : files) {
    if (facts.can_use(file)) continue;
    closed += (closed.empty() ? "" : ", ") + file;
    const int id = facts.group_of(facts.root + file);
    if (id <= 0) continue;  // root owns it
    const std::string name = facts.group_name(id);
    // A user whom /etc/group adds to a group is in it after the next login.
    std::string& list = facts.listed_in_group(id) && !facts.in_group(id) ? later : groups;
    if (("," + list + ",").find("," + name + ",") == std::string::npos)
      list += (list.empty() ? "" : ",") + name;
  }
  if (files.empty()) return;
  if (closed.empty())
    return findings.pass("amd.groups", fmt::format("{} can be read and written", joined(files)));
  std::string mend;
  if (!groups.empty())
    mend = fmt::format("sudo usermod -a -G {} \"$USER\", then log in again", groups);
  if (groups.empty() && !later.empty()) {
    mend = fmt::format("log in again: you were put into {} after this session began", later);
  }
  if (facts.in_container()) mend = kContainer;
  if (mend.empty())
    mend = "sudo chgrp render " + joined(files) +
           " and sudo chmod 660 on them: they belong to root alone";
  findings.fail("amd.groups", fmt::format("this process may not read and write {}", closed), mend);
}

void check_override(const SystemFacts& facts, const std::vector<GfxVersion>& found,
                    Findings& findings) {
  const std::string value = facts.environment("HSA_OVERRIDE_GFX_VERSION");
  if (value.empty()) return findings.pass("amd.override", "HSA_OVERRIDE_GFX_VERSION is not set");
  const std::string seen = "HSA_OVERRIDE_GFX_VERSION is " + value;
  GfxVersion version;
  if (!parse_version(value, version)) {
    return findings.fail("amd.override", seen + ", which is no version such as 11.0.0",
                         "unset HSA_OVERRIDE_GFX_VERSION");
  }
  for (const GfxVersion& chip : found) {
    if (chip == version) continue;
    const std::string text = fmt::format("{}: kernels are compiled for {}, the chip is {}", seen,
                                         to_string(version), to_string(chip));
    const std::string mend =
        "unset HSA_OVERRIDE_GFX_VERSION: kernels are compiled for every chip, none has to pass for "
        "another";
    if (chip.major != version.major) {
      findings.fail("amd.override", text + ", of another generation, whose instructions differ",
                    mend);
    } else {
      findings.warn("amd.override", text, mend);
    }
    return;
  }
  if (found.empty())
    return findings.warn("amd.override", seen + "; which chip this machine has is not known here",
                         "unset it");
  findings.pass("amd.override", seen + ", which is the chip's own");
}

void check_runtime(const SystemFacts& facts, Findings& findings) {
  for (const DeviceInfo& device : facts.devices) {
    if (device.name != "hip" && !device.name.starts_with("hip:")) continue;
    if (device.usable || !device.features.empty()) {  // there, perhaps without a compiler
      findings.pass("amd.runtime",
                    fmt::format("{}: {}, {}", device.name, device.chip, device.features));
    } else {
      findings.fail("amd.runtime", fmt::format("{}: {}", device.name, device.reason),
                    "install AMD's rocm-hip-runtime, or pip install a ROCm build of torch into the "
                    "environment that is active");
    }
  }
}

void check_names(const SystemFacts& facts, const std::vector<LibraryFile>& hip,
                 const std::vector<LibraryFile>& rtc, Findings& findings) {
  std::vector<LibraryFile> all = hip, strange;
  all.insert(all.end(), rtc.begin(), rtc.end());
  std::copy_if(all.begin(), all.end(), std::back_inserter(strange),
               [](const LibraryFile& file) { return !file.known_name; });
  if (!all.empty() && strange.size() < all.size()) {
    std::vector<std::string> told;
    for (const auto& [name, library, files] :
         {std::tuple{"HIP", &gpu::kHipRuntime, &hip}, std::tuple{"hipRTC", &gpu::kHipRtc, &rtc}}) {
      const std::string text = found_and_taken(facts, *library, *files);
      told.push_back(fmt::format("{}: {}", name, text.empty() ? "none" : text));
    }
    findings.pass("amd.library_names", joined(told));
  }
  if (strange.empty()) return;
  findings.warn(
      "amd.library_names",
      fmt::format("{}: of a release that is not taken, or under a name that is not looked for",
                  paths_of(strange)),
      "install ROCm 6 or 7, or set ROCM_PATH to its folder");
}

void check_one_runtime(const SystemFacts& facts, const std::vector<LibraryFile>& hip,
                       Findings& findings) {
  const std::vector<std::string> mapped = mapped_libraries(facts, "libamdhip64");
  if (mapped.size() > 1) {
    return findings.fail("amd.one_runtime",
                         fmt::format("process {} has {} HIP runtimes: {}", facts.process,
                                     mapped.size(), joined(mapped)),
                         "import torch before fulmen, which then takes torch's runtime; or set "
                         "ROCM_PATH to the folder above the "
                         "lib of the one that is meant");
  }
  const bool in_python =
      std::any_of(hip.begin(), hip.end(), [](const LibraryFile& f) { return f.in_python; });
  const bool in_system =
      std::any_of(hip.begin(), hip.end(), [](const LibraryFile& f) { return !f.in_python; });
  if (in_python && in_system) {
    return findings.warn(
        "amd.one_runtime",
        fmt::format("there are HIP runtimes of Python packages and of the system: {}",
                    paths_of(hip)),
        "import torch before fulmen, which takes the one that is loaded; fulmen doctor --process "
        "PID looks at a "
        "running process");
  }
  findings.pass("amd.one_runtime",
                mapped.empty() ? "the process has no HIP runtime loaded" : mapped[0]);
}

// Checks for a compiler: a GPU has no kernels without one.
void check_compiler(const SystemFacts& facts, const std::vector<LibraryFile>& hip,
                    const std::vector<LibraryFile>& rtc, bool needed, Findings& findings) {
  std::vector<LibraryFile> usable = rtc;
  std::erase_if(usable, [](const LibraryFile& file) { return !file.known_name; });
  const std::vector<std::string> clang = clangs(facts);
  const std::string chosen = facts.environment("FULMEN_AMD_COMPILER");
  std::string seen =
      fmt::format("hipRTC: {}; clang: {}", usable.empty() ? "none" : paths_of(usable),
                  clang.empty() ? "none" : joined(clang));
  if (!chosen.empty()) seen += fmt::format("; FULMEN_AMD_COMPILER is {}", chosen);
  const bool wants_hiprtc = chosen == "hiprtc", wants_clang = chosen == "clang";
  if ((wants_hiprtc && usable.empty()) || (wants_clang && clang.empty())) {
    return findings.fail("amd.compiler", seen + ", which is not there",
                         "unset FULMEN_AMD_COMPILER, or install what it names");
  }
  if (!chosen.empty() && !wants_hiprtc && !wants_clang && chosen.find('/') != std::string::npos &&
      !facts.exists(chosen)) {
    return findings.fail("amd.compiler", seen + ", which does not exist",
                         "unset FULMEN_AMD_COMPILER, or name a clang that is there");
  }
  if (usable.empty() && clang.empty() && chosen.empty()) {
    if (!needed) return findings.pass("amd.compiler", seen + ": none is needed here");
    return findings.fail("amd.compiler", seen + ": no kernel can be compiled",
                         "apt-get install clang-19, or AMD's hip-runtime-amd, which has hipRTC");
  }
  if (needed && !hip.empty() && usable.empty() && chosen.empty()) {
    return findings.warn(
        "amd.compiler",
        fmt::format("{}: ROCm is here without hipRTC, so {} compiles", seen, clang[0]),
        "install AMD's hip-runtime-amd for hipRTC, or leave it: clang serves");
  }
  const std::string taken = !chosen.empty() ? chosen : usable.empty() ? clang[0] : "hipRTC";
  findings.pass("amd.compiler", fmt::format("{}; {} compiles a device's kernels", seen, taken));
}

}  // namespace

void check_amd(const SystemFacts& facts, Findings& findings) {
  const std::vector<std::string> gpus = facts.pci_gpus("1002");
  const std::vector<LibraryFile> hip = rocm_libraries(facts, gpu::kHipRuntime),
                                 rtc = rocm_libraries(facts, gpu::kHipRtc);
  const bool usable =
      std::any_of(facts.devices.begin(), facts.devices.end(),
                  [](const DeviceInfo& d) { return d.name.starts_with("hip:") && d.usable; });
  const bool wsl = facts.is_wsl() && !hip.empty();  // Windows does not show PCI devices there
  const bool needed = !gpus.empty() || usable || wsl || facts.exists("/dev/kfd") ||
                      facts.default_device.starts_with("hip");
  if (!needed) {
    findings.pass("amd.gpu",
                  "no AMD GPU is in this machine: its driver and runtime are not looked at");
    return check_compiler(facts, hip, rtc, false, findings);
  }
  const std::vector<GfxVersion> found = chips(facts);
  std::vector<std::string> names = gpus;
  for (const GfxVersion& chip : found) names.push_back(to_string(chip));
  findings.pass("amd.gpu", names.empty() ? "no AMD GPU is among the PCI devices" : joined(names));
  check_driver(facts, findings);
  check_groups(facts, findings);
  check_override(facts, found, findings);
  check_runtime(facts, findings);
  check_names(facts, hip, rtc, findings);
  check_one_runtime(facts, hip, findings);
  check_compiler(facts, hip, rtc, true, findings);
}

}  // namespace fulmen::tools
