// The HIP driver against a libamdhip64 and a libhiprtc that check every call.
#include <cstring>
#include <thread>

#include "gpu_drivers/fake_library.h"

namespace fulmen::testing {
namespace {

using gpu::Driver;

// 24 bytes of arguments, 1 KiB of LDS. Functions of these names are in the header that hipRTC puts
// before the source.
constexpr const char* kKernel = R"(
#define DEVICE static __attribute__((device, always_inline)) inline
DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE float tanh(float x) { return 1.0f - 2.0f / (1.0f + exp2(2.0f * x)); }
__attribute__((shared)) float lds[256];
struct Arguments { float* x; int n; float a; double b; };
extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void fulmen_kernel(const Arguments g) {
  const unsigned lane = __builtin_amdgcn_workitem_id_x();
  lds[lane] = g.x[lane] * g.a;
  __builtin_amdgcn_s_barrier();
  g.x[lane] = lds[(lane + g.n) % 64] + static_cast<float>(g.b) + tanh(g.a);
}
)";
struct Arguments {
  float* x;
  int n;
  float a;
  double b;
};

class Hip : public FakeGpuTest {
 protected:
  Hip() : FakeGpuTest(gpu::hip_driver(), FULMEN_FAKE_ROCM "/lib/libamdhip64.so.7") {}
  void SetUp() override {
    if (!gpu::offline_clang_compiler().ok())
      GTEST_SKIP() << gpu::offline_clang_compiler().status().message();
    FakeGpuTest::SetUp();
  }
};

TEST_F(Hip, DevicesAreDescribed) {
  EXPECT_EQ(driver.selectors(), (std::vector<std::string>{"0", "1"}));
  const Result<gpu::DeviceProperties> rdna = driver.properties(0);
  ASSERT_TRUE(rdna.ok()) << rdna.status().message();
  EXPECT_EQ(rdna->name, "AMD Radeon RX 7900 XTX");
  EXPECT_EQ(rdna->arch, "gfx1100");
  EXPECT_EQ(rdna->wave_size, 32);
  EXPECT_EQ(rdna->lds_bytes, 64 * 1024);
  EXPECT_EQ(rdna->compute_units, 96);
  EXPECT_EQ(rdna->memory_bytes, std::size_t{24} << 30U);
  EXPECT_EQ(rdna->cache_bytes, std::size_t{6} << 20U);
  EXPECT_NE(rdna->software.find("7.0"), std::string::npos) << rdna->software;
  const Result<gpu::DeviceProperties> cdna = driver.properties(1);
  ASSERT_TRUE(cdna.ok()) << cdna.status().message();
  EXPECT_EQ(cdna->arch, "gfx942");
  EXPECT_EQ(cdna->wave_size, 64);
}

TEST_F(Hip, ALaunchPassesWhatTheCodeObjectWants) {
  for (const int device : {0, 1}) {
    const gpu::CompiledCode code = compile_for(driver, device, kKernel);
    const Result<gpu::Module> module = driver.load(device, code.code);
    ASSERT_TRUE(module.ok()) << module.status().message();
    const Result<gpu::Function> function =
        driver.function(device, module.value(), "fulmen_kernel", 1024);
    ASSERT_TRUE(function.ok()) << function.status().message();
    const Result<void*> x = driver.allocate(device, 64 * sizeof(float));
    ASSERT_TRUE(x.ok());
    const Arguments arguments{static_cast<float*>(x.value()), 7, 0.5F, 2.25};
    int stream = 0;
    state.launches.clear();
    state.capturing = true;  // nothing but launches is allowed
    const Status status = driver.launch(
        device, function.value(), {33554431, 64, 1024, &stream, &arguments, sizeof(arguments)});
    state.capturing = false;
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(state.launches.size(), 1U);
    const fake::LaunchRecord& launch = state.launches[0];
    EXPECT_EQ(launch.kernel, "fulmen_kernel");
    EXPECT_EQ(launch.device, device);
    EXPECT_EQ(launch.workgroups, 33554431U);
    EXPECT_EQ(launch.workgroup_size, 64U);
    EXPECT_EQ(launch.lds_bytes, 0U) << "LDS is part of the code object";
    EXPECT_EQ(launch.stream, &stream);
    ASSERT_EQ(launch.arguments.size(), sizeof(arguments));
    EXPECT_EQ(std::memcmp(launch.arguments.data(), &arguments, sizeof(arguments)), 0);
    driver.free(device, x.value());
    const int before = state.modules;
    driver.unload(device, module.value());
    EXPECT_EQ(state.modules, before - 1);
  }
}

TEST_F(Hip, CodeIsLoadedWhileAStreamIsCaptured) {
  const gpu::CompiledCode code = compile_for(driver, 0, kKernel);
  state.capturing = true;
  const Result<gpu::Module> module = driver.load(0, code.code);
  ASSERT_TRUE(module.ok()) << module.status().message();
  EXPECT_TRUE(driver.function(0, module.value(), "fulmen_kernel", 1024).ok());
  state.capturing = false;
  EXPECT_FALSE(state.relaxed) << "the caller's mode is back";
  driver.unload(0, module.value());
}

TEST_F(Hip, GridsThatHipCannotCountAreRefused) {
  const gpu::CompiledCode code = compile_for(driver, 0, kKernel);
  const Result<gpu::Module> module = driver.load(0, code.code);
  ASSERT_TRUE(module.ok());
  const Result<gpu::Function> function = driver.function(0, module.value(), "fulmen_kernel", 0);
  ASSERT_TRUE(function.ok());
  const Arguments arguments{};
  for (const int64_t workgroups : {int64_t{0}, int64_t{67108864}, int64_t{1} << 60U}) {
    const Status status = driver.launch(
        0, function.value(), {workgroups, 64, 0, nullptr, &arguments, sizeof(arguments)});
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_NE(status.message().find(std::to_string(workgroups)), std::string::npos)
        << status.message();
  }
  EXPECT_EQ(calls("hipModuleLaunchKernel"), 0);
  driver.unload(0, module.value());
}

TEST_F(Hip, CodeOfAnotherChipIsRefused) {
  const gpu::CompiledCode code = compile_for(driver, 1, kKernel);
  const Result<gpu::Module> module = driver.load(0, code.code);
  ASSERT_FALSE(module.ok());
  EXPECT_NE(module.status().message().find("no kernel image is available"), std::string::npos)
      << module.status().message();
  EXPECT_NE(module.status().message().find("hipModuleLoadData"), std::string::npos)
      << module.status().message();
}

TEST_F(Hip, FunctionsThatAreNotThereAreNamed) {
  const Result<gpu::Module> module = driver.load(0, compile_for(driver, 0, kKernel).code);
  ASSERT_TRUE(module.ok());
  const Result<gpu::Function> function = driver.function(0, module.value(), "other_kernel", 0);
  ASSERT_FALSE(function.ok());
  EXPECT_NE(function.status().message().find("other_kernel"), std::string::npos)
      << function.status().message();
  driver.unload(0, module.value());
}

TEST_F(Hip, SourceThatDoesNotCompileSaysWhere) {
  const Result<const gpu::Compiler*> compiler = driver.compiler();
  ASSERT_TRUE(compiler.ok());
  EXPECT_EQ(compiler.value()->name(), "hipRTC");
  const auto code = compiler.value()->compile(
      {"broken kernel", "#line 7 \"forward/prefill.h\"\nint f( { return 1; }\n", "gfx1100", 64});
  ASSERT_FALSE(code.ok());
  for (const char* part : {"broken kernel", "gfx1100", "forward/prefill.h:7"}) {
    EXPECT_NE(code.status().message().find(part), std::string::npos)
        << part << " in " << code.status().message();
  }
}

TEST_F(Hip, MemoryIsCopiedFilledAndTold) {
  const Result<void*> memory = driver.allocate(1, 16);
  ASSERT_TRUE(memory.ok());
  const char text[16] = "fifteen letters";
  char back[16] = {};
  EXPECT_TRUE(driver.copy(1, memory.value(), text, 16).ok());
  EXPECT_TRUE(driver.copy(1, back, memory.value(), 16).ok());
  EXPECT_STREQ(back, text);
  EXPECT_TRUE(driver.fill(1, memory.value(), 0x21, 15).ok());
  EXPECT_TRUE(driver.copy(1, back, memory.value(), 16).ok());
  EXPECT_STREQ(back, "!!!!!!!!!!!!!!!");
  EXPECT_TRUE(driver.check_memory(1, memory.value()).ok());
  EXPECT_TRUE(driver.check_memory(1, static_cast<char*>(memory.value()) + 15).ok());
  const Status other = driver.check_memory(0, memory.value());
  EXPECT_EQ(other.code(), StatusCode::invalid_argument);
  EXPECT_NE(other.message().find("hip:1"), std::string::npos) << other.message();
  const Status host = driver.check_memory(0, text);
  EXPECT_EQ(host.code(), StatusCode::invalid_argument);
  EXPECT_NE(host.message().find("host"), std::string::npos) << host.message();
  driver.free(1, memory.value());
}

// As PyTorch's expandable segments and memory of another device have it: attributes name another
// device, or none.
TEST_F(Hip, MappedMemoryIsForTheDevicesThatHaveAccess) {
  const Result<void*> memory = driver.allocate(1, 16);
  ASSERT_TRUE(memory.ok());
  fake::Allocation& allocation = state.memory.begin()->second;
  allocation.mapped = true;
  for (const int owner : {1, -2}) {
    allocation.device = owner;
    allocation.other_access = 1;
    EXPECT_TRUE(driver.check_memory(0, memory.value()).ok()) << owner;
    allocation.other_access = 0;
    EXPECT_EQ(driver.check_memory(0, memory.value()).code(), StatusCode::invalid_argument) << owner;
  }
  int host = 0;
  EXPECT_FALSE(driver.check_memory(0, &host).ok());
  EXPECT_EQ(state.last_error, 0) << "left for the caller's hipGetLastError";
  driver.free(1, memory.value());
}

TEST_F(Hip, HostMemoryThatDevicesHaveElsewhereIsRefused) {
  float host[2] = {};
  state.registered = host;
  state.registered_at = host;
  EXPECT_TRUE(driver.check_memory(1, host).ok());
  state.registered_at = host + 1;
  const Status elsewhere = driver.check_memory(1, host);
  EXPECT_EQ(elsewhere.code(), StatusCode::invalid_argument);
  EXPECT_NE(elsewhere.message().find("hipHostGetDevicePointer"), std::string::npos)
      << elsewhere.message();
  state.registered = state.registered_at = nullptr;
}

TEST_F(Hip, TheCallersDeviceStaysCurrent) {
  const auto used = [&](int device) {
    const Result<void*> memory = driver.allocate(device, 64);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(state.find(memory.value())->device, device);
    driver.free(device, memory.value());
    // A thread starts on device 0, and the driver must have restored it.
    const Result<void*> first = driver.allocate(0, 64);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(state.find(first.value())->device, 0);
    driver.free(0, first.value());
  };
  used(1);
  std::thread([&] { used(1); }).join();
}

TEST_F(Hip, EventsTime) {
  const Result<gpu::Event> begin = driver.create_event(1), end = driver.create_event(1);
  ASSERT_TRUE(begin.ok() && end.ok());
  EXPECT_TRUE(driver.record(1, begin.value(), nullptr).ok());
  EXPECT_TRUE(driver.record(1, end.value(), nullptr).ok());
  const Result<float> time = driver.elapsed(1, begin.value(), end.value());
  ASSERT_TRUE(time.ok());
  EXPECT_EQ(time.value(), 0.5F);
  EXPECT_TRUE(driver.synchronize(1, nullptr).ok());
  driver.destroy_event(1, begin.value());
  driver.destroy_event(1, end.value());
}

TEST_F(Hip, EveryFailureIsToldInTheDriversWords) {
  const char* source = "extern \"C\" __attribute__((global)) void fulmen_kernel(int) {}\n";
  const Result<gpu::Module> module = driver.load(0, compile_for(driver, 0, source).code);
  ASSERT_TRUE(module.ok()) << module.status().message();
  for (const Failure& failure : failures_of("hip")) {
    state.failures = {{failure.call, 1}};
    const Status status = failure.use(driver, module.value());
    state.failures.clear();
    EXPECT_FALSE(status.ok()) << failure.call;
    EXPECT_EQ(state.last_error, 0) << failure.call << ": left for the caller's hipGetLastError";
    if (failure.call == "hipPointerGetAttributes") continue;  // ROCm 5's answer for host memory
    EXPECT_NE(status.message().find("invalid argument (hipErrorInvalidValue)"), std::string::npos)
        << failure.call << ": " << status.message();
  }
  state.failures = {{"hipMalloc", 2}};
  EXPECT_EQ(driver.allocate(0, 64).status().code(), StatusCode::out_of_memory);
  EXPECT_EQ(state.last_error, 0);
  driver.unload(0, module.value());
}

}  // namespace
}  // namespace fulmen::testing
