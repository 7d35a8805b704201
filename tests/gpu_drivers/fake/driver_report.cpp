// Prints a driver's or compiler's answers in a process of its own: driver_report
// hip|hip_software|cuda|nvrtc|cpu|lists. The last two print which of the vendors' libraries a
// process has opened that planned on the CPU, and one that has listed all devices.
#include <array>
#include <cstdio>
#include <fstream>
#include <string>

#include "fulmen/fulmen.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/driver.h"

namespace {

constexpr const char* kKernel = R"(
struct Arguments { float* x; int n; };
extern "C" __global__ void fulmen_kernel(const __grid_constant__ Arguments a) {
  if (static_cast<int>(threadIdx.x) < a.n) a.x[threadIdx.x] *= 2.0f;
}
)";

int report(const fulmen::Status& status) {
  std::printf("%s\n", status.ok() ? "available" : status.message().c_str());
  return 0;
}

int print_opened_libraries() {
  std::ifstream maps("/proc/self/maps");
  std::string all((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>()),
      opened = "opened:";
  for (const char* library : {"libcuda.so", "libamdhip64.so", "libnvrtc.so"}) {
    if (all.find(library) != std::string::npos) opened += std::string(" ") + library;
  }
  std::printf("%s\n", opened.c_str());
  return 0;
}

// The files of the HIP runtime that are mapped, and what the driver says of its software.
int describe_hip() {
  const fulmen::Status status = fulmen::gpu::hip_driver().available();
  if (!status.ok()) return report(status);
  std::ifstream maps("/proc/self/maps");
  std::string last;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (line.find("libamdhip64") == std::string::npos || line.substr(at) == last) continue;
    last = line.substr(at);
    std::printf("%s\n", last.c_str());
  }
  const auto properties = fulmen::gpu::hip_driver().properties(0);
  if (!properties.ok()) return report(properties.status());
  std::printf("%s\n", properties->software.c_str());
  return 0;
}

int plan_on_cpu() {
  std::array<float, 8> x{};
  fulmen::AttentionTensors tensors;
  tensors.q = tensors.k = tensors.v =
      fulmen::Tensor::bshd(x.data(), fulmen::DType::fp32, 1, 1, 1, 4);
  tensors.out = fulmen::Tensor::bshd(x.data() + 4, fulmen::DType::fp32, 1, 1, 1, 4);
  if (const fulmen::Status status = fulmen::attention(tensors, {}); !status.ok())
    return report(status);
  return print_opened_libraries();
}

int compile() {
  const auto compiler = fulmen::gpu::nvrtc_compiler();
  if (!compiler.ok()) return report(compiler.status());
  const auto code = compiler.value()->compile({"probe", kKernel, "sm_80", 64});
  if (!code.ok()) return report(code.status());
  const auto* bytes = reinterpret_cast<const unsigned char*>(code->code.data());
  // ELF's e_machine: 190 is EM_CUDA.
  std::printf("%s: machine %d\n%s\n", compiler.value()->identity("sm_80").c_str(),
              bytes[18] + 256 * bytes[19], code->log.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "hip") return report(fulmen::gpu::hip_driver().available());
  if (what == "hip_software") return describe_hip();
  if (what == "cuda") return report(fulmen::gpu::cuda_driver().available());
  if (what == "nvrtc") return compile();
  if (what == "cpu") return plan_on_cpu();
  if (what == "lists") {
    fulmen::devices();
    return print_opened_libraries();
  }
  return 2;
}
