// libhiprtc.so.7 over an installed clang.
#include <cstring>
#include <string>
#include <vector>

#include "gpu/compile/toolchains/compiler.h"
#include "gpu_drivers/fake/fake_gpu.h"
#include "gpu_drivers/fake/seeded_fault.h"

namespace {

// hipRTC puts all of hip_runtime.h before the source, including the overloads of mathematical
// functions for float.
constexpr const char* kRuntimeHeader = R"(
#define __device__ __attribute__((device))
static inline __device__ float exp2(float x) { return __builtin_exp2f(x); }
static inline __device__ float log2(float x) { return __builtin_log2f(x); }
static inline __device__ float tanh(float x) { return x; }
)";
constexpr int kInvalidInput = 3, kInvalidOption = 5, kCompilation = 6;

struct Program {
  std::string source, name, log;
  std::vector<std::byte> code;
};

// A kernel begins with the fault that a test seeds: a barrier that only half of a wave reaches, or
// an array that only memory can hold.
void seed(const std::string& fault, std::string& source) {
  const std::string body = "body(arguments);";
  const std::size_t at = source.find(body);
  if (fault.empty() || at == std::string::npos) return;
  const std::string item = "__builtin_amdgcn_workitem_id_x()";
  if (fault == "barrier")
    source.insert(at, "if (" + item + " % 32 < 16) __builtin_amdgcn_s_barrier(); ");
  if (fault.starts_with("scratch:")) {
    const std::string words = fault.substr(std::strlen("scratch:"));
    source.insert(at, "volatile int many[" + words + "]; many[" + item + " % " + words + "] = 1; ");
  }
}

}  // namespace

FULMEN_FAKE_EXPORT int hiprtcVersion(int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
FULMEN_FAKE_EXPORT const char* hiprtcGetErrorString(int error) {
  switch (error) {
    case kInvalidInput:
      return "HIPRTC_ERROR_INVALID_INPUT";
    case kInvalidOption:
      return "HIPRTC_ERROR_INVALID_OPTION";
    case kCompilation:
      return "HIPRTC_ERROR_COMPILATION";
    default:
      return "HIPRTC_ERROR_INTERNAL_ERROR";
  }
}
FULMEN_FAKE_EXPORT int hiprtcCreateProgram(Program** program, const char* source, const char* name,
                                           int headers, const char* const* /*texts*/,
                                           const char* const* /*names*/) {
  if (headers != 0 || *source == '\0') return kInvalidInput;
  *program = new Program{source, name == nullptr ? "" : name, "", {}};
  return 0;
}
FULMEN_FAKE_EXPORT int hiprtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
FULMEN_FAKE_EXPORT int hiprtcCompileProgram(Program* program, int count,
                                            const char* const* options) {
  fulmen::gpu::CompileRequest request{
      .name = program->name, .source = kRuntimeHeader + program->source, .arch = ""};
  bool standard = false, single_issue = false;
  for (int n = 0; n < count; ++n) {
    const std::string option = options[n];
    if (option.starts_with("--offload-arch="))
      request.arch = option.substr(std::strlen("--offload-arch="));
    standard = standard || option == "-std=c++20";
    // Two options: hipRTC passes the option after "-mllvm" to its second step, which makes the
    // code.
    single_issue = single_issue || (option == "-amdgpu-enable-vopd=0" && n > 0 &&
                                    std::strcmp(options[n - 1], "-mllvm") == 0);
  }
  if (request.arch.empty() || !standard) {
    program->log = "the chip or C++20 is missing among the options";
    return kInvalidOption;
  }
  if (request.arch.starts_with("gfx11") && !single_issue) {
    program->log = "dual instructions are allowed on RDNA3";
    return kInvalidOption;
  }
  const std::string fault = fulmen::fake::seeded_fault(request.source);
  if (fault == "refuse") {
    program->log =
        "In file included from kernel:1:\nkernel:7:1: error: made up by a test\n1 error generated";
    return kCompilation;
  }
  seed(fault, request.source);
  const auto clang = fulmen::gpu::offline_clang_compiler();
  if (!clang.ok()) {
    program->log = clang.status().message();
    return kCompilation;
  }
  auto compiled = clang.value()->compile(request);
  if (!compiled.ok()) {
    program->log = compiled.status().message();
    return kCompilation;
  }
  program->code = compiled->code;
  program->log = compiled->log;
  return 0;
}
FULMEN_FAKE_EXPORT int hiprtcGetProgramLogSize(const Program* program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
FULMEN_FAKE_EXPORT int hiprtcGetProgramLog(const Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}
FULMEN_FAKE_EXPORT int hiprtcGetCodeSize(const Program* program, std::size_t* bytes) {
  *bytes = program->code.size();
  return 0;
}
FULMEN_FAKE_EXPORT int hiprtcGetCode(const Program* program, char* code) {
  std::memcpy(code, program->code.data(), program->code.size());
  return 0;
}
