// NVRTC, NVIDIA's run-time compiler: source to cubin, also without a GPU. Entry points from its documentation (12 and 13).
#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

#include "gpu/compile/compiler.h"
#include "gpu/drivers/library_search.h"

namespace fulmen::gpu {
namespace {

using Program = struct ProgramHandle*;

struct Nvrtc {
  int (*nvrtcVersion)(int* major, int* minor);
  int (*nvrtcCreateProgram)(Program* program, const char* source, const char* name, int headers, const char* const* texts,
                            const char* const* names);
  int (*nvrtcCompileProgram)(Program program, int count, const char* const* options);
  int (*nvrtcGetProgramLogSize)(Program program, std::size_t* bytes);
  int (*nvrtcGetProgramLog)(Program program, char* log);
  int (*nvrtcGetCUBINSize)(Program program, std::size_t* bytes);
  int (*nvrtcGetCUBIN)(Program program, char* code);
  int (*nvrtcDestroyProgram)(Program* program);
  const char* (*nvrtcGetErrorString)(int result);
};

class NvrtcCompiler final : public Compiler {
 public:
  NvrtcCompiler(const Nvrtc& api, std::string path, int major, int minor)
      : api_(api), path_(std::move(path)), major_(major), minor_(minor) {}
  std::string_view name() const noexcept override { return "NVRTC"; }
  std::string identity() const override { return fmt::format("NVRTC {}.{}", major_, minor_); }

  Result<CompiledCode> compile(const CompileRequest& request) const override {
    Program program = nullptr;
    if (int error = api_.nvrtcCreateProgram(&program, request.source.c_str(), "kernel.cu", 0, nullptr, nullptr); error != 0) {
      return Status(StatusCode::internal, fmt::format("nvrtcCreateProgram: {}", api_.nvrtcGetErrorString(error)));
    }
    const std::string arch = "--gpu-architecture=" + request.arch;
    // ptxas reports registers and spills into the log.
    const char* options[] = {arch.c_str(), "-std=c++20", "--ptxas-options=-v"};
    const int error = api_.nvrtcCompileProgram(program, static_cast<int>(std::size(options)), options);
    Result<CompiledCode> result = take(program, request, error);
    api_.nvrtcDestroyProgram(&program);
    return result;
  }

 private:
  Result<CompiledCode> take(Program program, const CompileRequest& request, int error) const {
    CompiledCode result;
    std::size_t bytes = 0;
    if (api_.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes > 1) {
      result.log.resize(bytes);
      api_.nvrtcGetProgramLog(program, result.log.data());
      result.log.resize(bytes - 1);  // without its NUL
    }
    if (error != 0) {
      return Status(StatusCode::internal, fmt::format("kernel \"{}\" for {}: {}: {}\n{}", request.name, request.arch, path_,
                                                      api_.nvrtcGetErrorString(error), result.log));
    }
    error = api_.nvrtcGetCUBINSize(program, &bytes);
    result.code.resize(bytes);
    if (error == 0) error = api_.nvrtcGetCUBIN(program, reinterpret_cast<char*>(result.code.data()));
    if (error != 0) return Status(StatusCode::internal, fmt::format("nvrtcGetCUBIN: {}", api_.nvrtcGetErrorString(error)));
    return result;
  }

  Nvrtc api_;
  std::string path_;
  int major_, minor_;
};

Result<const Compiler*> open() {
  Result<FoundLibrary> library = find_library({.names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
                                               .home_variables = {"CUDA_HOME", "CUDA_PATH"},
                                               .system_folders = {"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64"},
                                               .python_folders = {"nvidia/*/lib", "torch/lib"},
                                               .install = "To install it: pip install nvidia-cuda-nvrtc"});
  if (!library.ok()) return library.status();
  Nvrtc api{};
  std::string missing;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library->handle, name));
    if (function == nullptr) missing += fmt::format(" {}", name);
  };
#define FULMEN_LOAD(name) load(api.name, #name)
  FULMEN_LOAD(nvrtcVersion);
  FULMEN_LOAD(nvrtcCreateProgram);
  FULMEN_LOAD(nvrtcCompileProgram);
  FULMEN_LOAD(nvrtcGetProgramLogSize);
  FULMEN_LOAD(nvrtcGetProgramLog);
  FULMEN_LOAD(nvrtcGetCUBINSize);
  FULMEN_LOAD(nvrtcGetCUBIN);
  FULMEN_LOAD(nvrtcDestroyProgram);
  FULMEN_LOAD(nvrtcGetErrorString);
#undef FULMEN_LOAD
  if (!missing.empty()) {
    return Status(StatusCode::unavailable, fmt::format("{} lacks{}: NVRTC 12 or newer is needed", library->path, missing));
  }
  int major = 0, minor = 0;
  api.nvrtcVersion(&major, &minor);
  return new NvrtcCompiler(api, library->path, major, minor);
}

}  // namespace

Result<const Compiler*> nvrtc_compiler() {
  static const Result<const Compiler*> kCompiler = open();
  return kCompiler;
}

}  // namespace fulmen::gpu
