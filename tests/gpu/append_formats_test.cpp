// Appending to a quantized KV cache in a GPU's memory, and to one whose values are part of its
// keys, beside the same call on the CPU.
#include <algorithm>
#include <array>
#include <cmath>

#include "gpu/append_call.h"

namespace fulmen::testing {
namespace {

class GpuAppendFormats : public AppendKvTest {};

TEST_P(GpuAppendFormats, QuantizesAsTheCpuDoes) {
  Random random(own_stream(7907));
  constexpr std::array kFormats{DType::int8,     DType::int8,         DType::fp8_e4m3,
                                DType::fp8_e5m2, DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz};
  for (int n = 0; n < 6; ++n) {
    AppendCall::Shape s;
    s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    s.batch = random.between(1, 2);
    s.kv_heads = random.between(1, 3);
    s.heads = s.kv_heads;
    s.dim = random.between(1, 90);
    s.dim_v = random.between(1, 90);
    s.rotary_dim = random.chance(0.7) ? random.between(0, s.dim / 2) * 2 : 0;
    s.seqlen_new = random.between(1, 9);
    s.seqlen_q = random.between(1, 3);
    s.rows = random.between(10, 40);
    s.page_size = random.pick<int64_t>({0, 0, 4, 7});
    s.quantized = true;
    s.of_tokens = random.chance(0.6);
    s.k_dtype = kFormats[static_cast<std::size_t>(random.between(0, 5))];
    s.v_dtype = kFormats[static_cast<std::size_t>(random.between(0, 5))];
    s.scale_dtype = random.pick({DType::fp32, DType::fp16});
    if (!drawn()) continue;
    KvCacheOptions options;
    options.rotary_interleaved = random.chance(0.5);
    Random same = random;
    AppendCall here(s, random), there(s, same);
    // Numbers that have no scale.
    if (random.chance(0.2)) {
      for (const AppendCall* call : {&here, &there})
        reference::store_float(call->t.v_new.data, s.dtype, 0, NAN);
    }
    expect_as_on_the_cpu(here, there, options);
  }
}

TEST_P(GpuAppendFormats, WritesBlocksAsTheCpuDoes) {
  Random random(own_stream(7911));
  constexpr std::array kFormats{DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1};
  for (const DType of_v : kFormats) {
    AppendCall::Shape s;
    s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    s.batch = random.between(1, 2);
    s.kv_heads = s.heads = random.between(1, 3);
    s.dim = 32 * random.between(1, 4);
    s.dim_v = 32 * random.between(1, 4);
    s.rotary_dim = random.chance(0.5) ? random.between(0, s.dim / 2) * 2 : 0;
    s.seqlen_new = random.between(1, 5);
    s.seqlen_q = random.between(1, 2);
    s.rows = random.between(10, 30);
    s.page_size = random.pick<int64_t>({0, 4, 7});
    s.quantized = true;
    s.of_tokens = true;
    // K of its own format, of 8 bits at times.
    s.k_dtype =
        random.chance(0.2) ? DType::int8 : kFormats[static_cast<std::size_t>(random.between(0, 4))];
    s.v_dtype = of_v;
    if (!drawn()) continue;
    Random same = random;
    AppendCall here(s, random), there(s, same);
    // A block of zeros, one of subnormal numbers, one of equal sizes of both signs, and one that
    // has no scale.
    const int64_t count = s.batch * s.seqlen_new * s.kv_heads * s.dim_v;
    for (const AppendCall* call : {&here, &there}) {
      for (int64_t n = 0; n < std::min<int64_t>(count, 4 * kBlockNumbers); ++n) {
        const int64_t block = n / kBlockNumbers;
        const float sign = n % 3 == 0 ? -1.0F : 1.0F;
        const float special = block == 0   ? 0.0F
                              : block == 1 ? sign * 0x1p-24F
                              : block == 2 ? sign * 3
                                           : INFINITY;
        if (block < 3 || n == 3 * kBlockNumbers + 5)
          reference::store_float(call->t.v_new.data, s.dtype, n, special);
      }
    }
    expect_as_on_the_cpu(here, there);
  }
}

// Values that are the first dims of keys are written with these, and so is their scale.
TEST_P(GpuAppendFormats, LatentRowsAreWrittenOnce) {
  Random random(own_stream(7908));
  for (const DType stored : {DType::bf16, DType::int8, DType::fp8_e4m3}) {
    for (const bool of_tokens : {false, true}) {
      if (!drawn()) continue;
      AppendCall::Shape s;
      s.latent = true;
      s.batch = 2;
      s.dim = 80;
      s.dim_v = 64;
      s.rows = 12;
      s.page_size = of_tokens ? 4 : 0;
      s.seqlen_new = 3;
      s.quantized = stored != DType::bf16;
      s.of_tokens = of_tokens;
      s.k_dtype = s.v_dtype = stored;
      Random same = random;
      AppendCall here(s, random), there(s, same);
      const Status expected = append_kv(here.t, {}, "cpu");
      ASSERT_TRUE(expected.ok()) << expected.message();
      const Status status = run(there.t, {});
      ASSERT_TRUE(status.ok()) << status.message();
      here.t.v_cache = there.t.v_cache = here.t.v_scale = there.t.v_scale = {};
      expect_same(here.t, there.t);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuAppendFormats, ::testing::ValuesIn(gpu_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, GpuAppendFormats, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
