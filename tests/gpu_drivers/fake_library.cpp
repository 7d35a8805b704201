#include "gpu_drivers/fake_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/run_program.h"

namespace fulmen::testing {
namespace {

// Before main, as drivers look once a process.
const bool kEnvironment = [] {
  setenv("ROCM_PATH", FULMEN_FAKE_ROCM, 1);
  setenv("CUDA_HOME", FULMEN_FAKE_CUDA, 1);
  setenv("FULMEN_CUDA_DRIVER_HOME", FULMEN_FAKE_CUDA, 1);
  for (const char* name : {"FULMEN_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "FULMEN_KERNEL_PATH"})
    unsetenv(name);
  setenv("FULMEN_FIRST_USE_CHECK", "0", 1);  // nothing computes here
  return true;
}();

}  // namespace

fake::State& fake_state(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  auto* get = library == nullptr
                  ? nullptr
                  : reinterpret_cast<fake::State* (*)()>(dlsym(library, "fulmen_fake_state"));
  if (get != nullptr) return *get();
  ADD_FAILURE() << file << " is not what the driver has opened";
  static fake::State none;
  return none;
}

FakeGpuTest::FakeGpuTest(const gpu::Driver& opened, const std::string& file)
    : driver((static_cast<void>(kEnvironment), static_cast<void>(opened.available()), opened)),
      state(fake_state(file)) {}

void FakeGpuTest::SetUp() {
  ASSERT_TRUE(driver.available().ok()) << driver.available().message();
  state.calls.clear();
  state.complaints.clear();
  state.launches.clear();
  state.failures.clear();
  state.capturing = false;
}

void FakeGpuTest::TearDown() {
  for (const std::string& complaint : state.complaints) ADD_FAILURE() << complaint;
  EXPECT_EQ(state.memory.size(), 0U) << "allocations are left over";
  EXPECT_EQ(state.events, 0) << "events are left over";
}

int FakeGpuTest::calls(const std::string& name) const {
  return static_cast<int>(std::count(state.calls.begin(), state.calls.end(), name));
}

const std::vector<Failure>& failures_of(const std::string& driver) {
  using gpu::Driver;
  using gpu::Module;
  static int host = 0;
  const auto load = [](const Driver& d, Module) {
    return d.load(0, std::as_bytes(std::span(&host, 1))).status();
  };
  const auto function = [](const Driver& d, Module m) {
    return d.function(0, m, "fulmen_kernel", 0).status();
  };
  const auto launch = [](const Driver& d, Module m) {
    const Result<gpu::Function> f = d.function(0, m, "fulmen_kernel", 0);
    return f.ok() ? d.launch(0, f.value(), {1, 64, 0, nullptr, &host, sizeof(host)}) : f.status();
  };
  const auto allocate = [](const Driver& d, Module) { return d.allocate(0, 64).status(); };
  const auto copy = [](const Driver& d, Module) { return d.copy(0, &host, &host, sizeof(host)); };
  const auto fill = [](const Driver& d, Module) { return d.fill(0, &host, 0, sizeof(host)); };
  const auto in_stream = [](const Driver& d, Module) {
    const Result<void*> memory = d.allocate(0, sizeof(host)), stream = d.create_stream(0);
    Status status = stream.status();
    if (status.ok())
      status = d.copy_in_stream(0, stream.value(), memory.value(), &host, sizeof(host));
    if (status.ok()) status = d.fill_in_stream(0, stream.value(), memory.value(), 0, sizeof(host));
    if (stream.ok()) d.destroy_stream(0, stream.value());
    d.free(0, memory.value());
    return status;
  };
  const auto memory = [](const Driver& d, Module) { return d.check_memory(0, &host); };
  const auto synchronize = [](const Driver& d, Module) { return d.synchronize(0, nullptr); };
  const auto create_event = [](const Driver& d, Module) { return d.create_event(0).status(); };
  const auto with_event = [](const Driver& d, Module) {
    const Result<gpu::Event> event = d.create_event(0);
    if (!event.ok()) return event.status();
    Status status = d.record(0, event.value(), nullptr);
    if (status.ok()) status = d.elapsed(0, event.value(), event.value()).status();
    d.destroy_event(0, event.value());
    return status;
  };
  static const std::vector<Failure> kHip{{"hipModuleLoadData", load},
                                         {"hipModuleGetFunction", function},
                                         {"hipModuleLaunchKernel", launch},
                                         {"hipMalloc", allocate},
                                         {"hipMemcpy", copy},
                                         {"hipDeviceSynchronize", copy},
                                         {"hipMemset", fill},
                                         {"hipPointerGetAttributes", memory},
                                         {"hipStreamSynchronize", synchronize},
                                         {"hipEventCreate", create_event},
                                         {"hipEventRecord", with_event},
                                         {"hipEventSynchronize", with_event},
                                         {"hipEventElapsedTime", with_event},
                                         {"hipGetDevice", allocate}};
  static const std::vector<Failure> kCuda{{"cuLibraryLoadData", load},
                                          {"cuLibraryGetKernel", function},
                                          {"cuKernelGetFunction", function},
                                          {"cuKernelSetAttribute", function},
                                          {"cuLaunchKernelEx", launch},
                                          {"cuMemAlloc", allocate},
                                          {"cuMemcpy", copy},
                                          {"cuCtxSynchronize", copy},
                                          {"cuMemsetD8", fill},
                                          {"cuStreamCreate", in_stream},
                                          {"cuMemcpyAsync", in_stream},
                                          {"cuMemsetD8Async", in_stream},
                                          {"cuPointerGetAttribute", memory},
                                          {"cuStreamSynchronize", synchronize},
                                          {"cuEventCreate", create_event},
                                          {"cuEventRecord", with_event},
                                          {"cuEventSynchronize", with_event},
                                          {"cuEventElapsedTime", with_event},
                                          {"cuCtxPushCurrent", allocate}};
  return driver == "hip" ? kHip : kCuda;
}

gpu::CompiledCode compile_for(const gpu::Driver& driver, int device, const std::string& source,
                              int workgroup_size) {
  const Result<gpu::DeviceProperties> properties = driver.properties(device);
  const Result<const gpu::Compiler*> compiler = driver.compiler();
  if (!properties.ok() || !compiler.ok()) {
    ADD_FAILURE() << properties.status().message() << compiler.status().message();
    return {};
  }
  Result<gpu::CompiledCode> code =
      compiler.value()->compile({"test", source, properties->arch, workgroup_size});
  if (!code.ok()) ADD_FAILURE() << code.status().message();
  return code.ok() ? std::move(code).value() : gpu::CompiledCode{};
}

std::string report(const std::vector<std::string>& variables, const std::string& what) {
  std::vector<std::string> command{"/usr/bin/env"};
  command.insert(command.end(), variables.begin(), variables.end());
  command.insert(command.end(), {FULMEN_DRIVER_REPORT, what});
  const Result<std::string> output = run_program(command);
  return output.ok() ? output.value() : output.status().message();
}

}  // namespace fulmen::testing
