#include "emulator/emulated_kernel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/driver.h"

namespace fulmen::testing {
namespace {

// Tests of every build run the same sources: those of ./dev test share a cache.
[[maybe_unused]] const bool kCacheIsSet = ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 0) == 0;

int ordinal_of(const std::string& arch) {
  const std::vector<std::string> selectors = gpu::emulated_driver().selectors();
  for (std::size_t n = 0; n < selectors.size(); ++n) {
    if (selectors[n] == arch) return static_cast<int>(n);
  }
  ADD_FAILURE() << "no emulated " << arch;
  return 0;
}

}  // namespace

DeviceArray::DeviceArray(std::size_t bytes) {
  const Result<void*> memory = gpu::emulated_driver().allocate(0, bytes);
  EXPECT_TRUE(memory.ok());
  data_ = memory.ok() ? memory.value() : nullptr;
}
DeviceArray::~DeviceArray() { gpu::emulated_driver().free(0, data_); }

KernelText sm90_text(std::string body, int lds_bytes) {
  return {.arch = "sm_90a",
          .body = std::move(body),
          .headers = "#include \"targets/sm90/target.h\"\n",
          .workgroup_size = 64,
          .lds_bytes = lds_bytes};
}

Status run_request(const gpu::CompileRequest& request, int lds_bytes, const void* arguments,
                   std::size_t bytes, int64_t workgroups, bool programmatic_launch) {
  const gpu::Driver& driver = gpu::emulated_driver();
  const Result<const gpu::Compiler*> compiler = gpu::host_compiler();
  if (!compiler.ok()) return compiler.status();
  const Result<gpu::CompiledCode> code = gpu::cached_compile(compiler.value(), {}, request);
  if (!code.ok()) return code.status();
  const int device = ordinal_of(request.arch);
  const Result<gpu::Module> module = driver.load(device, code->code);
  if (!module.ok()) return module.status();
  const Result<gpu::Function> function =
      driver.function(device, module.value(), "fulmen_kernel", lds_bytes);
  Status status = function.status();
  if (function.ok()) {
    status = driver.launch(device, function.value(),
                           {workgroups, request.workgroup_size, lds_bytes, nullptr, arguments,
                            bytes, programmatic_launch});
  }
  driver.unload(device, module.value());
  return status;
}

Status run_text(const KernelText& text, void* x, int workgroups) {
  std::string storage;
  gpu::Chip chip{};
  EXPECT_TRUE(gpu::find_chip(text.arch, storage, chip));
  const std::string source =
      "#include \"core/base.h\"\n" + text.headers +
      "namespace fulmen::kernels {\nstruct Arguments { float* x; };\ninline void kernel(const "
      "Arguments& a) {\n" +
      text.body +
      "\n}\n}\nFULMEN_CLUSTER_KERNEL(fulmen::kernels::Arguments, fulmen::kernels::kernel, " +
      std::to_string(text.cluster) + ")\n";
  const Result<std::string> whole =
      gpu::kernel_source_of(source, "", chip, gpu::Platform::emulated);
  if (!whole.ok()) return whole.status();
  return run_request({"test", whole.value(), text.arch, text.workgroup_size}, text.lds_bytes, &x,
                     sizeof(x), workgroups, text.programmatic_launch);
}

std::string expect_report(KernelText text, const Change& change, void* x, int workgroups) {
  const std::size_t at = text.body.find(change.from);
  EXPECT_NE(at, std::string::npos) << change.from;
  if (at == std::string::npos) return {};
  text.body.replace(at, std::string(change.from).size(), change.to);
  const Status broken = run_text(text, x, workgroups);
  EXPECT_EQ(broken.code(), StatusCode::internal);
  EXPECT_NE(broken.message().find(change.report), std::string::npos) << broken.message();
  return broken.message();
}

}  // namespace fulmen::testing
