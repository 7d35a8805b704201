// Messages where a library or a device is missing.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "gpu/drivers/hip/hip_api.h"
#include "gpu/libraries/amd_libraries.h"
#include "gpu/libraries/library_search.h"
#include "gpu_drivers/fake_library.h"
#include "gpu_drivers/variable.h"
#include "runtime/run_program.h"

namespace fulmen::testing {
namespace {

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << '"' << part << "\" in: " << text;
}

TEST(LibrarySearch, NamesTheLibrariesThePlacesAndTheCommand) {
  const Result<gpu::FoundLibrary> found =
      gpu::find_library({.names = {"libabsent.so.2", "libabsent.so.1"},
                         .home_variables = {"ROCM_PATH", "FULMEN_NOT_SET"},
                         .system_folders = {"/usr/absent-*/lib"},
                         .python_folders = {"absent/lib"},
                         .install = "To install it: make absent"});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::unavailable);
  expect_parts(found.status().message(),
               {"libabsent.so.2", "libabsent.so.1", "loader's path", "$ROCM_PATH", FULMEN_FAKE_ROCM,
                "$FULMEN_NOT_SET (not set)", "/usr/absent-*/lib", "absent/lib of", "make absent"});
}

// A folder with lib/<name> in it, which $FULMEN_TEST_HOME names during this object's lifetime.
class TestHome {
 public:
  explicit TestHome(const std::string& name) {
    std::filesystem::create_directory(folder_.path() + "/lib");
    file = folder_.path() + "/lib/" + name;
    setenv("FULMEN_TEST_HOME", folder_.path().c_str(), 1);
  }
  ~TestHome() {
    unsetenv("FULMEN_TEST_HOME");
    std::filesystem::remove_all(folder_.path() + "/lib");
  }
  TestHome(const TestHome&) = delete;
  TestHome& operator=(const TestHome&) = delete;
  Result<gpu::FoundLibrary> find(const std::vector<std::string>& names) const {
    return gpu::find_library({.names = names,
                              .home_variables = {"FULMEN_TEST_HOME"},
                              .system_folders = {},
                              .python_folders = {},
                              .install = ""});
  }
  std::string file;

 private:
  TemporaryDirectory folder_;
};

TEST(LibrarySearch, AVariableBeatsTheLoadersPath) {
  // The loader's path has a libBrokenLocale.so.1 wherever there is a libc; this program has not
  // loaded it.
  const TestHome home("libBrokenLocale.so.1");
  std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", home.file);
  const Result<gpu::FoundLibrary> found = home.find({"libBrokenLocale.so.1"});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->path, home.file);
}

TEST(LibrarySearch, AFileThatDoesNotLoadIsToldInTheLoadersWords) {
  const TestHome home("libtext.so.1");
  ASSERT_TRUE(write_file(home.file, "no library").ok());
  const Result<gpu::FoundLibrary> found = home.find({"libtext.so.1"});
  ASSERT_FALSE(found.ok());
  expect_parts(found.status().message(), {"libtext.so.1", "file too short"});
}

// Where pip puts a package, by whatever kind of Python there is.
TEST(LibrarySearch, PythonsPackagesAreFound) {
  const TemporaryDirectory folder;
  const std::string root = folder.path(), part = "/lib/python3.11/site-packages/vendor/cu1/lib";
  const auto python_in = [&](const std::string& bin) {
    std::filesystem::create_directories(bin);
    ASSERT_TRUE(write_file(bin + "/python3", "#!/bin/sh\n").ok());
    std::filesystem::permissions(bin + "/python3", std::filesystem::perms::owner_all);
  };
  const Variable no_environment("VIRTUAL_ENV", ""), no_conda("CONDA_PREFIX", ""),
      home("HOME", root + "/home");
  python_in(root + "/pyenv/shims");
  python_in(root + "/usr/bin");
  struct Place {
    const char* variable;
    std::string value, environment;
  };
  const Place places[] = {{"VIRTUAL_ENV", root + "/venv", root + "/venv"},
                          {"CONDA_PREFIX", root + "/conda", root + "/conda"},
                          {"PATH", root + "/usr/bin", root + "/usr"},
                          {"PATH", root + "/pyenv/shims", root + "/pyenv/versions/3.11.7"},
                          {"HOME", root + "/user", root + "/user/.local"}};
  int number = 0;
  for (const Place& place : places) {
    // A name of its own for each: a library that is loaded already is found by that.
    const std::string name = "libofpython.so." + std::to_string(++number),
                      file = place.environment + part + "/" + name;
    std::filesystem::create_directories(place.environment + part);
    std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", file);
    const gpu::LibrarySearch search{.names = {name},
                                    .home_variables = {},
                                    .system_folders = {},
                                    .python_folders = {"vendor/*/lib"},
                                    .install = ""};
    EXPECT_FALSE(gpu::find_library(search).ok()) << file;
    const Variable set(place.variable, place.value);
    const Result<gpu::FoundLibrary> found = gpu::find_library(search);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->path, file);
    EXPECT_EQ(gpu::find_in_python_packages({"vendor/*/lib/" + name}),
              std::vector<std::string>{file});
  }
}

// PyTorch's wheels carry ROCm's libraries without a version or under a hash, with a soname that is
// another.
TEST(LibrarySearch, NamesOfWheelsAreFound) {
  const std::string pattern = "libwheel" + std::string(gpu::kWheelHash);
  {
    const TestHome home("libwheel-builtins.so.1");
    std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", home.file);
    const Result<gpu::FoundLibrary> found = home.find({"libwheel.so.1", pattern});
    ASSERT_FALSE(found.ok()) << found->path;
    expect_parts(found.status().message(), {"libwheel.so.1, libwheel-*.so not found"});
  }
  const TestHome home("libwheel-1a2b3c4d.so");
  std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", home.file);
  const Result<gpu::FoundLibrary> found = home.find({"libwheel.so.1", pattern});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->path, home.file);
  // Once it is loaded, as by PyTorch, it is found without any folder.
  const Result<gpu::FoundLibrary> again = gpu::find_library({.names = {pattern},
                                                             .home_variables = {},
                                                             .system_folders = {},
                                                             .python_folders = {},
                                                             .install = ""});
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->handle, found->handle);
}

TEST(LibrarySearch, ALoadedLibraryIsFoundByItsFilesName) {
  const TestHome home("libunversioned.so");
  std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", home.file);
  void* loaded = dlopen(home.file.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr);
  const Result<gpu::FoundLibrary> found = gpu::find_library({.names = {"libunversioned.so"},
                                                             .home_variables = {},
                                                             .system_folders = {},
                                                             .python_folders = {},
                                                             .install = ""});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->handle, loaded);
}

TEST(LibrarySearch, AReleaseThatDoesNotServeIsRefusedByAnyName) {
  const TestHome home("libofrelease.so");
  std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", home.file);
  const Result<gpu::FoundLibrary> found = gpu::find_library({.names = {"libofrelease.so"},
                                                             .home_variables = {"FULMEN_TEST_HOME"},
                                                             .system_folders = {},
                                                             .python_folders = {},
                                                             .install = "",
                                                             .refused = {"libnvrtc.so.13"}});
  ASSERT_FALSE(found.ok());
  expect_parts(found.status().message(),
               {"libofrelease.so is libnvrtc.so.13, which does not serve"});
}

// ELF files under Windows' names: which one is found, and where.
TEST(LibrarySearch, WindowsNamesAreFoundInItsFolders) {
  const TemporaryDirectory folder;
  const std::string home = folder.path() + "/ROCm/7.1", venv = folder.path() + "/venv";
  const std::string bin = venv + "/Lib/site-packages/_rocm_sdk_core/bin";
  for (const std::string& made : {home + "/bin", bin}) std::filesystem::create_directories(made);
  const auto put = [](const std::string& file) {
    std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", file);
  };
  const auto found = [](const gpu::LibrarySearch& search) {
    const Result<gpu::FoundLibrary> library = gpu::find_library(search);
    return library.ok() ? library->path : library.status().message();
  };
  const Variable rocm("ROCM_PATH", ""), conda("CONDA_PREFIX", ""), sdk("HIP_PATH", home),
      environment("VIRTUAL_ENV", venv);
  const auto windows = gpu::System::windows;
  put(home + "/bin/hiprtc-builtins0701.dll");
  put(home + "/bin/hiprtc0507.dll");
  expect_parts(found(gpu::hiprtc_search(windows)),
               {"hiprtc0[6-9][0-9][0-9].dll not found", "C:/Program Files/AMD/ROCm/*/bin"});
  expect_parts(found(gpu::hip_search(windows)),
               {"amdhip64_7.dll, amdhip64_6.dll, amdhip64.dll not found", "C:/Windows/System32",
                "_rocm_sdk_*/bin", "Adrenalin"});
  // First a Python environment's library, then that of the SDK that a variable names.
  put(bin + "/amdhip64_6.dll");
  put(bin + "/amd_comgr_2.dll");
  EXPECT_EQ(found(gpu::hip_search(windows)), bin + "/amdhip64_6.dll");
  EXPECT_EQ(found(gpu::comgr_search(windows)), bin + "/amd_comgr_2.dll");
  put(home + "/bin/hiprtc0602.dll");
  put(home + "/bin/hiprtc0701.dll");
  EXPECT_EQ(found(gpu::hiprtc_search(windows)), home + "/bin/hiprtc0701.dll") << "the newest";
  // Linux's search finds none of these.
  EXPECT_EQ(found(gpu::comgr_search()).find(".dll: "), std::string::npos);
  EXPECT_EQ(gpu::comgr_search().names.front(), "libamd_comgr.so.3");
}

class RealLibraries : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(FULMEN_DRIVER_REPORT).empty())
      GTEST_SKIP() << "a cross build: programs of its own cannot be started";
  }
};

// Debian's libamdhip64 5.2.3 (package libamdhip64-5) loads on a machine without an AMD GPU.
TEST_F(RealLibraries, HipSaysThatThereIsNoDevice) {
  const std::string text = report({"ROCM_PATH=/nonexistent", "ASAN_OPTIONS=detect_leaks=0"}, "hip");
  if (text.find("not found") != std::string::npos) {
    expect_parts(text, {"libamdhip64.so.7", "libamdhip64.so.5", "$ROCM_PATH", "apt-get install"});
    GTEST_SKIP() << text;
  }
  if (access("/dev/kfd", F_OK) == 0) GTEST_SKIP() << "an AMD GPU is here: " << text;
  expect_parts(text, {"no AMD device", "hipError", "libamdhip64.so", "there is no /dev/kfd"});
}

// A HIP runtime of a wheel beside this library is taken before the loader's, as PyTorch will open
// it: the program has one.
TEST_F(RealLibraries, PyTorchsHipRuntimeIsOurs) {
  const TemporaryDirectory folder;
  const std::string site = folder.path() + "/site-packages", system = folder.path() + "/system";
  for (const std::string& made : {site + "/torch/lib", site + "/fulmen", system})
    std::filesystem::create_directories(made);
  const std::string program = site + "/fulmen/driver_report",
                    wheels = site + "/torch/lib/libamdhip64.so";
  std::filesystem::copy_file(FULMEN_DRIVER_REPORT, program);
  for (const std::string& file : {wheels, system + "/libamdhip64.so.7"}) {
    std::filesystem::copy_file(FULMEN_FAKE_ROCM "/lib/libamdhip64.so.7", file);
  }
  const auto said =
      run_program({"/usr/bin/env", "ROCM_PATH=", "HIP_PATH=", "ASAN_OPTIONS=detect_leaks=0",
                   "LD_LIBRARY_PATH=" + system, program, "hip_software"});
  ASSERT_TRUE(said.ok()) << said.status().message();
  EXPECT_TRUE(said->starts_with(wheels + "\n")) << said.value();
  EXPECT_EQ(said->find(system + "/"), std::string::npos) << said.value();
}

TEST_F(RealLibraries, ClangServesWithoutHipRtcAndItIsSaid) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder.path() + "/lib");
  std::filesystem::copy_file(FULMEN_FAKE_ROCM "/lib/libamdhip64.so.7",
                             folder.path() + "/lib/libamdhip64.so.7");
  const std::string rocm = "ROCM_PATH=" + folder.path();
  const std::string text =
      report({rocm, "HIP_PATH=", "ASAN_OPTIONS=detect_leaks=0"}, "hip_software");
  if (text.find(", hipRTC ") != std::string::npos) GTEST_SKIP() << "a hipRTC is here: " << text;
  if (text.find("no compiler: ") != std::string::npos) GTEST_SKIP() << "no clang is here: " << text;
  expect_parts(text, {"clang, as hipRTC is not there",
                      "libhiprtc.so.7, libhiprtc.so.6, libhiprtc.so, libhiprtc-*.so not found"});
  // If it was chosen by name, its absence is an error.
  const std::string chosen =
      report({rocm, "FULMEN_AMD_COMPILER=clang", "ASAN_OPTIONS=detect_leaks=0"}, "hip_software");
  EXPECT_EQ(chosen.find("hipRTC"), std::string::npos) << chosen;
  expect_parts(
      report({rocm, "FULMEN_AMD_COMPILER=hiprtc", "ASAN_OPTIONS=detect_leaks=0"}, "hip_software"),
      {"no compiler: FULMEN_AMD_COMPILER is \"hiprtc\""});
}

TEST_F(RealLibraries, NvrtcCompilesWithoutAGpu) {
  const std::string text =
      report({"CUDA_HOME=/nonexistent", "ASAN_OPTIONS=detect_leaks=0"}, "nvrtc");
  if (text.find("not found") != std::string::npos) {
    expect_parts(
        text, {"libnvrtc.so.13", "libnvrtc.so.12", "$CUDA_HOME", "pip install nvidia-cuda-nvrtc"});
    GTEST_SKIP() << text;
  }
  expect_parts(text, {"NVRTC", "machine 190", "registers"});
}

TEST_F(RealLibraries, CudaSaysWhatIsMissing) {
  const std::string text = report({"FULMEN_CUDA_DRIVER_HOME=/nonexistent"}, "cuda");
  if (text.find("not found") == std::string::npos) GTEST_SKIP() << "a libcuda is here: " << text;
  expect_parts(text, {"libcuda.so.1", "loader's path", "apt-get install nvidia-driver"});
}

TEST_F(RealLibraries, OtherDevicesOpenNoDriver) {
  EXPECT_EQ(report({}, "cpu"), "opened:\n");
  expect_parts(report({}, "lists"), {"libcuda.so"});
}

TEST_F(RealLibraries, CudaWithoutADeviceSaysWhatTheDriverSays) {
  const std::string text = report({"FULMEN_FAKE_CUDA_INIT=100"}, "cuda");
  expect_parts(text, {"no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)", "libcuda.so.1"});
}

TEST(HipApi, TheChipIsReadFromAnyReleasesProperties) {
  // gcnArchName is at byte 396 in ROCm 5, at 1160 since.
  for (const std::size_t offset : {396, 1160}) {
    std::vector<std::byte> properties(2048);
    const char name[] = "gfx1036", arch[] = "gfx90a:sramecc+:xnack-";
    std::memcpy(properties.data(), name, sizeof(name));
    std::memcpy(properties.data() + offset, arch, sizeof(arch));
    EXPECT_EQ(gpu::hip::arch_of(properties.data(), properties.size()), "gfx90a");
  }
  EXPECT_EQ(gpu::hip::arch_of(std::vector<std::byte>(64).data(), 64), "");
}

}  // namespace
}  // namespace fulmen::testing
