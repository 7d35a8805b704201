// libnvrtc.so.13 that compiles nothing: it checks its calls, and records the chip and the size of
// the kernel's arguments.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gpu_drivers/fake/fake_cubin.h"
#include "gpu_drivers/fake/fake_gpu.h"
#include "gpu_drivers/fake/seeded_fault.h"
#include "kernels/core/arguments.h"

namespace {

constexpr int kInvalidInput = 3, kInvalidOption = 5, kCompilation = 6;

struct Program {
  std::string source, log;
  fulmen::fake::FakeCubin cubin{};
};

void set_text(char* to, std::size_t bytes, const std::string& text) {
  std::memcpy(to, text.c_str(), std::min(bytes, text.size() + 1));
}

// Attention kernels take ForwardArguments; a test's own kernel says what it takes in such a
// comment.
unsigned argument_bytes(const std::string& source) {
  const std::string mark = "// argument bytes: ";
  const std::size_t at = source.find(mark);
  return at == std::string::npos
             ? static_cast<unsigned>(sizeof(fulmen::kernels::ForwardArguments))
             : static_cast<unsigned>(std::stoul(source.substr(at + mark.size())));
}

// The kernel's name, as the source's first lines say it.
std::string entry_name(const std::string& source) {
  const std::string define = "#define FULMEN_ENTRY ";
  const std::size_t at = source.find(define);
  if (at == std::string::npos) return "fulmen_kernel";
  const std::size_t name = at + define.size();
  return source.substr(name, source.find('\n', name) - name);
}

}  // namespace

FULMEN_FAKE_EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
FULMEN_FAKE_EXPORT const char* nvrtcGetErrorString(int error) {
  switch (error) {
    case kInvalidInput:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kInvalidOption:
      return "NVRTC_ERROR_INVALID_OPTION";
    case kCompilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR unknown";
  }
}
FULMEN_FAKE_EXPORT int nvrtcCreateProgram(Program** program, const char* source,
                                          const char* /*name*/, int headers,
                                          const char* const* /*texts*/,
                                          const char* const* /*names*/) {
  if (headers != 0 || *source == '\0') return kInvalidInput;
  // As hipRTC does: the code generator is opened for the first program.
  if (const char* generator = std::getenv("FULMEN_FAKE_GENERATOR"))
    dlopen(generator, RTLD_NOW | RTLD_LOCAL);
  *program = new Program{source, "", {}};
  return 0;
}
FULMEN_FAKE_EXPORT int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
FULMEN_FAKE_EXPORT int nvrtcCompileProgram(Program* program, int count,
                                           const char* const* options) {
  std::string arch;
  bool standard = false;
  for (int n = 0; n < count; ++n) {
    const std::string option = options[n];
    const std::string chip = "--gpu-architecture=";
    if (option.starts_with(chip)) arch = option.substr(chip.size());
    standard = standard || option == "-std=c++20" || option == "--std=c++20";
    // NVRTC refuses it with one dash.
    if (option.starts_with("-ptxas")) return kInvalidOption;
  }
  if (fulmen::fake::seeded_fault(program->source) == "refuse") {
    program->log = "kernel(7): error: made up by a test";
    return kCompilation;
  }
  if (!arch.starts_with("sm_") || !standard) {
    program->log = "the chip or C++20 is missing among the options";
    return kInvalidOption;
  }
  if (arch == "sm_70") {  // as CUDA 13's
    program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
    return kInvalidOption;
  }
  if (const std::size_t at = program->source.find("#error"); at != std::string::npos) {
    program->log =
        "kernel(1): error: " + program->source.substr(at, program->source.find('\n', at) - at);
    return kCompilation;
  }
  std::memcpy(program->cubin.magic, fulmen::fake::kFakeCubinMagic, sizeof(program->cubin.magic));
  set_text(program->cubin.arch, sizeof(program->cubin.arch), arch);
  set_text(program->cubin.kernel, sizeof(program->cubin.kernel), entry_name(program->source));
  program->cubin.argument_bytes = argument_bytes(program->source);
  program->log = "ptxas info    : Used 32 registers";
  return 0;
}
FULMEN_FAKE_EXPORT int nvrtcGetProgramLogSize(const Program* program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
FULMEN_FAKE_EXPORT int nvrtcGetProgramLog(const Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}
FULMEN_FAKE_EXPORT int nvrtcGetCUBINSize(const Program* /*program*/, std::size_t* bytes) {
  *bytes = sizeof(fulmen::fake::FakeCubin);
  return 0;
}
FULMEN_FAKE_EXPORT int nvrtcGetCUBIN(const Program* program, char* code) {
  std::memcpy(code, &program->cubin, sizeof(program->cubin));
  return 0;
}
