// `fulmen doctor` over systems made of folders: each finding, and its remedy.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "program.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/system_facts.h"

namespace fulmen::test {
namespace {

using tools::Finding;
using tools::FindingVerdict;
using tools::SystemFacts;

constexpr int kRender = 992, kVideo = 44;
constexpr const char* kTorch = "/venv/lib/python3.11/site-packages/torch/lib/";

// A folder as a system's root: nothing but a processor at first.
class Doctor : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    facts_.root = folder_.string();
    facts_.process = "self";
    facts_.user = "ada";
    facts_.group_ids = {1000};
    facts_.environment = [this](const std::string& name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::string() : found->second;
    };
    facts_.can_use = [this](const std::string& path) { return closed_.count(path) == 0; };
    facts_.forbids_programs = [this](const std::string& folder) { return folder == noexec_; };
    facts_.group_of = [](const std::string& path) {
      return path.ends_with("kfd") ? kRender : kVideo;
    };
    facts_.devices = {
        {"cpu", "a processor", "scalar avx2 (not on this processor: avx512 amx)", true, ""}};
    facts_.default_device = "cpu";
    facts_.cache_folder = "/home/ada/.cache/fulmen";
    file("/home/ada/.profile");
    file("/tmp/.keep");
    file("/etc/group", "root:x:0:\nvideo:x:44:\nrender:x:992:eve\n");
  }

  void file(const std::string& path, const std::string& text = "") const {
    std::filesystem::create_directories(
        (folder_.string() + path).substr(0, folder_.string().size() + path.rfind('/')));
    std::ofstream(folder_.string() + path, std::ios::binary) << text;
  }
  void pci(const std::string& vendor, const std::string& device) const {
    file("/sys/bus/pci/devices/0000:03:00.0/vendor", "0x" + vendor + "\n");
    file("/sys/bus/pci/devices/0000:03:00.0/device", "0x" + device + "\n");
    file("/sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n");
  }
  // A machine with an RX 7900 on which all is well.
  void add_radeon() {
    pci("1002", "744c");
    for (const char* path : {"/dev/kfd", "/dev/dri/renderD128", "/opt/rocm/lib/libamdhip64.so.6",
                             "/opt/rocm/lib/libhiprtc.so.6"}) {
      file(path);
    }
    file("/sys/class/kfd/kfd/topology/nodes/0/properties",
         "cpu_cores_count 16\ngfx_target_version 0\n");
    file("/sys/class/kfd/kfd/topology/nodes/1/properties",
         "cpu_cores_count 0\ngfx_target_version 110000\n");
    facts_.devices.push_back(
        {"hip:0", "AMD Radeon RX 7900 XTX (gfx1100)", "96 compute units, HIP 6.4", true, ""});
  }

  std::vector<Finding> all() const { return tools::examine(facts_); }
  // The finding with this id and this verdict; a test failure if there is none.
  Finding finding(const std::string& id, FindingVerdict verdict) const {
    std::string seen;
    for (const Finding& one : all()) {
      if (one.id == id && one.verdict == verdict) return one;
      if (one.id == id) seen += std::string(tools::to_string(one.verdict)) + " " + one.seen + "\n";
    }
    ADD_FAILURE() << "no " << tools::to_string(verdict) << " of " << id << "; there are: " << seen;
    return {};
  }
  void expect(const std::string& id, FindingVerdict verdict, const std::string& seen,
              const std::string& mend) const {
    const Finding one = finding(id, verdict);
    EXPECT_NE(one.seen.find(seen), std::string::npos) << id << ": " << one.seen;
    EXPECT_NE(one.mend.find(mend), std::string::npos) << id << ": " << one.mend;
    EXPECT_EQ(one.mend.empty(), verdict == FindingVerdict::pass) << id << ": " << one.mend;
  }
  void expect_all_pass() const {
    for (const Finding& one : all())
      EXPECT_EQ(one.verdict, FindingVerdict::pass) << one.id << ": " << one.seen;
  }

  SystemFacts facts_;
  std::map<std::string, std::string> variables_;
  std::set<std::string> closed_;
  std::string noexec_;
};

TEST_F(Doctor, AMachineWithoutGpusLacksNothing) {
  expect_all_pass();
  expect("amd.gpu", FindingVerdict::pass, "no AMD GPU", "");
  expect("amd.compiler", FindingVerdict::pass, "none is needed here", "");
  expect("nvidia.gpu", FindingVerdict::pass, "no NVIDIA GPU", "");
}

TEST_F(Doctor, AWholeRadeonPasses) {
  add_radeon();
  expect_all_pass();
  expect("amd.gpu", FindingVerdict::pass, "1002:744c, gfx1100", "");
  expect("amd.driver", FindingVerdict::pass, "/dev/kfd", "");
  expect("amd.groups", FindingVerdict::pass, "/dev/dri/renderD128", "");
  expect("amd.runtime", FindingVerdict::pass, "RX 7900", "");
  expect("amd.compiler", FindingVerdict::pass, "hipRTC compiles", "");
  expect("device.default", FindingVerdict::pass, "FULMEN_DEVICE=hip:0", "");
}

TEST_F(Doctor, DriverIsMissing) {
  pci("1002", "744c");
  expect("amd.driver", FindingVerdict::fail, "no /dev/kfd", "modprobe amdgpu");
  file("/.dockerenv");
  expect("amd.driver", FindingVerdict::fail, "container", "--device=/dev/kfd");
}

TEST_F(Doctor, WslHasDxg) {
  file("/proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2");
  file("/opt/rocm/lib/libamdhip64.so.6");
  expect("amd.driver", FindingVerdict::fail, "without /dev/dxg", "wsl --update");
  file("/dev/dxg");
  expect("amd.driver", FindingVerdict::pass, "/dev/dxg", "");
}

TEST_F(Doctor, GroupsAreNamed) {
  add_radeon();
  closed_ = {"/dev/kfd", "/dev/dri/renderD128"};
  expect("amd.groups", FindingVerdict::fail, "/dev/kfd, /dev/dri/renderD128",
         "sudo usermod -a -G render,video");
  file("/etc/group", "video:x:44:ada\nrender:x:992:bob,ada\n");
  expect("amd.groups", FindingVerdict::fail, "/dev/kfd",
         "log in again: you were put into render,video");
  std::filesystem::remove(folder_ / "dev/dri/renderD128");
  expect("amd.render", FindingVerdict::fail, "renderD", "modprobe amdgpu");
}

TEST_F(Doctor, OverridesOfTheChipAreTold) {
  add_radeon();
  variables_["HSA_OVERRIDE_GFX_VERSION"] = "11.0.0";
  expect("amd.override", FindingVerdict::pass, "the chip's own", "");
  variables_["HSA_OVERRIDE_GFX_VERSION"] = "11.0.2";
  expect("amd.override", FindingVerdict::warn, "compiled for gfx1102, the chip is gfx1100",
         "unset");
  variables_["HSA_OVERRIDE_GFX_VERSION"] = "10.3.0";
  expect("amd.override", FindingVerdict::fail, "gfx1030", "unset");
  for (const char* text : {"gfx1100", "11.0", "11.0.0.1", "11.-1.0"}) {
    variables_["HSA_OVERRIDE_GFX_VERSION"] = text;
    expect("amd.override", FindingVerdict::fail, "no version", "unset");
  }
  std::filesystem::remove_all(folder_ / "sys/class");
  variables_["HSA_OVERRIDE_GFX_VERSION"] = "11.0.0";
  expect("amd.override", FindingVerdict::warn, "not known", "unset");
}

TEST_F(Doctor, ARuntimeThatDoesNotAnswerFails) {
  add_radeon();
  facts_.devices.back() = {"hip", "", "", false, "libamdhip64.so.7 not found"};
  expect("amd.runtime", FindingVerdict::fail, "libamdhip64.so.7 not found", "rocm-hip-runtime");
}

TEST_F(Doctor, TwoRuntimesInAProcessFail) {
  add_radeon();
  const std::string line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 1234   ";
  file("/proc/self/maps", line + "/opt/rocm/lib/libamdhip64.so.6\n" + line +
                              "/opt/rocm/lib/libamdhip64.so.6\n" + line + "[heap]\n");
  expect("amd.one_runtime", FindingVerdict::pass, "/opt/rocm/lib/libamdhip64.so.6", "");
  file("/proc/77/maps",
       line + "/opt/rocm/lib/libamdhip64.so.6\n" + line + kTorch + "libamdhip64.so\n");
  facts_.process = "77";
  expect("amd.one_runtime", FindingVerdict::fail, "process 77 has 2 HIP runtimes",
         "import torch before fulmen");
}

// As PyTorch's wheels, auditwheel and AMD's own wheels name them.
TEST_F(Doctor, NamesOfWheelsAreKnown) {
  add_radeon();
  std::filesystem::remove_all(folder_ / "opt");
  variables_["VIRTUAL_ENV"] = "/venv";
  const std::string site = "/venv/lib/python3.11/site-packages/";
  for (const char* path :
       {"torch/lib/libamdhip64.so", "torch/lib/libhiprtc.so", "torch.libs/libhiprtc-1a2b3c4d.so.6",
        "_rocm_sdk_core/lib/libamdhip64.so.7", "torch/lib/libhiprtc-builtins.so"}) {
    file(site + path);
  }
  const std::string seen = finding("amd.library_names", FindingVerdict::pass).seen;
  for (const char* path :
       {"torch/lib/libamdhip64.so", "torch/lib/libhiprtc.so", "torch.libs/libhiprtc-1a2b3c4d.so.6",
        "_rocm_sdk_core/lib/libamdhip64.so.7"}) {
    EXPECT_NE(seen.find(site + path), std::string::npos) << path << " in: " << seen;
  }
  EXPECT_EQ(seen.find("builtins"), std::string::npos) << seen;
  expect_all_pass();
  file("/opt/rocm/lib/libamdhip64.so.6");
  expect("amd.one_runtime", FindingVerdict::warn, "of Python packages and of the system",
         "--process PID");
  file("/opt/rocm/lib/libhiprtc.so.5");
  expect("amd.library_names", FindingVerdict::warn, "/opt/rocm/lib/libhiprtc.so.5", "ROCm 6 or 7");
}

// What is where, from whom, and which one is taken.
TEST_F(Doctor, LayoutsAreTold) {
  add_radeon();
  std::filesystem::remove_all(folder_ / "opt");
  const auto seen = [&] { return finding("amd.library_names", FindingVerdict::pass).seen; };
  variables_["CONDA_PREFIX"] = "/conda";
  file("/conda/lib/libamdhip64.so.6");
  EXPECT_EQ(seen(), "HIP: /conda/lib/libamdhip64.so.6 (conda; this one is taken), hipRTC: none");
  const std::string sdk = "/conda/lib/python3.12/site-packages/_rocm_sdk_core/lib/";
  file(sdk + "libamdhip64.so.7");
  file(sdk + "libhiprtc.so.7");
  EXPECT_EQ(seen(), "HIP: " + sdk +
                        "libamdhip64.so.7 (AMD's Python packages; this one is taken), "
                        "/conda/lib/libamdhip64.so.6 (conda), hipRTC: " +
                        sdk + "libhiprtc.so.7 (AMD's Python packages; this one is taken)");
  file("/opt/rocm/core-7.14/lib/libamdhip64.so.7");
  file("/opt/rocm/core-10.0/lib/libamdhip64.so.7");
  EXPECT_TRUE(
      seen().starts_with("HIP: /opt/rocm/core-10.0/lib/libamdhip64.so.7 (AMD's packages of "
                         "one release; this one is taken), /opt/rocm/core-7.14"))
      << seen();
  file("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5");
  EXPECT_TRUE(
      seen().starts_with("HIP: /usr/lib/x86_64-linux-gnu/libamdhip64.so.5 (the "
                         "distribution; this one is taken), /opt/rocm/core-10.0"))
      << seen();
  variables_["ROCM_PATH"] = "/home/ada/rocm";
  file("/home/ada/rocm/lib/libamdhip64.so.7");
  EXPECT_TRUE(
      seen().starts_with("HIP: /home/ada/rocm/lib/libamdhip64.so.7 ($ROCM_PATH; this one "
                         "is taken), /usr/lib"))
      << seen();
  // What the process has loaded comes before all, by whatever link it was opened.
  const std::string line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 1234   ";
  file("/proc/self/maps", line + "/opt/rocm/core-10.0/lib/libamdhip64.so.7\n");
  EXPECT_NE(seen().find("/opt/rocm/core-10.0/lib/libamdhip64.so.7 (AMD's packages of one release; "
                        "this one is taken)"),
            std::string::npos)
      << seen();
  EXPECT_EQ(seen().find("$ROCM_PATH; this"), std::string::npos) << seen();
  file("/proc/self/maps", line + "/application/libamdhip64.so.6\n");
  EXPECT_NE(seen().find("/application/libamdhip64.so.6 (the process has loaded it; this one is "
                        "taken)"),
            std::string::npos)
      << seen();
}

// The wheel's own environment and that of the python3 in PATH, neither of which is active.
TEST_F(Doctor, EnvironmentsThatAreNotActiveAreLookedAt) {
  add_radeon();
  std::filesystem::remove_all(folder_ / "opt");
  const auto seen = [&] { return finding("amd.library_names", FindingVerdict::pass).seen; };
  const std::string sdk = "_rocm_sdk_core/lib/libamdhip64.so.7";
  const std::string path = "/pythons/lib/python3.12/site-packages/" + sdk;
  file(path);
  file("/pythons/bin/python3");
  file("/usr/lib/libamdhip64.so.5");
  EXPECT_EQ(seen().find(path), std::string::npos) << seen();
  variables_["PATH"] = "/usr/bin:/pythons/bin";
  EXPECT_NE(seen().find(path + " (AMD's Python packages)"), std::string::npos) << seen();
  const std::string own = "/own/lib/python3.10/site-packages/";
  file(own + sdk);
  file("/own/lib/libamdhip64.so.6");
  facts_.own_library = own + "fulmen/libfulmen.so";
  variables_["LD_LIBRARY_PATH"] = "/some";
  file("/some/libamdhip64.so.7");
  EXPECT_TRUE(seen().starts_with("HIP: " + own + sdk +
                                 " (AMD's Python packages; this one is taken), "
                                 "/some/libamdhip64.so.7 ($LD_LIBRARY_PATH), "))
      << seen();
  EXPECT_NE(seen().find("/own/lib/libamdhip64.so.6 (conda)"), std::string::npos) << seen();
}

TEST_F(Doctor, CompilersAreFoundAndChosen) {
  add_radeon();
  std::filesystem::remove(folder_ / "opt/rocm/lib/libhiprtc.so.6");
  variables_["PATH"] = "/usr/local/bin:/usr/bin";
  expect("amd.compiler", FindingVerdict::fail, "no kernel can be compiled",
         "apt-get install clang-19");
  file("/usr/bin/clang++-19");
  file("/usr/bin/clang++");
  expect("amd.compiler", FindingVerdict::warn,
         "ROCm is here without hipRTC, so /usr/bin/clang++-19 compiles", "hip-runtime-amd");
  variables_["FULMEN_AMD_COMPILER"] = "clang";
  expect("amd.compiler", FindingVerdict::pass, "clang: /usr/bin/clang++-19, /usr/bin/clang++", "");
  variables_["FULMEN_AMD_COMPILER"] = "hiprtc";
  expect("amd.compiler", FindingVerdict::fail, "FULMEN_AMD_COMPILER is hiprtc, which is not there",
         "unset");
  variables_["FULMEN_AMD_COMPILER"] = "/nowhere/clang++";
  expect("amd.compiler", FindingVerdict::fail, "does not exist", "unset");
}

TEST_F(Doctor, NvidiaDriverAndCompiler) {
  pci("10de", "2335");
  facts_.devices.push_back({"cuda", "", "", false, "libcuda.so.1 not found"});
  expect("nvidia.driver", FindingVerdict::fail, "not loaded", "nvidia-driver");
  expect("nvidia.libcuda", FindingVerdict::fail, "libcuda.so.1 not found", "nvidia-driver");
  file("/.dockerenv");
  expect("nvidia.driver", FindingVerdict::fail, "not loaded", "--gpus all");
  file("/proc/driver/nvidia/version",
       "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90\nGCC\n");
  const auto with = [&](const char* chip, const char* software) {
    facts_.devices.back() = {"cuda:0", std::string("A card (") + chip + ")", software, true, ""};
  };
  with("sm_90a", "132 compute units, driver of CUDA 12.8, NVRTC 12.8 build 1");
  expect_all_pass();
  expect("nvidia.nvrtc", FindingVerdict::pass, "NVRTC 12.8", "");
  with("sm_90a", "driver of CUDA 12.4, no NVRTC: libnvrtc.so.13 not found");
  expect("nvidia.nvrtc", FindingVerdict::fail, "libnvrtc.so.13 not found",
         "pip install nvidia-cuda-nvrtc-cu12");
  with("sm_70", "driver of CUDA 12.4, NVRTC 13.0");
  expect("nvidia.nvrtc", FindingVerdict::fail, "sm_75 and later", "nvidia-cuda-nvrtc-cu12");
  with("sm_120", "driver of CUDA 12.8, NVRTC 12.4");
  expect("nvidia.nvrtc", FindingVerdict::fail, "12.8 or newer", "pip install -U");
  with("sm_90a", "driver of CUDA 12.4, NVRTC 13.0");
  expect("nvidia.nvrtc", FindingVerdict::warn, "newer CUDA", "newer driver");
}

TEST_F(Doctor, AmxAndBlas) {
  file("/proc/cpuinfo", "flags : fpu avx2 amx_bf16 avx512f\n");
  expect("cpu.amx", FindingVerdict::warn, "may not use it", "arch_prctl");
  facts_.devices[0].features = "scalar avx2 amx (not on this processor: amx_fp16)";
  expect("cpu.amx", FindingVerdict::pass, "lets this process", "");
  facts_.blas = Support::no("no BLAS found");
  expect("cpu.blas", FindingVerdict::warn, "no BLAS found", "libopenblas0");
}

// A package that was compiled for another processor.
TEST_F(Doctor, InstructionSetsThatTheBuildLeftOut) {
  facts_.devices[0].features =
      "scalar avx2 (not on this processor: amx) (not in this build: avx512 avx512_vnni)";
  expect("cpu.build", FindingVerdict::warn, "the processor has: avx512 avx512_vnni",
         "install the wheel");
  facts_.devices[0].features = "scalar avx2 (not on this processor: amx)";
  for (const Finding& finding : examine(facts_)) EXPECT_NE(finding.id, "cpu.build");
}

TEST_F(Doctor, Folders) {
  expect("folders.cache", FindingVerdict::pass, "/home/ada/.cache/fulmen", "");
  closed_ = {"/home/ada"};
  expect("folders.cache", FindingVerdict::warn, "/home/ada is no folder that this user may write",
         "FULMEN_CACHE_DIR");
  facts_.cache_folder = "/home/ada/.profile/fulmen";
  expect("folders.cache", FindingVerdict::warn, "/home/ada/.profile is no folder",
         "FULMEN_CACHE_DIR");
  facts_.cache_folder = "";
  expect("folders.cache", FindingVerdict::warn, "HOME", "FULMEN_CACHE_DIR");
  noexec_ = facts_.root + "/tmp";
  expect("folders.tmp", FindingVerdict::warn, "/tmp is mounted noexec", "TMPDIR");
  variables_["TMPDIR"] = "/nowhere";
  expect("folders.tmp", FindingVerdict::fail, "/nowhere", "TMPDIR");
}

TEST_F(Doctor, TheChosenDeviceMustBeThere) {
  variables_["FULMEN_DEVICE"] = facts_.default_device = "hip:1";
  expect("device.default", FindingVerdict::fail, "FULMEN_DEVICE says so", "FULMEN_DEVICE=cpu");
  expect("amd.driver", FindingVerdict::fail, "no /dev/kfd", "modprobe");
  facts_.devices.push_back({"hip", "", "", false, "no library"});
  expect("device.default", FindingVerdict::fail, "no library", "FULMEN_DEVICE=cpu");
}

// The program on this machine: whatever it finds, the exit status and both forms of output agree.
TEST_F(Doctor, TheProgramTellsByItsExitStatus) {
  const Outcome text = fulmen({"doctor"}), json = fulmen({"doctor", "--json"});
  const auto parsed = nlohmann::json::parse(json.out);
  bool failed = false;
  for (const auto& one : parsed["findings"]) {
    failed = failed || one["verdict"] == "fail";
    EXPECT_EQ(one["mend"].get<std::string>().empty(), one["verdict"] == "pass") << one;
    EXPECT_NE(text.out.find(one["id"].get<std::string>()), std::string::npos) << one;
  }
  EXPECT_GE(parsed["findings"].size(), 8U);
  EXPECT_EQ(json.exit_code, failed ? 1 : 0) << json.err;
  EXPECT_EQ(text.exit_code, json.exit_code);
  expect_one_sentence(fulmen({"doctor", "--process", "x\x1b[2J"}),
                      "--process x\\x1b[2J: the number");
  expect_one_sentence(fulmen({"doctor", "--process", "999999999"}), "no such process");
  expect_one_sentence(fulmen({"doctor", "--torch"}), "python3 -m fulmen doctor --torch");
}

TEST_F(Doctor, NothingFromOutsideReachesTheTerminalAsItIs) {
  ::setenv("FULMEN_DEVICE", "hip:\x1b[2J\n", 1);
  const Outcome text = fulmen({"doctor"}), json = fulmen({"doctor", "--json"});
  ::unsetenv("FULMEN_DEVICE");
  EXPECT_EQ(text.exit_code, 1) << text.out;
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos);
  EXPECT_NE(text.out.find("\\x1b[2J"), std::string::npos) << text.out;
  EXPECT_TRUE(nlohmann::json::accept(json.out)) << json.out;
}

}  // namespace
}  // namespace fulmen::test
