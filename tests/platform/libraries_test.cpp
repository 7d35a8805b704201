// The search for vendors' libraries by Windows' names, among copies of a library that stands in for
// each. On Windows, and under Wine, they are DLLs that its loader loads.
#include <gtest/gtest.h>

#include <filesystem>

#include "gpu/libraries/amd_libraries.h"
#include "gpu/libraries/library_build.h"
#include "gpu/libraries/nvidia_libraries.h"
#include "platform/own_folder.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/system.h"

namespace fulmen::testing {
namespace {

using gpu::LibrarySearch;
using gpu::System;

// Copies in the folder <root>/bin, which the variable leads to while this lives.
class StandIns {
 public:
  StandIns(const char* variable, const std::vector<std::string>& names) : variable_(variable) {
    for (const char* part : {"bin", "lib"}) std::filesystem::create_directory(root_ / part);
    for (const std::string& name : names)
      std::filesystem::copy_file(FULMEN_STAND_IN, root_ / ("bin/" + name));
    platform::set_environment_variable(variable, root_.path().c_str());
  }
  ~StandIns() { platform::set_environment_variable(variable_, nullptr); }
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

 private:
  OwnFolder root_;
  const char* variable_;
};

// The name of the file that is found, which works; else the reason.
std::string found(const LibrarySearch& search) {
  const Result<gpu::FoundLibrary> library = gpu::find_library(search);
  if (!library.ok()) return library.status().message();
  int (*answer)() = nullptr;
  platform::find_symbol(library->handle, "fulmen_stand_in", answer);
  EXPECT_TRUE(answer != nullptr && answer() == 42) << library->path;
  EXPECT_NE(gpu::library_build(reinterpret_cast<const void*>(answer)), "");
  EXPECT_NE(gpu::builds_of_loaded(std::filesystem::path(library->path).filename().string()), "");
  int (*none)() = nullptr;
  platform::find_symbol(library->handle, "fulmen_no_such_function", none);
  EXPECT_EQ(none, nullptr);
  const std::string name = std::filesystem::path(library->path).filename().string();
  close_library(library->handle);
  return name;
}

TEST(Libraries, NewestHipServes) {
  {
    const StandIns both("ROCM_PATH", {"amdhip64_6.dll", "amdhip64_7.dll"});
    EXPECT_EQ(found(gpu::hip_search(System::windows)), "amdhip64_7.dll");
  }
  const StandIns old("HIP_PATH", {"amdhip64_6.dll"});
  EXPECT_EQ(found(gpu::hip_search(System::windows)), "amdhip64_6.dll");
}

TEST(Libraries, NewestHiprtcServesAndNoBuiltins) {
  const StandIns several("HIP_PATH", {"hiprtc0507.dll", "hiprtc0602.dll", "hiprtc0701.dll",
                                      "hiprtc-builtins0701.dll"});
  EXPECT_EQ(found(gpu::hiprtc_search(System::windows)), "hiprtc0701.dll");
}

TEST(Libraries, CudaAndNewestNvrtcServe) {
  const StandIns driver("FULMEN_CUDA_DRIVER_HOME", {"nvcuda.dll"});
  EXPECT_EQ(found(gpu::cuda_search(System::windows)), "nvcuda.dll");
  const StandIns compilers("CUDA_PATH",
                           {"nvrtc64_112_0.dll", "nvrtc64_120_0.dll", "nvrtc64_130_0.dll"});
  EXPECT_EQ(found(gpu::nvrtc_search(System::windows)), "nvrtc64_130_0.dll");
}

TEST(Libraries, LoadedOneIsFoundFirst) {
  const OwnFolder elsewhere;
  const std::string file = elsewhere / "amdhip64_6.dll";
  std::filesystem::copy_file(FULMEN_STAND_IN, file);
  const StandIns newer("ROCM_PATH", {"amdhip64_6.dll"});
  platform::OpeningError error;
  void* loaded = open_library(file, platform::Opening::usual, error);
  ASSERT_NE(loaded, nullptr) << error.words;
  const Result<gpu::FoundLibrary> library = gpu::find_library(gpu::hip_search(System::windows));
  ASSERT_TRUE(library.ok()) << library.status().message();
  EXPECT_TRUE(std::filesystem::equivalent(library->path, file)) << library->path;
  close_library(library->handle);
  close_library(loaded);
}

TEST(Libraries, ThatAreNotThereOrDamagedAreSaid) {
  const std::string none = found(gpu::hip_search(System::windows));
  EXPECT_NE(none.find("amdhip64_7.dll, amdhip64_6.dll, amdhip64.dll not found"), std::string::npos)
      << none;
  const StandIns empty("ROCM_PATH", {});
  const OwnFolder root;
  std::filesystem::create_directory(root / "bin");
  ASSERT_TRUE(write_file(root / "bin/amdhip64_7.dll", "no library").ok());
  platform::set_environment_variable("ROCM_PATH", root.path().c_str());
  const std::string damaged = found(gpu::hip_search(System::windows));
  EXPECT_NE(damaged.find("bin/amdhip64_7.dll: "), std::string::npos) << damaged;
}

}  // namespace
}  // namespace fulmen::testing
