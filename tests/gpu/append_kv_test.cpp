// Appending to a KV cache in a GPU's memory, beside the same call on the CPU.
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "gpu/append_call.h"

namespace fulmen::testing {
namespace {

class GpuAppendKv : public AppendKvTest {};

TEST_P(GpuAppendKv, IsWhatTheCpuDoes) {
  Random random(own_stream(7900));
  for (int n = 0; n < 24; ++n) {
    AppendCall::Shape s;
    s.dtype = std::array{DType::fp32, DType::fp16, DType::bf16}[static_cast<std::size_t>(n) % 3];
    s.batch = random.between(1, 3);
    s.kv_heads = random.between(1, 3);
    s.heads = s.kv_heads * random.between(1, 2);
    s.dim = random.between(1, 90);
    s.dim_v = random.between(1, 90);
    s.rotary_dim = random.chance(0.7) ? random.between(0, s.dim / 2) * 2 : 0;
    s.rotary_dtype = random.chance(0.5) ? DType::fp32 : s.dtype;
    s.seqlen_new = random.between(s.rotary_dim > 0 ? 0 : 1, 9);
    s.seqlen_q = random.between(1, 5);
    s.rows = random.between(10, 40);
    s.page_size = random.pick<int64_t>({0, 0, 1, 4, 7, 16});
    KvCacheOptions options;
    options.rotary_interleaved = random.chance(0.5);
    options.queries_advance = random.chance(0.5);
    Random same = random;
    AppendCall here(s, random), there(s, same);
    if (random.chance(0.3)) {
      here.t.q_out = here.t.q;
      there.t.q_out = there.t.q;
    }
    expect_as_on_the_cpu(here, there, options);
  }
}

// Rows that are copied 16 bytes at a time: the dims that are not rotated, and an end that does not
// fill 16 bytes.
TEST_P(GpuAppendKv, ByVectorsWhereRowsAreWhole) {
  Random random(own_stream(7905));
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const int64_t rotary_dim : {0, 32, 36}) {
      AppendCall::Shape s;
      s.dtype = dtype;
      s.batch = s.kv_heads = s.heads = 2;
      s.dim = 136;
      s.dim_v = 256;
      s.rotary_dim = rotary_dim;
      s.seqlen_new = 3;
      s.rows = 12;
      Random same = random;
      AppendCall here(s, random), there(s, same);
      expect_as_on_the_cpu(here, there);
    }
  }
  AppendCall::Shape one;  // row 0 is whole, its end is not
  one.dtype = DType::bf16;
  one.rows = 4;
  one.dim = one.dim_v = 77;
  Random same = random;
  AppendCall here(one, random), there(one, same);
  expect_as_on_the_cpu(here, there);
}

// Unchecked numbers lead to no access outside: rows without a place are not written, and everything
// else is.
TEST_P(GpuAppendKv, NumbersThatLeadOutside) {
  Random random(7910);
  AppendCall::Shape s;
  s.dtype = DType::fp16;
  s.batch = 4;
  s.rows = 12;
  s.seqlen_new = 3;
  s.kv_heads = 2;
  s.heads = 2;
  s.dim = s.dim_v = s.rotary_dim = 8;
  s.page_size = 4;
  Random same = random;
  AppendCall before(s, random), call(s, same);
  auto* used = static_cast<int*>(call.t.seqlens_k.data);
  used[0] = -2147483647 - 1;
  used[1] = 2147483640;
  used[2] = 100;
  used[3] = 3;
  auto* table = static_cast<int*>(call.t.block_table.data);
  table[3 * 3] = -1;
  table[3 * 3 + 1] = 1 << 30;
  const Status status = run(call.t, {});
  ASSERT_TRUE(status.ok()) << status.message();
  for (Tensor T::* cache : {&T::k_cache, &T::v_cache}) {
    const Tensor &a = before.t.*cache, &b = call.t.*cache;
    EXPECT_TRUE(std::equal(static_cast<std::byte*>(a.data),
                           static_cast<std::byte*>(a.data) + AppendCall::bytes_of(a),
                           static_cast<std::byte*>(b.data)));
  }
}

TEST_P(GpuAppendKv, RefusesHostMemory) {
  Random random(7920);
  AppendCall call({.rows = 4}, random);
  const Status status = append_kv(call.t, {}, device());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("k_cache.data is"), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(On, GpuAppendKv, ::testing::ValuesIn(gpu_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, GpuAppendKv, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
