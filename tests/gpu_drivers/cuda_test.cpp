// The CUDA driver against a libcuda and a libnvrtc that check every call.
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "gpu_drivers/fake_library.h"

namespace fulmen::testing {
namespace {

constexpr const char* kKernel = "// argument bytes: 24\n";
constexpr const char* kLibrary = FULMEN_FAKE_CUDA "/lib64/libcuda.so.1";
struct Arguments {
  float* x;
  int n;
  float a;
  double b;
};

// A context that an application made itself, current as long as this lives.
class OwnContext {
 public:
  explicit OwnContext(int device) {
    function<int(void**, unsigned, int)>("cuCtxCreate_v2")(&context_, 0, device);
  }
  ~OwnContext() { function<int(void*)>("cuCtxDestroy_v2")(context_); }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  const void* get() const { return context_; }

 private:
  template <class Function>
  static Function* function(const char* name) {
    return reinterpret_cast<Function*>(dlsym(dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD), name));
  }
  void* context_ = nullptr;
};

class Cuda : public FakeGpuTest {
 protected:
  Cuda() : FakeGpuTest(gpu::cuda_driver(), kLibrary) {}

  struct Loaded {
    gpu::Module module;
    gpu::Function function;
  };
  Loaded load(int device, int lds_bytes) {
    Result<gpu::Module> module = driver.load(device, compile_for(driver, device, kKernel).code);
    EXPECT_TRUE(module.ok()) << module.status().message();
    Result<gpu::Function> function =
        driver.function(device, module.value(), "fulmen_kernel", lds_bytes);
    EXPECT_TRUE(function.ok()) << function.status().message();
    return {module.value(), function.value()};
  }
};

TEST_F(Cuda, DevicesAreDescribed) {
  EXPECT_EQ(driver.selectors(), (std::vector<std::string>{"0", "1"}));
  const Result<gpu::DeviceProperties> hopper = driver.properties(0);
  ASSERT_TRUE(hopper.ok()) << hopper.status().message();
  EXPECT_EQ(hopper->name, "NVIDIA H200");
  EXPECT_EQ(hopper->arch, "sm_90a");
  EXPECT_EQ(hopper->wave_size, 32);
  EXPECT_EQ(hopper->lds_bytes, 227 * 1024);
  EXPECT_EQ(hopper->compute_units, 132);
  EXPECT_EQ(hopper->cache_bytes, std::size_t{50} << 20U);
  for (const char* part : {"13.0", "NVRTC"})
    EXPECT_NE(hopper->software.find(part), std::string::npos) << hopper->software;
  EXPECT_EQ(driver.properties(1)->arch, "sm_80");
}

TEST_F(Cuda, ALaunchPassesTheStruct) {
  for (const int device : {0, 1}) {
    const auto [module, function] = load(device, 100 * 1024);
    const Arguments arguments{nullptr, 7, 0.5F, 2.25};
    int stream = 0;
    state.launches.clear();
    // Nothing but launches is allowed, and code must be on the device already.
    state.capturing = true;
    const Status status = driver.launch(
        device, function, {2147483647, 256, 100 * 1024, &stream, &arguments, sizeof(arguments)});
    state.capturing = false;
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(state.launches.size(), 1U);
    const fake::LaunchRecord& launch = state.launches[0];
    EXPECT_EQ(launch.device, device);
    EXPECT_EQ(launch.workgroups, 2147483647U);
    EXPECT_EQ(launch.workgroup_size, 256U);
    EXPECT_EQ(launch.lds_bytes, 100U * 1024);
    EXPECT_EQ(launch.stream, &stream);
    ASSERT_EQ(launch.arguments.size(), sizeof(arguments));
    EXPECT_EQ(std::memcmp(launch.arguments.data(), &arguments, sizeof(arguments)), 0);
    driver.unload(device, module);
  }
}

TEST_F(Cuda, CodeIsLoadedWhileAStreamIsCaptured) {
  const gpu::CompiledCode compiled = compile_for(driver, 0, kKernel);
  ASSERT_TRUE(driver.synchronize(0, nullptr).ok());  // who captures has a context
  state.capturing = true;
  const Result<gpu::Module> module = driver.load(0, compiled.code);
  ASSERT_TRUE(module.ok()) << module.status().message();
  EXPECT_TRUE(driver.function(0, module.value(), "fulmen_kernel", 100 * 1024).ok());
  state.capturing = false;
  EXPECT_FALSE(state.relaxed) << "the caller's mode is back";
  driver.unload(0, module.value());
}

TEST_F(Cuda, TheCallersContextIsUsedAndKept) {
  const auto [module, function] = load(0, 0);
  const Arguments arguments{};
  const gpu::Launch launch{1, 64, 0, nullptr, &arguments, sizeof(arguments)};
  const void* primary = nullptr;
  ASSERT_TRUE(driver.launch(0, function, launch).ok());
  primary = state.launches.back().context;
  {
    const OwnContext own(0);
    ASSERT_TRUE(driver.launch(0, function, launch).ok());
    EXPECT_EQ(state.launches.back().context, own.get()) << "streams of the caller belong to it";
  }
  {
    const OwnContext other(1);
    ASSERT_TRUE(driver.launch(0, function, launch).ok());
    EXPECT_EQ(state.launches.back().context, primary) << "the current context is another device's";
    const Result<void*> memory = driver.allocate(1, 64);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(state.find(memory.value())->device, 1);
    driver.free(1, memory.value());
  }  // the fake complains if `other` is not current any more
  std::thread([&, function = function] {
    EXPECT_TRUE(driver.launch(0, function, launch).ok());
  }).join();
  EXPECT_EQ(state.launches.back().context, primary);
  driver.unload(0, module);
}

TEST_F(Cuda, KernelsThatWaitThemselvesStartEarlyWhereTheDeviceCan) {
  for (const int device : {0, 1}) {  // of sm_90 and sm_80
    const auto [module, function] = load(device, 0);
    const Arguments arguments{};
    gpu::Launch launch{1, 64, 0, nullptr, &arguments, sizeof(arguments)};
    ASSERT_TRUE(driver.launch(device, function, launch).ok());
    EXPECT_FALSE(state.launches.back().early);
    launch.programmatic_launch = true;
    ASSERT_TRUE(driver.launch(device, function, launch).ok());
    EXPECT_EQ(state.launches.back().early, device == 0);
    driver.unload(device, module);
  }
}

TEST_F(Cuda, GridsThatCudaCannotCountAreRefused) {
  const auto [module, function] = load(0, 0);
  const Arguments arguments{};
  const Status status = driver.launch(
      0, function, {int64_t{2147483648}, 64, 0, nullptr, &arguments, sizeof(arguments)});
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("2147483648"), std::string::npos) << status.message();
  EXPECT_EQ(calls("cuLaunchKernelEx"), 0);
  driver.unload(0, module);
}

TEST_F(Cuda, CodeOfAnotherChipIsRefusedBeforeALaunch) {
  const Result<gpu::Module> module = driver.load(1, compile_for(driver, 0, kKernel).code);
  ASSERT_TRUE(module.ok()) << "libraries belong to no device";
  const Result<gpu::Function> function = driver.function(1, module.value(), "fulmen_kernel", 0);
  ASSERT_FALSE(function.ok());
  EXPECT_NE(function.status().message().find("no kernel image is available"), std::string::npos)
      << function.status().message();
  driver.unload(1, module.value());
}

TEST_F(Cuda, FunctionsThatAreNotThereAreNamed) {
  const Result<gpu::Module> module = driver.load(0, compile_for(driver, 0, kKernel).code);
  ASSERT_TRUE(module.ok());
  const Result<gpu::Function> function = driver.function(0, module.value(), "other_kernel", 0);
  ASSERT_FALSE(function.ok());
  EXPECT_NE(function.status().message().find("other_kernel"), std::string::npos)
      << function.status().message();
  driver.unload(0, module.value());
}

TEST_F(Cuda, SourceThatDoesNotCompileSaysWhy) {
  const Result<const gpu::Compiler*> compiler = driver.compiler();
  ASSERT_TRUE(compiler.ok());
  const auto code = compiler.value()->compile({"broken kernel", "#error a reason\n", "sm_80", 64});
  ASSERT_FALSE(code.ok());
  for (const char* part :
       {"broken kernel", "sm_80", "NVRTC_ERROR_COMPILATION", "#error a reason"}) {
    EXPECT_NE(code.status().message().find(part), std::string::npos)
        << part << " in " << code.status().message();
  }
}

TEST_F(Cuda, AChipThatNvrtcDoesNotKnowIsSaidWithTheVersionThatDoes) {
  const auto code = driver.compiler().value()->compile({"old", "int x;\n", "sm_70", 64});
  EXPECT_EQ(code.status().code(), StatusCode::unavailable);
  for (const char* part :
       {"NVRTC 13.0", "does not compile for sm_70", "pip install nvidia-cuda-nvrtc-cu12"}) {
    EXPECT_NE(code.status().message().find(part), std::string::npos)
        << part << " in " << code.status().message();
  }
}

TEST_F(Cuda, MemoryIsCopiedFilledAndTold) {
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
  EXPECT_TRUE(driver.check_memory(1, static_cast<char*>(memory.value()) + 15).ok());
  const Status other = driver.check_memory(0, memory.value());
  EXPECT_EQ(other.code(), StatusCode::invalid_argument);
  EXPECT_NE(other.message().find("cuda:1"), std::string::npos) << other.message();
  const Status host = driver.check_memory(0, text);
  EXPECT_EQ(host.code(), StatusCode::invalid_argument);
  EXPECT_NE(host.message().find("host"), std::string::npos) << host.message();
  driver.free(1, memory.value());
}

// A peer's memory, and memory that is mapped for several devices, as PyTorch's expandable segments
// are.
TEST_F(Cuda, MemoryOfAnotherDeviceIsForThoseThatHaveAccess) {
  const Result<void*> memory = driver.allocate(1, 16);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(driver.check_memory(0, memory.value()).code(), StatusCode::invalid_argument);
  state.memory.begin()->second.other_access = 1;
  const Status status = driver.check_memory(0, memory.value());
  EXPECT_TRUE(status.ok()) << status.message();
  driver.free(1, memory.value());
}

TEST_F(Cuda, EventsTime) {
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

TEST_F(Cuda, EveryFailureIsToldInTheDriversWords) {
  const auto [module, function] = load(0, 0);
  for (const Failure& failure : failures_of("cuda")) {
    state.failures = {{failure.call, 700}};
    const Status status = failure.use(driver, module);
    state.failures.clear();
    EXPECT_FALSE(status.ok()) << failure.call;
    if (failure.call == "cuPointerGetAttribute") continue;  // its answer for host memory
    EXPECT_NE(status.message().find(
                  "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"),
              std::string::npos)
        << failure.call << ": " << status.message();
  }
  state.failures = {{"cuMemAlloc", 2}};
  EXPECT_EQ(driver.allocate(0, 64).status().code(), StatusCode::out_of_memory);
  driver.unload(0, module);
}

}  // namespace
}  // namespace fulmen::testing
