// out in q's memory: every kernel that allows it gives the same bits as with memory of its own.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "plan/registry.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// Bytes from the first to the last element.
std::size_t bytes_of(const Tensor& t) {
  int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.shape[d] == 0) return 0;
    last += (t.shape[d] - 1) * t.strides[d];
  }
  return static_cast<std::size_t>((last + 1) * size_of(t.dtype));
}

bool writes_over_q(const std::string& kernel) {
  for (const auto& backend : backends()) {
    for (const Kernel* one : backend->kernels()) {
      if (one->name() == kernel) return one->out_over_q();
    }
  }
  return false;
}

// Runs the case by the kernel with out in a copy of q's memory; returns that memory afterwards.
Status run_over_copy(const Case& c, const std::string& kernel, std::vector<std::byte>& copy) {
  AttentionTensors t = c.tensors;
  const std::size_t bytes = bytes_of(t.q);
  copy.resize(bytes + 64);
  const std::size_t to = (64 - reinterpret_cast<std::uintptr_t>(copy.data()) % 64) % 64;
  std::memcpy(copy.data() + to, t.q.data, bytes);
  t.q.data = t.out.data = copy.data() + to;
  AttentionOptions options = c.options;
  options.kernel = kernel;
  const Result<Problem> problem = make_problem(t, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan(problem.value(), "cpu", options);
  if (!planned.ok()) return planned.status();
  Status status = planned->run(nullptr, t, nullptr, 0);
  copy.erase(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(to));
  copy.resize(bytes);
  return status;
}

// Whether the elements of out, which have q's strides, are the same in both.
bool same_outputs(const Tensor& out, const std::byte* other) {
  const auto size = static_cast<int64_t>(size_of(out.dtype));
  for (int64_t b = 0; b < out.shape[0]; ++b) {
    for (int64_t i = 0; i < out.shape[1]; ++i) {
      for (int64_t h = 0; h < out.shape[2]; ++h) {
        const int64_t at = (b * out.strides[0] + i * out.strides[1] + h * out.strides[2]) * size;
        const auto* mine = static_cast<const std::byte*>(out.data) + at;
        if (std::memcmp(mine, other + at, static_cast<std::size_t>(out.shape[3] * size)) != 0)
          return false;
      }
    }
  }
  return true;
}

TEST(InPlace, TheSameBitsByEveryKernelThatMay) {
  Random random(4100);
  int runs = 0;
  for (int n = 0; n < 40; ++n) {
    CaseSpec spec = random_spec(random);
    spec.head_dim = spec.head_dim_v;
    spec.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    if (n % 4 == 0) spec.seqlen_q = random.between(65, 300);
    if (n % 8 == 1) spec.seqlen_k = random.between(500, 700);
    Case c(spec, random);
    if (c.tensors.out.strides != c.tensors.q.strides) continue;
    for (const std::string& kernel : kernels_for(c.problem(), "cpu")) {
      if (!writes_over_q(kernel)) continue;
      SCOPED_TRACE(kernel + ": " + to_string(spec));
      ASSERT_TRUE(run_kernel(c, kernel, c.options, {"cpu", 0}).ok());
      std::vector<std::byte> copy;
      const Status status = run_over_copy(c, kernel, copy);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(same_outputs(c.tensors.out, copy.data()));
      ++runs;
    }
  }
  EXPECT_GT(runs, 40);
}

struct Call {
  std::vector<float> q = std::vector<float>(4 * 8, 0.5F), k = q, v = q;
  AttentionTensors tensors;
  Call() {
    const auto view = [](std::vector<float>& x) {
      return Tensor::bshd(x.data(), DType::fp32, 1, 4, 1, 8);
    };
    tensors.q = tensors.out = view(q);
    tensors.k = view(k);
    tensors.v = view(v);
  }
  std::string refusal(const AttentionOptions& options) const {
    return attention(tensors, options, "cpu").message();
  }
};

TEST(InPlace, OtherKernelsSayWhichMay) {
  const Call call;
  const std::string said = call.refusal({.kernel = "cpu.standard.plain"});
  EXPECT_NE(
      said.find(
          "kernel cpu.standard.plain does not write over q; those that do for this problem: cpu."),
      std::string::npos)
      << said;
  EXPECT_EQ(call.q[0], 0.5F);
}

TEST(InPlace, OnlyExactlyOverQ) {
  Call call;
  call.q.resize(5 * 8, 0.5F);
  call.tensors.q.data = call.q.data();
  call.tensors.out.data = call.q.data() + 8;
  EXPECT_NE(
      call.refusal({}).find("out may be exactly q's memory, with its address, shape and strides"),
      std::string::npos);
  call.tensors.out.data = call.k.data();
  EXPECT_NE(call.refusal({}).find("overlaps k at"), std::string::npos) << call.refusal({});
}

TEST(InPlace, VerifyNeedsQ) {
  const Call call;
  EXPECT_NE(call.refusal({.verify = true})
                .find("verify (FLASH_ATTENTION_VERIFY) compares with what q was"),
            std::string::npos);
  EXPECT_EQ(call.q[0], 0.5F);
}

}  // namespace
}  // namespace fulmen::testing
