// NVIDIA: driver, libcuda, and NVRTC against the driver and the chip.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/doctor/finding.h"
#include "tools/doctor/system_facts.h"

namespace fulmen::tools {
namespace {

struct Version {
  int major = 0, minor = 0;
  int number() const { return 10 * major + minor; }
};

// Returns the version behind a word, as in "NVRTC 13.0"; 0.0 where there is none.
Version version_after(const std::string& text, const std::string& word) {
  Version version;
  const std::size_t at = text.find(word);
  if (at == std::string::npos ||
      std::sscanf(text.c_str() + at + word.size(), "%d.%d", &version.major, &version.minor) != 2)
    return {};
  return version;
}

// Returns 90 for "NVIDIA H200 (sm_90a)".
int chip_of(const std::string& text) {
  int chip = 0;
  const std::size_t at = text.find("(sm_");
  return at != std::string::npos && std::sscanf(text.c_str() + at, "(sm_%d", &chip) == 1 ? chip : 0;
}

void check_nvrtc(const DeviceInfo& device, Findings& findings) {
  const Version nvrtc = version_after(device.features, "NVRTC "),
                driver = version_after(device.features, "driver of CUDA ");
  const int chip = chip_of(device.chip);
  const std::string seen = fmt::format("{}: NVRTC {}.{}, driver of CUDA {}.{}, sm_{}", device.name,
                                       nvrtc.major, nvrtc.minor, driver.major, driver.minor, chip);
  if (nvrtc.major == 0) {
    const std::size_t at = device.features.find("no NVRTC");
    return findings.fail(
        "nvidia.nvrtc",
        device.name + ": " + (at == std::string::npos ? "no NVRTC" : device.features.substr(at)),
        driver.major >= 13 ? "pip install nvidia-cuda-nvrtc"
                           : "pip install nvidia-cuda-nvrtc-cu12");
  }
  if (chip < 75 && nvrtc.major >= 13) {
    return findings.fail("nvidia.nvrtc", seen + ": CUDA 13 compiles for sm_75 and later",
                         "pip install nvidia-cuda-nvrtc-cu12, and remove CUDA 13's");
  }
  // Blackwell came with CUDA 12.8.
  if (chip >= 100 && nvrtc.number() < 128) {
    return findings.fail("nvidia.nvrtc", seen + ": this chip needs NVRTC 12.8 or newer",
                         "pip install -U nvidia-cuda-nvrtc-cu12");
  }
  if (nvrtc.major > driver.major) {
    return findings.warn("nvidia.nvrtc", seen + ": code of a newer CUDA may not load",
                         "install a newer driver, or an NVRTC of the driver's CUDA: pip install "
                         "nvidia-cuda-nvrtc-cu12");
  }
  findings.pass("nvidia.nvrtc", seen);
}

}  // namespace

void check_nvidia(const SystemFacts& facts, Findings& findings) {
  const std::vector<std::string> gpus = facts.pci_gpus("10de");
  const std::vector<std::string> served = facts.names("/proc/driver/nvidia/gpus");
  std::vector<DeviceInfo> devices = facts.devices;
  std::erase_if(devices, [](const DeviceInfo& d) {
    return d.name != "cuda" && !d.name.starts_with("cuda:");
  });
  const bool usable =
      std::any_of(devices.begin(), devices.end(), [](const DeviceInfo& d) { return d.usable; });
  const bool wsl = facts.is_wsl() && facts.exists("/usr/lib/wsl/lib/libcuda.so.1");
  if (gpus.empty() && served.empty() && !usable && !wsl &&
      !facts.default_device.starts_with("cuda")) {
    return findings.pass(
        "nvidia.gpu", "no NVIDIA GPU is in this machine: its driver and NVRTC are not looked at");
  }
  findings.pass("nvidia.gpu",
                gpus.empty() ? "no NVIDIA GPU is among the PCI devices" : joined(gpus));
  std::string version = facts.read("/proc/driver/nvidia/version");
  version = version.substr(0, version.find('\n'));
  if (!version.empty() || wsl || usable) {
    findings.pass("nvidia.driver", !version.empty() ? version
                                   : wsl            ? "WSL's libcuda.so.1"
                                                    : "its library answers");
  } else {
    findings.fail("nvidia.driver",
                  "there is no /proc/driver/nvidia/version: NVIDIA's kernel driver is not loaded",
                  facts.in_container()
                      ? "start the container with --gpus all"
                      : "apt-get install nvidia-driver, then restart; or modprobe nvidia");
  }
  for (const DeviceInfo& device : devices) {
    // A device with features is there, if perhaps without a compiler.
    if (!device.usable && device.features.empty()) {
      findings.fail("nvidia.libcuda", fmt::format("{}: {}", device.name, device.reason),
                    facts.in_container() ? "start the container with --gpus all"
                                         : "apt-get install nvidia-driver");
      continue;
    }
    findings.pass("nvidia.libcuda", fmt::format("{}: {}", device.name, device.chip));
    check_nvrtc(device, findings);
  }
}

}  // namespace fulmen::tools
