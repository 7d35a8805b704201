#include "cpu/backend.h"
#include "gpu/backend.h"
#include "gpu/compile/host_code.h"
#include "plan/registry.h"

namespace fulmen {

// A new backend is a folder and a line here.
BackendList builtin_backends() {
  return {
      cpu::make_cpu_backend(gpu::make_host_code),  // it compiles score functions
      gpu::make_gpu_backend(gpu::hip_driver()),      gpu::make_gpu_backend(gpu::cuda_driver()),
      gpu::make_gpu_backend(gpu::emulated_driver()), gpu::make_gpu_backend(gpu::isa_driver()),
  };
}

}  // namespace fulmen
