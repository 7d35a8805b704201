// A library built without FULMEN_GPU: its devices, and fulmen/compile.h.
#include "cpu/backend.h"
#include "fulmen/compile.h"
#include "plan/registry.h"

namespace fulmen {
namespace {

Status no_gpus() { return {StatusCode::unsupported, "this library was built without FULMEN_GPU"}; }

}  // namespace

BackendList builtin_backends() { return {cpu::make_cpu_backend(nullptr)}; }

Status check_arch(const std::string& /*arch*/) { return no_gpus(); }
Result<std::vector<KernelReport>> compile_kernels(const std::string& /*arch*/,
                                                  const CompileKernelsOptions& /*options*/) {
  return no_gpus();
}
std::vector<ExecutedInstructions> take_executed_instructions() { return {}; }
Status add_prebuilt_kernels(const std::string& /*path*/) { return no_gpus(); }
Result<int> add_prebuilt_kernels(const void* /*pack*/, std::size_t /*bytes*/) { return no_gpus(); }
void set_prebuilt_source(PrebuiltSource /*source*/, void* /*context*/) {}
std::vector<CachedKernel> cached_kernels() { return {}; }
Result<int> clear_kernel_cache() { return 0; }
void set_compile_observer(CompileObserver /*observer*/, void* /*context*/) {}
void end_compilers() noexcept {}

}  // namespace fulmen
