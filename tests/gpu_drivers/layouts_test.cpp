// ROCm as distributors lay it out, as folders with a library that stands for theirs: each is found,
// and of several the one that the order names.
#include <dlfcn.h>

#include <filesystem>
#include <memory>

#include "gpu/libraries/amd_libraries.h"
#include "gpu_drivers/fake_library.h"
#include "gpu_drivers/variable.h"
#include "runtime/run_program.h"

namespace fulmen::testing {
namespace {

// A system with nothing of ROCm but what a test puts there. Libraries have names of their own,
// libstand_amdhip64.so.7 for libamdhip64.so.7: this process may have loaded a HIP already.
class RocmTree : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"ROCM_PATH", "HIP_PATH", "CONDA_PREFIX", "VIRTUAL_ENV"}) set(name, "");
    set("HOME", root() + "/home");
  }
  std::string root() const { return folder_.path(); }
  void set(const char* name, const std::string& value) {
    variables_.push_back(std::make_unique<Variable>(name, value));
  }
  void put(const std::string& path) const {
    const std::filesystem::path file = root() + stand_in(path);
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::copy_file(FULMEN_FAKE_CUDA "/lib64/libnvrtc.so.13", file);
  }
  // The path that was found below the root, or why none was. The library is closed again: loaded
  // ones come first.
  std::string found(gpu::LibrarySearch search = gpu::hip_search()) const {
    for (std::string& name : search.names) name = stand_in(name);
    for (std::string& folder : search.system_folders) folder = root() + folder;
    const Result<gpu::FoundLibrary> library = gpu::find_library(search);
    if (!library.ok()) return library.status().message();
    dlclose(library->handle);
    return library->path.starts_with(root()) ? library->path.substr(root().size()) : library->path;
  }
  void expect(const std::string& path, gpu::LibrarySearch search = gpu::hip_search()) const {
    EXPECT_EQ(found(std::move(search)), stand_in(path));
  }

 private:
  static std::string stand_in(std::string path) {
    for (const std::string_view vendors : {"libamdhip64", "libhiprtc", "libamd_comgr"}) {
      if (const std::size_t at = path.find(vendors); at != std::string::npos)
        path.insert(at + 3, "stand_");
    }
    return path;
  }

  TemporaryDirectory folder_;
  std::vector<std::unique_ptr<Variable>> variables_;
};

TEST_F(RocmTree, WithoutOneEveryPlaceIsNamed) {
  const std::string message = found();
  for (const gpu::RocmLayout& layout : gpu::kRocmLayouts) {
    if (layout.below == gpu::RocmLayout::Below::loader) continue;
    EXPECT_NE(message.find(layout.folder), std::string::npos) << layout.folder << ": " << message;
  }
  for (const char* part :
       {"$ROCM_PATH (not set)", "$HIP_PATH", "the loader's path", ".so.7", ".so.5"})
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
}

TEST_F(RocmTree, AmdsPackages) {
  put("/opt/rocm/lib/libamdhip64.so.6");
  expect("/opt/rocm/lib/libamdhip64.so.6");
}

TEST_F(RocmTree, OfReleasesBesideEachOtherTheNewest) {
  put("/opt/rocm-6.4.1/lib/libamdhip64.so.6");
  put("/opt/rocm-5.2.0/lib/libamdhip64.so.5");
  expect("/opt/rocm-6.4.1/lib/libamdhip64.so.6");
  put("/opt/rocm/core-7.14/lib/libamdhip64.so.7");
  put("/opt/rocm/core-10.0/lib/libamdhip64.so.7");
  expect("/opt/rocm/core-10.0/lib/libamdhip64.so.7");
}

TEST_F(RocmTree, PyTorchsWheel) {
  set("VIRTUAL_ENV", root() + "/venv");
  put("/venv/lib/python3.12/site-packages/torch.libs/libamdhip64-1a2b3c4d.so.6");
  expect("/venv/lib/python3.12/site-packages/torch.libs/libamdhip64-1a2b3c4d.so.6");
  put("/venv/lib/python3.12/site-packages/torch/lib/libamdhip64.so");
  expect("/venv/lib/python3.12/site-packages/torch/lib/libamdhip64.so");
}

// They have versioned names alone.
TEST_F(RocmTree, AmdsPythonPackages) {
  set("VIRTUAL_ENV", root() + "/venv");
  const std::string lib = "/venv/lib/python3.13/site-packages/_rocm_sdk_core/lib/";
  for (const char* name : {"libamdhip64.so.7", "libhiprtc.so.7", "libamd_comgr.so.3"})
    put(lib + name);
  put("/venv/lib/python3.13/site-packages/_rocm_sdk_libraries_gfx1151/lib/librocblas.so.5");
  expect(lib + "libamdhip64.so.7");
  expect(lib + "libhiprtc.so.7", gpu::hiprtc_search());
  expect(lib + "libamd_comgr.so.3", gpu::comgr_search());
}

TEST_F(RocmTree, Conda) {
  set("CONDA_PREFIX", root() + "/conda");
  put("/conda/lib/libamdhip64.so.6");
  expect("/conda/lib/libamdhip64.so.6");
  // PyTorch's, in the same environment, is the one that PyTorch opens.
  put("/conda/lib/python3.11/site-packages/torch/lib/libamdhip64.so");
  expect("/conda/lib/python3.11/site-packages/torch/lib/libamdhip64.so");
}

TEST_F(RocmTree, AVariableComesBeforeAllFolders) {
  put("/opt/rocm/lib/libamdhip64.so.7");
  put("/elsewhere/lib/libamdhip64.so.5");
  set("HIP_PATH", root() + "/elsewhere");
  expect("/elsewhere/lib/libamdhip64.so.5");
}

TEST_F(RocmTree, WhatTheProcessHasLoadedComesFirst) {
  put("/opt/rocm/lib/libamdhip64.so.7");
  put("/application/libamdhip64.so.6");
  void* loaded = dlopen((root() + "/application/libstand_amdhip64.so.6").c_str(), RTLD_NOW);
  ASSERT_NE(loaded, nullptr) << dlerror();
  expect("/application/libamdhip64.so.6");
  dlclose(loaded);
  expect("/opt/rocm/lib/libamdhip64.so.7");
}

// hipRTC of ROCm 5 does not serve: clang does there.
TEST_F(RocmTree, HipRtcOfRocm5IsNotTaken) {
  put("/opt/rocm/lib/libhiprtc.so.5");
  EXPECT_NE(found(gpu::hiprtc_search()).find("not found"), std::string::npos);
  put("/opt/rocm-6.0.0/lib/libhiprtc.so.6");
  expect("/opt/rocm-6.0.0/lib/libhiprtc.so.6", gpu::hiprtc_search());
}

}  // namespace
}  // namespace fulmen::testing
