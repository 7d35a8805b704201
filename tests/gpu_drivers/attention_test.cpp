// Whole attention calls on fake devices: what is planned and packed is what the code object wants,
// in as many launches as planned.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fulmen/compile.h"
#include "fulmen/fulmen.h"
#include "fulmen/probe.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/shipped.h"
#include "gpu_drivers/fake_library.h"
#include "kernels/core/arguments.h"
#include "runtime/run_program.h"

namespace fulmen::testing {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 64;

// Tensors in a device's memory; nothing computes there, so their content does not matter.
class DeviceCall {
 public:
  DeviceCall(const gpu::Driver& driver, int ordinal, int64_t seqlen_q, int64_t seqlen_k)
      : driver_(driver), ordinal_(ordinal) {
    tensors.q = Tensor::bshd(memory(kBatch * seqlen_q * kHeads), DType::fp16, kBatch, seqlen_q,
                             kHeads, kDim);
    tensors.k = Tensor::bshd(memory(kBatch * seqlen_k * kKvHeads), DType::fp16, kBatch, seqlen_k,
                             kKvHeads, kDim);
    tensors.v = Tensor::bshd(memory(kBatch * seqlen_k * kKvHeads), DType::fp16, kBatch, seqlen_k,
                             kKvHeads, kDim);
    tensors.out = Tensor::bshd(memory(kBatch * seqlen_q * kHeads), DType::fp16, kBatch, seqlen_q,
                               kHeads, kDim);
  }
  ~DeviceCall() {
    for (void* p : owned_) driver_.free(ordinal_, p);
  }
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;
  void* bytes(std::size_t n) {
    Result<void*> p = driver_.allocate(ordinal_, n);
    EXPECT_TRUE(p.ok()) << p.status().message();
    owned_.push_back(p.value());
    return p.value();
  }
  AttentionTensors tensors;

 private:
  void* memory(int64_t rows) { return bytes(static_cast<std::size_t>(rows * kDim) * 2); }

  const gpu::Driver& driver_;
  int ordinal_;
  std::vector<void*> owned_;
};

class Attention : public FakeGpuTest {
 protected:
  Attention(const gpu::Driver& driver, const std::string& file) : FakeGpuTest(driver, file) {}

  void run_everywhere() {
    for (const int ordinal : {0, 1}) {
      const std::string device = std::string(driver.name()) + ":" + std::to_string(ordinal);
      for (const auto& [seqlen_q, seqlen_k] :
           {std::pair{64, 64}, std::pair{300, 300}, std::pair{1, 4096}})
        run(device, ordinal, seqlen_q, seqlen_k);
    }
  }

  void run(const std::string& device, int ordinal, int64_t seqlen_q, int64_t seqlen_k) {
    SCOPED_TRACE(device + ", " + std::to_string(seqlen_q) + " queries of " +
                 std::to_string(seqlen_k) + " keys");
    DeviceCall call(driver, ordinal, seqlen_q, seqlen_k);
    const Result<Problem> problem = make_problem(call.tensors, {});
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<Plan> planned = plan(problem.value(), device, {});
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    void* workspace =
        planned->workspace_bytes() == 0 ? nullptr : call.bytes(planned->workspace_bytes());
    int stream = 0;
    state.launches.clear();
    state.capturing = true;  // run() may be captured: no allocation, copy or wait
    const Status status =
        planned->run(&stream, call.tensors, workspace, planned->workspace_bytes());
    state.capturing = false;
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_GE(state.launches.size(), 1U);
    EXPECT_EQ(state.launches.size(), seqlen_q == 1 ? 2U : 1U)
        << planned->config().kernel << ": one launch, two with split keys";
    for (const fake::LaunchRecord& launch : state.launches) {
      EXPECT_EQ(launch.device, ordinal);
      EXPECT_EQ(launch.stream, &stream);
      ASSERT_EQ(launch.arguments.size(), sizeof(kernels::ForwardArguments));
      kernels::ForwardArguments arguments;
      std::memcpy(&arguments, launch.arguments.data(), sizeof(arguments));
      EXPECT_EQ(arguments.q.data, call.tensors.q.data);
      EXPECT_EQ(arguments.out.data, call.tensors.out.data);
      EXPECT_EQ(arguments.seqlen_k, seqlen_k);
      EXPECT_EQ(arguments.k.row, kKvHeads * kDim);
    }
    // With trust_pointers the driver is not asked about each pointer.
    AttentionOptions trusting;
    trusting.trust_pointers = true;
    const Result<Plan> quick = plan(problem.value(), device, trusting);
    ASSERT_TRUE(quick.ok()) << quick.status().message();
    const char* asks = driver.name() == "hip" ? "hipPointerGetAttributes" : "cuPointerGetAttribute";
    const auto asked = calls(asks);
    EXPECT_TRUE(quick->run(&stream, call.tensors, workspace, quick->workspace_bytes()).ok());
    EXPECT_EQ(calls(asks), asked);
    // A result cannot be waited for while the stream is captured.
    AttentionOptions verifying;
    verifying.verify = true;
    const Result<Plan> verified = plan(problem.value(), device, verifying);
    ASSERT_TRUE(verified.ok()) << verified.status().message();
    state.capturing = true;
    const Status waits =
        verified->run(&stream, call.tensors, workspace, verified->workspace_bytes());
    state.capturing = false;
    EXPECT_EQ(waits.code(), StatusCode::invalid_argument);
    EXPECT_NE(waits.message().find("is being captured"), std::string::npos) << waits.message();
    // Memory of the host, or of another device, is refused before anything is launched.
    AttentionTensors wrong = call.tensors;
    std::vector<std::byte> host(static_cast<std::size_t>(kBatch * seqlen_q * kHeads * kDim) * 2);
    wrong.q.data = host.data();
    const Status refused = planned->run(&stream, wrong, workspace, planned->workspace_bytes());
    EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
    EXPECT_NE(refused.message().find("q.data"), std::string::npos) << refused.message();
    // A failed launch reports the driver's message, the kernel and the device.
    state.failures = {{driver.name() == "hip" ? "hipModuleLaunchKernel" : "cuLaunchKernelEx", 1}};
    const Status failed =
        planned->run(&stream, call.tensors, workspace, planned->workspace_bytes());
    state.failures.clear();
    for (const std::string& part :
         {planned->config().kernel, device, std::string("invalid argument")}) {
      EXPECT_NE(failed.message().find(part), std::string::npos)
          << part << " in: " << failed.message();
    }
  }
};

class HipAttention : public Attention {
 protected:
  HipAttention() : Attention(gpu::hip_driver(), FULMEN_FAKE_ROCM "/lib/libamdhip64.so.7") {}
  void SetUp() override {
    if (!gpu::offline_clang_compiler().ok())
      GTEST_SKIP() << gpu::offline_clang_compiler().status().message();
    Attention::SetUp();
  }
};
TEST_F(HipAttention, LaunchesAreWhatTheCodeObjectsWant) { run_everywhere(); }

// Kernels that `fulmen compile --out` writes, on a machine without compilers.
TEST_F(HipAttention, PrebuiltKernelsServe) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip("gfx1100", storage, chip));
  const std::vector<gpu::Specialisation> shipped = gpu::shipped_kernels(chip, false);
  const auto forward =
      std::find_if(shipped.begin(), shipped.end(), [](const gpu::Specialisation& s) {
        return s.entry == "forward/prefill.h" && s.head_dim == 128 &&
               s.tensor_dtype() == DType::bf16 && s.band == 0;
      });
  ASSERT_NE(forward, shipped.end());
  const Result<gpu::CompileRequest> request = compile_request(*forward, chip, gpu::Platform::amd);
  ASSERT_TRUE(request.ok()) << request.status().message();
  const Result<gpu::CompiledCode> code =
      gpu::offline_clang_compiler().value()->compile(request.value());
  ASSERT_TRUE(code.ok()) << code.status().message();
  const TemporaryDirectory folder;
  ASSERT_TRUE(gpu::write_prebuilt(folder.path(), request.value(), code.value()).ok());
  setenv("FULMEN_KERNEL_PATH", folder.path().c_str(), 1);
  int compilations = 0;
  set_compile_observer(
      [](void* count, const char*, const char*, bool, double) { ++*static_cast<int*>(count); },
      &compilations);
  AttentionTensors tensors;  // planning reads no data
  tensors.q = tensors.k = tensors.v = tensors.out =
      Tensor::bshd(&compilations, DType::bf16, 1, 4096, 16, 128);
  const Result<Problem> problem = make_problem(tensors, {});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const Result<Plan> planned = plan(problem.value(), "hip:0", {});
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(compilations, 0);
  EXPECT_EQ(calls("hipModuleLoadData"), 1);
  // The other device is another chip.
  EXPECT_TRUE(plan(problem.value(), "hip:1", {}).ok());
  EXPECT_GT(compilations, 0);
  set_compile_observer(nullptr, nullptr);
  unsetenv("FULMEN_KERNEL_PATH");
}

// If every kernel leaves its outputs unwritten, all candidates are refused.
TEST_F(HipAttention, AWrongFirstUseIsRefused) {
  unsetenv("FULMEN_FIRST_USE_CHECK");
  AttentionTensors tensors;  // planning reads no data
  tensors.q = tensors.k = tensors.v = tensors.out =
      Tensor::bshd(&tensors, DType::fp32, 1, 200, 2, 32);
  const Result<Problem> problem = make_problem(tensors, {});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const auto first_use = [&](const AttentionOptions& options) {
    const Result<Plan> planned = plan(problem.value(), "hip:0", options);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    return planned.ok() ? planned->config().first_use : "";
  };
  AttentionOptions off;
  off.check_first_use = false;
  EXPECT_EQ(first_use(off), "");
  // No call that a capture forbids, which the fake would complain about.
  state.capturing = true;
  EXPECT_EQ(first_use({}), "first use not checked: a stream is being captured");
  state.capturing = false;
  // A check that cannot be made gives no verdict.
  state.failures = {{"hipMalloc", 2}};
  EXPECT_EQ(first_use({}), "first use not checked: no memory for 40960 bytes on hip:0");
  state.failures.clear();
  state.launches.clear();
  for (int n = 0; n < 2; ++n) {
    const Result<Plan> refused = plan(problem.value(), "hip:0", {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(),
              n == 0 ? StatusCode::verification_failed : StatusCode::unsupported);
    const std::string& message = refused.status().message();
    for (const char* part :
         {"hip.prefill.portable: its first use on hip:0 gave a wrong result: out[",
          "nan, expected"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
    EXPECT_EQ(state.launches.size(), 2U) << "each of two kernels is found out once";
  }
  setenv("FULMEN_FIRST_USE_CHECK", "0", 1);
}

// A device that computes nothing: each probe reports it.
TEST_F(HipAttention, ProbesTellWrongAnswers) {
  const Result<std::vector<HardwareProbe>> probes = probe_hardware("hip:0");
  ASSERT_TRUE(probes.ok()) << probes.status().message();
  const std::vector<std::pair<std::string, std::string>> expected{
      {"buffer_range", "16 of 16 words before the end were not read"},
      {"inactive_lanes", "lane 0 read 0 instead of 116"},
      {"subnormals", "fp16 flushed to 0, bf16 flushed to 0"},
      {"unaligned", "0 of 32 lanes' 16 bytes are right"},
      {"start_order", "0 of 24576 waves drew a number"}};
  ASSERT_EQ(probes->size(), expected.size());
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const HardwareProbe& probe = (*probes)[n];
    EXPECT_EQ(std::pair(probe.name, probe.found), expected[n]);
    EXPECT_FALSE(probe.as_expected);
    EXPECT_EQ(probe.probed, probe.name != "start_order");
  }
  const Result<MatrixRate> rate = matrix_rate("hip:0");
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  // 96 units x 4 workgroups x 4 waves x 4096 x 8 products of 16 x 16 x 16 in the fake's half
  // millisecond.
  EXPECT_NEAR(rate->tflops, 96.0 * 16 * 4096 * 8 * 8192 / 0.5e-3 / 1e12, 0.1);
  EXPECT_EQ(rate->instruction, "bf16 matrix instructions of gfx11");
}

class CudaAttention : public Attention {
 protected:
  CudaAttention() : Attention(gpu::cuda_driver(), FULMEN_FAKE_CUDA "/lib64/libcuda.so.1") {}
};
TEST_F(CudaAttention, LaunchesPassTheArguments) { run_everywhere(); }

// The check by default, in a stream that waits for no other: if every kernel leaves its outputs
// unwritten, all are refused.
TEST_F(CudaAttention, AWrongFirstUseIsRefused) {
  unsetenv("FULMEN_FIRST_USE_CHECK");
  AttentionTensors tensors;  // planning reads no data
  tensors.q = tensors.k = tensors.v = tensors.out =
      Tensor::bshd(&tensors, DType::fp32, 1, 200, 2, 32);
  const Result<Problem> problem = make_problem(tensors, {});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  state.failures = {{"cuStreamCreate", 2}};
  Result<Plan> planned = plan(problem.value(), "cuda:1", {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->config().first_use,
            "first use not checked: cuStreamCreate: out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
  state.failures = {{"cuMemAlloc", 2}};
  planned = plan(problem.value(), "cuda:1", {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->config().first_use,
            "first use not checked: no memory for 40960 bytes on cuda:1");
  state.failures.clear();
  state.launches.clear();
  for (int n = 0; n < 2; ++n) {
    const Result<Plan> refused = plan(problem.value(), "cuda:1", {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(),
              n == 0 ? StatusCode::verification_failed : StatusCode::unsupported);
    const std::string& message = refused.status().message();
    for (const char* part :
         {"cuda.prefill.portable: its first use on cuda:1 gave a wrong result: out[",
          "nan, expected"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
    ASSERT_EQ(state.launches.size(), 2U) << "each of two kernels is found out once";
    EXPECT_NE(state.launches.front().stream, nullptr);
  }
  for (const char* waits_for_all : {"cuCtxSynchronize", "cuMemcpy", "cuMemsetD8"})
    EXPECT_EQ(calls(waits_for_all), 0) << waits_for_all;
  EXPECT_EQ(calls("cuStreamCreate"), calls("cuStreamDestroy") + 1) << "the one that failed";
  setenv("FULMEN_FIRST_USE_CHECK", "0", 1);
}

}  // namespace
}  // namespace fulmen::testing
