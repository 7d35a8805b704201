// Rows whose bias is large everywhere, on every GPU kernel: tests/attention/huge_bias_test.cpp has
// the CPU's.
#include "support/huge_bias.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuHugeBias : public GpuTest {
 protected:
  void expect_right(const CaseSpec& spec, Random& random) {
    if (!drawn()) return;
    Case c(spec, random);
    c.make_inputs_read_only();
    const std::vector<std::string> kernels = kernels_for(c.problem(), device());
    EXPECT_FALSE(kernels.empty());
    const SoftmaxOfDifferences expected(c);
    for (const std::string& kernel : kernels) {
      if (!runs_here(kernel)) continue;
      EXPECT_TRUE(verified(c, kernel, {device()}));
      EXPECT_TRUE(expected.matches()) << kernel << " on " << device() << " " << to_string(spec);
    }
  }
  static CaseSpec spec_of(DType dtype, DType bias_dtype, int64_t seqlen_q, int64_t seqlen_k,
                          Random& random) {
    CaseSpec s = small_spec(dtype, 64, random);
    s.batch = 1;
    s.seqlen_q = seqlen_q;
    s.seqlen_k = seqlen_k;
    s.num_heads = 2;
    s.num_kv_heads = 1;
    s.layout = Layout::bshd;
    s.bias = s.huge_bias = true;
    s.bias_dtype = bias_dtype;
    return s;
  }
};

TEST_P(GpuHugeBias, Forward) {
  Random random(7800);
  expect_right(spec_of(DType::bf16, DType::bf16, 70, 150, random), random);
  expect_right(spec_of(DType::fp16, DType::fp32, 70, 150, random), random);
  CaseSpec s = spec_of(DType::bf16, DType::bf16, 64, 64, random);  // boards
  s.num_kv_heads = s.num_heads;
  expect_right(s, random);
  s.batch = 2;
  s.bias_broadcast = {true, false, false};
  expect_right(s, random);
  s = spec_of(DType::fp16, DType::fp16, 40, 100, random);
  s.sinks = true;
  expect_right(s, random);
  s = spec_of(DType::bf16, DType::fp32, 3, 900, random);  // decode, by splits
  s.sinks = true;
  expect_right(s, random);
  expect_right(spec_of(DType::fp32, DType::fp32, 3, 300, random), random);
}

TEST_P(GpuHugeBias, Backward) {
  Random random(7810);
  CaseSpec s = spec_of(DType::bf16, DType::bf16, 70, 150, random);
  s.backward = true;
  s.sinks = true;
  expect_right(s, random);
  s = spec_of(DType::fp16, DType::fp32, 80, 90, random);
  s.backward = s.dlse = true;
  s.gradients[3] = false;  // dbias, which fast kernels leave to others
  s.causal = Causal::bottom_right;
  expect_right(s, random);
  s = spec_of(DType::bf16, DType::bf16, 64, 64, random);  // boards
  s.backward = true;
  s.batch = 2;
  s.num_kv_heads = s.num_heads;
  s.bias_broadcast = {random.chance(0.5), false, false};
  expect_right(s, random);
  s = spec_of(DType::fp32, DType::fp32, 30, 70, random);
  s.backward = true;
  expect_right(s, random);
}

std::vector<std::string> huge_bias_devices() {
  std::vector<std::string> devices = gpu_devices(Chips::one_of_each_target);
  for (const std::string& device : hopper_devices()) {
    if (std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  }
  return devices;
}
INSTANTIATE_TEST_SUITE_P(On, GpuHugeBias, ::testing::ValuesIn(huge_bias_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
