// If a kernel cannot be made ready, clang is tried, then the next candidate; if none is left, the
// error is clear. A fake compiler spoils the kernels whose source has a text (fake/seeded_fault.h).
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/compile.h"
#include "fulmen/fulmen.h"
#include "fulmen/hooks.h"
#include "gpu/compile/report/amd_disassembler.h"
#include "gpu_drivers/fake_library.h"

namespace fulmen::testing {
namespace {

constexpr const char* kShort = "fulmen::kernels::short_sequence)";

// Each test has a head_dim of its own: a process keeps the kernels that it has loaded.
Problem short_problem(int64_t head_dim, DType dtype = DType::bf16) {
  AttentionTensors tensors;  // planning reads no data
  tensors.q = tensors.k = tensors.v = tensors.out =
      Tensor::bshd(&tensors, dtype, 2, 100, 4, head_dim);
  return make_problem(tensors, {}).value();
}

Problem short_gradients(int64_t head_dim) {
  AttentionTensors t;
  t.q = t.k = t.v = t.out = t.dout = t.dq = Tensor::bshd(&t, DType::bf16, 2, 64, 4, head_dim);
  t.lse = Tensor::bhqk(&t, DType::fp32, 2, 4, 64, 1);
  return make_backward_problem(t, {}).value();
}

template <class Base>
class Refusal : public Base {
 protected:
  using Base::Base;
  void SetUp() override {
    Base::SetUp();
    set_log_callback(
        [](void* all, const char* line) {
          static_cast<std::vector<std::string>*>(all)->emplace_back(line);
        },
        &log_);
    set_compile_observer([](void* count, const char*, const char*, bool done,
                            double) { *static_cast<int*>(count) += done ? 1 : 0; },
                         &compilations_);
  }
  void TearDown() override {
    set_log_callback(nullptr, nullptr);
    set_compile_observer(nullptr, nullptr);
    ::unsetenv("FULMEN_FAKE_COMPILER");
    ::unsetenv("FULMEN_AMD_COMPILER");
    ::setenv("FULMEN_FIRST_USE_CHECK", "0", 1);
    Base::TearDown();
  }
  static void spoil(const std::string& fault, const std::string& text) {
    ::setenv("FULMEN_FAKE_COMPILER", (fault + " " + text).c_str(), 1);
  }
  // The lines of the log that have a text.
  std::vector<std::string> said(const std::string& text) const {
    std::vector<std::string> lines;
    for (const std::string& line : log_) {
      if (line.find(text) != std::string::npos) lines.push_back(line);
    }
    return lines;
  }
  // Expects that the plan takes `next` and passes over `refused`, for a reason that has all parts,
  // and that one line of the log says so.
  void expect_passed_over(const Problem& problem, const std::string& device,
                          const std::string& refused, const std::string& next,
                          const std::vector<std::string>& parts) {
    for (int round = 0; round < 2; ++round) {
      const int before = compilations_;
      const Result<Plan> planned = plan(problem, device);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_EQ(planned->config().kernel, next);
      const std::string explained = planned->explain();
      const std::size_t at = explained.find("\n  not " + refused + ": ");
      ASSERT_NE(at, std::string::npos) << explained;
      const std::string sentence = explained.substr(at + 1, explained.find('\n', at + 1) - at - 1);
      const std::vector<std::string> lines =
          said("kernel " + refused + " is passed over on " + device + ", " + next + " serves: ");
      ASSERT_EQ(lines.size(), 1U) << "round " << round;
      for (const std::string& part : parts) {
        EXPECT_NE(sentence.find(part), std::string::npos) << part << " in: " << sentence;
        EXPECT_NE(lines[0].find(part), std::string::npos) << part << " in: " << lines[0];
      }
      EXPECT_TRUE(round == 0 || compilations_ == before) << "what is known is compiled again";
    }
  }
  static void expect_error(const Result<Plan>& planned, StatusCode code,
                           const std::vector<std::string>& parts) {
    ASSERT_FALSE(planned.ok());
    EXPECT_EQ(planned.status().code(), code) << planned.status().message();
    for (const std::string& part : parts) {
      EXPECT_NE(planned.status().message().find(part), std::string::npos)
          << part << " in: " << planned.status().message();
    }
  }

 private:
  std::vector<std::string> log_;
  int compilations_ = 0;
};

class Hip : public FakeGpuTest {
 protected:
  Hip() : FakeGpuTest(gpu::hip_driver(), FULMEN_FAKE_ROCM "/lib/libamdhip64.so.7") {}
  void SetUp() override {
    if (!gpu::offline_clang_compiler().ok())
      GTEST_SKIP() << gpu::offline_clang_compiler().status().message();
    if (!gpu::find_objdump().ok()) GTEST_SKIP() << gpu::find_objdump().status().message();
    FakeGpuTest::SetUp();
    ::setenv("FULMEN_AMD_COMPILER", "hiprtc", 1);  // alone: clang does not help
  }
};
using HipRefusal = Refusal<Hip>;

TEST_F(HipRefusal, WhatDoesNotCompileMakesRoom) {
  spoil("refuse", kShort);
  expect_passed_over(short_problem(24), "hip:1", "hip.short.cdna3", "hip.prefill.cdna3",
                     {"HIPRTC_ERROR_COMPILATION", "kernel:7:1: error: made up by a test"});
}

TEST_F(HipRefusal, WrongMachineCodeMakesRoom) {
  spoil("barrier", kShort);
  expect_passed_over(short_problem(32), "hip:0", "hip.short.gfx11", "hip.prefill.gfx11",
                     {"what hipRTC made of it is wrong: s_barrier", "FULMEN_AMD_CHECK=0"});
  ::setenv("FULMEN_AMD_CHECK", "0", 1);
  const Result<Plan> unchecked = plan(short_problem(32), "hip:0");
  ::unsetenv("FULMEN_AMD_CHECK");
  ASSERT_TRUE(unchecked.ok()) << unchecked.status().message();
  EXPECT_EQ(unchecked->config().kernel, "hip.short.gfx11");
}

TEST_F(HipRefusal, WrongGradientsMakeRoom) {
  spoil("barrier", "fulmen::kernels::short_backward)");
  expect_passed_over(short_gradients(32), "hip:0", "hip.short_backward.gfx11", "hip.backward.gfx11",
                     {"s_barrier"});
}

// hipRTC was not asked for: clang, of whatever version, may do better, and the kernel stays.
TEST_F(HipRefusal, ClangCompilesWhatHiprtcCannot) {
  ::unsetenv("FULMEN_AMD_COMPILER");
  for (const auto& [fault, head_dim, why] :
       {std::tuple{"refuse", int64_t{48}, "kernel:7:1: error: made up by a test"},
        {"barrier", int64_t{56}, "what hipRTC made of it is wrong: s_barrier"}}) {
    spoil(fault, kShort);
    const Result<Plan> planned = plan(short_problem(head_dim), "hip:0");
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned->config().kernel, "hip.short.gfx11");
    const std::string explained = planned->explain();
    for (const std::string& part :
         {std::string("was compiled by clang, as hipRTC could not: "), std::string(why)}) {
      EXPECT_NE(explained.find(part), std::string::npos) << part << " in: " << explained;
    }
    EXPECT_EQ(said(why).size(), 1U);
    EXPECT_TRUE(said("is passed over").empty());
  }
}

TEST_F(HipRefusal, WhereNoneIsLeftTheErrorSaysWhy) {
  spoil("refuse", "");
  expect_error(plan(short_problem(64), "hip:0"), StatusCode::internal,
               {"HIPRTC_ERROR_COMPILATION", "1 error generated"});
  spoil("barrier", "");
  expect_error(plan(short_problem(72), "hip:0"), StatusCode::verification_failed,
               {"no kernel is left",
                "hip.short.gfx11: ", "hip.prefill.gfx11: ", "hip.prefill.portable: ", "s_barrier"});
  EXPECT_TRUE(said("is passed over").empty());
}

TEST_F(HipRefusal, AForcedKernelIsAnError) {
  AttentionOptions forced;
  forced.kernel = "hip.short.gfx11";
  spoil("barrier", kShort);
  expect_error(plan(short_problem(80), "hip:0", forced), StatusCode::verification_failed,
               {"hip.short.gfx11: ", "s_barrier"});
  spoil("refuse", kShort);
  expect_error(plan(short_problem(88), "hip:0", forced), StatusCode::internal,
               {"made up by a test"});
}

// A little scratch costs little and is noted. A kernel that has more scratch than registers is
// passed over, unless it was forced.
TEST_F(HipRefusal, MuchScratchMakesRoom) {
  spoil("scratch:300", kShort);
  expect_passed_over(short_problem(96), "hip:0", "hip.short.gfx11", "hip.prefill.gfx11",
                     {"bytes of scratch a lane, up to 1024 are accepted"});
  AttentionOptions forced;
  forced.kernel = "hip.short.gfx11";
  const Result<Plan> asked = plan(short_problem(96), "hip:0", forced);
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  EXPECT_NE(asked->explain().find("bytes of scratch a lane"), std::string::npos)
      << asked->explain();
  spoil("scratch:30", kShort);
  const Result<Plan> little = plan(short_problem(104), "hip:0");
  ASSERT_TRUE(little.ok()) << little.status().message();
  EXPECT_EQ(little->config().kernel, "hip.short.gfx11");
  EXPECT_NE(little->explain().find("bytes of scratch a lane"), std::string::npos)
      << little->explain();
}

// A kernel with much scratch is better than none.
TEST_F(HipRefusal, WhereAllHaveMuchScratchTheBestServes) {
  spoil("scratch:300", "");
  const Result<Plan> planned = plan(short_problem(8), "hip:0");
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->config().kernel, "hip.short.gfx11");
  EXPECT_NE(planned->explain().find("\n  not hip.prefill.gfx11: its compiler gave "),
            std::string::npos)
      << planned->explain();
}

TEST_F(HipRefusal, WhatTheDeviceDoesNotTakeIsSaid) {
  state.failures = {{"hipModuleLoadData", 1}};
  AttentionOptions forced;
  forced.kernel = "hip.short.gfx11";
  expect_error(plan(short_problem(24, DType::fp16), "hip:0", forced), StatusCode::internal,
               {"hipModuleLoadData", "invalid argument"});
  state.failures.clear();
  ::setenv("FULMEN_FIRST_USE_CHECK", "1", 1);
  state.failures = {{"hipModuleLaunchKernel", 1}};
  expect_error(plan(short_problem(40, DType::fp16), "hip:0"), StatusCode::verification_failed,
               {"hip.short.gfx11: its first use on hip:0 did not run: ",
                "hip.prefill.gfx11: its first use", "invalid argument"});
}

class Cuda : public FakeGpuTest {
 protected:
  Cuda() : FakeGpuTest(gpu::cuda_driver(), FULMEN_FAKE_CUDA "/lib64/libcuda.so.1") {}
};
using CudaRefusal = Refusal<Cuda>;

TEST_F(CudaRefusal, WhatDoesNotCompileMakesRoom) {
  spoil("refuse", kShort);
  const Result<Plan> planned = plan(short_problem(16), "cuda:0");
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  expect_passed_over(short_problem(16), "cuda:0", "cuda.short.sm80", planned->config().kernel,
                     {"NVRTC_ERROR_COMPILATION", "error: made up by a test"});
}

}  // namespace
}  // namespace fulmen::testing
