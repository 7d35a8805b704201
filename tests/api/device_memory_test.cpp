// What the library itself does on a device whose memory the host cannot touch and whose work waits until it is waited for.
#include <gtest/gtest.h>

#include "fulmen/fulmen_c.h"
#include "support/deferred_device.h"
#include "support/device_copy.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr const char* kDevice = "deferred:0";

CaseSpec small_spec() {
  CaseSpec s;
  s.seqlen_q = 20;
  s.seqlen_k = 50;
  s.head_dim = s.head_dim_v = 32;
  return s;
}

TEST(DeviceMemory, AttentionWaitsForItsResult) {
  register_deferred_device();
  Random random(800);
  Case c(small_spec(), random);
  {
    const auto there = DeviceCopy::make(kDevice, c.tensors, 0);
    ASSERT_TRUE(there.ok()) << there.status().message();
    for (const bool verify : {false, true}) {
      AttentionOptions options = c.options;
      options.verify = verify;
      const Status status = attention(there.value()->tensors(), options, kDevice);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    ASSERT_TRUE(there.value()->download().ok());
    EXPECT_TRUE(verify_result(c.problem(), c.tensors).ok);
  }
  EXPECT_EQ(deferred_allocations(), 0);
}

// The workspace that a run allocates for itself must outlive the work that uses it.
TEST(DeviceMemory, OwnWorkspaceLivesAsLongAsTheWork) {
  register_deferred_device();
  Random random(801);
  Case c(small_spec(), random);
  const Result<Plan> planned = plan(c.problem(), kDevice);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_GT(planned->workspace_bytes(), 0U);
  const auto there = DeviceCopy::make(kDevice, c.tensors, 0);
  ASSERT_TRUE(there.ok());
  ASSERT_TRUE(planned->run(nullptr, there.value()->tensors(), nullptr, 0).ok());
  ASSERT_TRUE(there.value()->download().ok());
  EXPECT_TRUE(verify_result(c.problem(), c.tensors).ok);
}

TEST(DeviceMemory, BackwardWaitsForItsResult) {
  register_deferred_device();
  Random random(803);
  CaseSpec spec = small_spec();
  spec.backward = true;
  spec.dropout = 0.25F;
  Case c(spec, random);
  {
    const auto there = DeviceCopy::make(kDevice, c.tensors, 0, Pass::backward);
    ASSERT_TRUE(there.ok()) << there.status().message();
    for (const bool verify : {false, true}) {
      AttentionOptions options = c.options;
      options.verify = verify;
      const Status status = attention_backward(there.value()->tensors(), options, kDevice);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    ASSERT_TRUE(there.value()->download().ok());
    EXPECT_TRUE(verify_result(c.problem(), c.tensors).ok);
  }
  EXPECT_EQ(deferred_allocations(), 0);
}

// Its forward pass works in memory of the device.
TEST(DeviceMemory, FlashAttnBackwardOnADefaultDevice) {
  register_deferred_device();
  Random random(804);
  CaseSpec spec = small_spec();
  spec.dtype = DType::fp16;
  spec.seqlen_k = spec.seqlen_q;
  spec.num_heads = spec.num_kv_heads = 3;
  spec.causal = Causal::top_left;
  spec.backward = true;
  Case c(spec, random);
  {
    const auto there = DeviceCopy::make(kDevice, c.tensors, 0, Pass::backward);
    ASSERT_TRUE(there.ok()) << there.status().message();
    const AttentionTensors& t = there.value()->tensors();
    const FlashAttnParams params{1, 20, 3, 32, true, 0.0F};
    ASSERT_TRUE(set_default_device(kDevice).ok());
    const int code =
        flash_attn_backward(t.dout.data, t.q.data, t.k.data, t.v.data, t.out.data, t.dq.data, t.dk.data, t.dv.data, &params);
    ASSERT_TRUE(set_default_device("").ok());
    ASSERT_EQ(code, FULMEN_OK) << fulmen_last_error();
    ASSERT_TRUE(there.value()->download().ok());
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(report.ok) << report.message;
  }
  EXPECT_EQ(deferred_allocations(), 0);
}

TEST(DeviceMemory, RandomCases) {
  register_deferred_device();
  Random random(802);
  for (int i = 0; i < 20; ++i) {
    Case c(random_spec(random), random);
    EXPECT_EQ(expect_all_kernels_verified(c, {kDevice, random.chance(0.3) ? std::size_t{1} : 0}), 1);
    Case backward(random_backward_spec(random), random);
    EXPECT_EQ(expect_all_kernels_verified(backward, {kDevice, random.chance(0.3) ? std::size_t{1} : 0}), 1);
  }
  EXPECT_EQ(deferred_allocations(), 0);
}

}  // namespace
}  // namespace fulmen::testing
