// What the library itself does on a device whose memory the host cannot touch and whose work waits
// until it is waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/fulmen_c.h"
#include "gpu/driver.h"
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
    const int code = flash_attn_backward(t.dout.data, t.q.data, t.k.data, t.v.data, t.out.data,
                                         t.dq.data, t.dk.data, t.dv.data, &params);
    ASSERT_TRUE(set_default_device("").ok());
    ASSERT_EQ(code, FULMEN_OK) << fulmen_last_error();
    ASSERT_TRUE(there.value()->download().ok());
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(report.ok) << report.message;
  }
  EXPECT_EQ(deferred_allocations(), 0);
}

struct Freed {
  const gpu::Driver& driver;
  void operator()(char* memory) const { driver.free(0, memory); }
};
using Memory = std::unique_ptr<char, Freed>;

// An emulated device's memory is the host's: a copy that leaves an allocation would end the
// process, or change what is beside it.
TEST(DeviceMemory, CopiesAndFillsOfHostMemoryDriversStayInTheirAllocation) {
  constexpr std::size_t kBytes = 1000, kHuge = std::size_t{1} << 40U;
  for (const gpu::Driver* driver : {&gpu::emulated_driver(), &gpu::isa_driver()}) {
    SCOPED_TRACE(driver->name());
    const auto allocate = [&] { return driver->allocate(0, kBytes); };
    const auto owned = [&](const Result<void*>& memory) {
      return Memory(static_cast<char*>(memory.value()), Freed{*driver});
    };
    const Result<void*> allocated = allocate();
    if (!allocated.ok()) GTEST_SKIP() << allocated.status().message();
    const Memory first = owned(allocated), second = owned(allocate());
    std::vector<char> host(kBytes, 'h');
    struct Range {
      char* at;
      std::size_t bytes;
      const char* why;  // null: it is right
    };
    for (const Range& range :
         {Range{first.get(), kBytes, nullptr},
          {first.get() + 999, 1, nullptr},
          {first.get() + kBytes, 0, nullptr},
          {first.get(), kBytes + 1,
           "points to byte 0 of an allocation of 1000: up to 1000 is accepted"},
          {first.get() + 900, 101,
           "points to byte 900 of an allocation of 1000: up to 100 is accepted"},
          {first.get(), kHuge, "up to 1000 is accepted"},
          {second.get(), SIZE_MAX, "has no memory of so many"},
          {second.get() + kBytes, 1,
           "points to byte 1000 of an allocation of 1000: up to 0 is accepted"},
          {second.get() - 1, 1, "points 1 bytes before an allocation"},
          {host.data(), kHuge * 1000, "before an allocation of the device, which they run into"}}) {
      std::string why = range.why != nullptr ? range.why : "";
      // Nothing is behind it.
      if (range.at == host.data() && host.data() > std::max(first.get(), second.get())) continue;
      const auto expect = [&](const Status& status, const std::string& name) {
        EXPECT_EQ(status.ok(), why.empty()) << status.message();
        if (why.empty() || status.ok()) return;
        EXPECT_EQ(status.code(), StatusCode::invalid_argument);
        EXPECT_EQ(status.message().rfind(
                      "bytes is " + std::to_string(range.bytes) + ": " + name + ' ', 0),
                  0U)
            << status.message();
        EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
      };
      if (range.at != host.data()) {
        expect(driver->copy(0, range.at, host.data(), range.bytes), "to");
        // Else `to` is wrong, too.
        if (range.bytes < kHuge)
          expect(driver->copy(0, host.data(), range.at, range.bytes), "from");
      } else {
        expect(driver->copy(0, range.at, first.get(), range.bytes), "to");
      }
      expect(driver->fill(0, range.at, 0x55, range.bytes), "to");
    }
    EXPECT_TRUE(driver->copy(0, second.get(), first.get(), kBytes).ok());
    EXPECT_EQ(std::memcmp(first.get(), second.get(), kBytes), 0);
  }
}

TEST(DeviceMemory, ACopyPastAnEmulatedAllocationIsRefused) {
  const char* const device = "emulated:gfx1100";
  void* memory = nullptr;
  if (fulmen_device_allocate(device, 64, &memory) != FULMEN_OK) GTEST_SKIP() << fulmen_last_error();
  std::vector<char> host(1 << 20);
  EXPECT_EQ(fulmen_device_copy(device, memory, host.data(), host.size()), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(
      fulmen_last_error(),
      "bytes is 1048576: to points to byte 0 of an allocation of 64: up to 64 is accepted");
  EXPECT_EQ(fulmen_device_copy(device, host.data(), memory, host.size()), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_device_copy(device, host.data(), memory, 64), FULMEN_OK);
  fulmen_device_free(device, memory);
}

TEST(DeviceMemory, RandomCases) {
  register_deferred_device();
  Random random(802);
  for (int i = 0; i < 20; ++i) {
    Case c(random_spec(random), random);
    EXPECT_EQ(expect_all_kernels_verified(c, {kDevice, random.chance(0.3) ? std::size_t{1} : 0}),
              1);
    Case backward(random_backward_spec(random), random);
    EXPECT_EQ(
        expect_all_kernels_verified(backward, {kDevice, random.chance(0.3) ? std::size_t{1} : 0}),
        1);
  }
  EXPECT_EQ(deferred_allocations(), 0);
}

}  // namespace
}  // namespace fulmen::testing
